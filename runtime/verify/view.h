// What every rule looks at: the job with its orders and accesses worked out once, and where findings go.
//
// Surprising fact: rules see classes of ranks, never ranks; a class stands for its first rank in messages.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/ops.h"
#include "ir/order.h"
#include "ir/program.h"
#include "verify/op_kinds.h"
#include "verify/verify.h"

namespace prun::verify {

// One op touching bytes [begin, end) of a buffer.
struct Access {
  OpRef op;
  TensorId tensor = -1;
  int64_t begin = 0, end = 0;
  bool write = false;
};

struct BodyView {
  const Program* program = nullptr;
  const Body* body = nullptr;
  int class_id = 0;
  int rank = 0;  // the class's first
  bool many_classes = false;
  bool is_init = false, is_step = false;
  Order order;
  std::vector<int> position;                      // of each op in order.sequence(), by flat number; -1: stuck
  std::vector<OpRef> talks;                       // the ops of the sequence that communicate, in its order
  Table<BufferId, std::vector<Access>> accesses;  // in the order of the sequence; an op's reads before its writes

  BodyView(const Job& job, int class_id, BodyId id);
  void find_kinds(OpKinds& of_job);
  const Op& op(OpRef ref) const { return body->streams[ref.stream].ops[ref.index]; }
  int position_of(OpRef ref) const { return position[first_[ref.stream] + ref.index]; }
  int kind_of(OpRef ref) const { return kinds_[first_[ref.stream] + ref.index]; }  // verify/op_kinds.h
  bool ordered() const { return order.stuck().empty(); }
  // "linear (block0 forward, compute#12, plans/a.lua:3)"; a collective with what it moves: "all_reduce f32[8] sum
  // (...)"
  std::string describe(OpRef ref) const;
  // "" or "rank 3: ", when ranks differ.
  std::string where() const;
  const std::string& buffer_name(BufferId buffer) const { return program->buffers[buffer].name; }

 private:
  void collect_accesses();
  Table<StreamId, int> first_;
  std::vector<int> kinds_;  // by flat number
};

struct JobView {
  const Job* job = nullptr;
  int64_t memory_limit = 0;
  int local_ranks = 1;
  std::vector<BodyView> bodies;  // of class c: init at 2c; at 2c + 1 the step, or the body between steps to be proved
  std::vector<BodyView> steps;   // by class, for a body between steps: the step that has run before it
  OpKinds kinds;                 // of the ops in all of these
};

// Collects findings, at most kMost of a rule: a broken pass breaks every unit in the same way.
class Findings {
 public:
  static constexpr int kMost = 8;
  void add(const std::string& rule, std::string message, Site site);
  bool full(const std::string& rule) const;
  bool has(const std::string& rule) const { return counts_.count(rule) != 0; }
  std::vector<Finding> take();  // the first of each rule, then the rest
  bool empty() const { return all_.empty(); }

 private:
  std::vector<Finding> all_;
  std::map<std::string, int> counts_;
};

// Listed ops in the order in which they run, and how often a repeat has gone on by then.
struct Run {
  OpRef op;
  int64_t copy = 0;
};
std::vector<Run> as_run(const BodyView& body, const std::vector<OpRef>& listed);

// The rules. Those of shape.cc and waits.cc (within a rank) come first: the others rely on what they establish.
void program_is_well_formed(const Job& job, Findings& findings);
void waits_have_no_cycle(const JobView& view, Findings& findings);
void repeats_recur(const JobView& view, Findings& findings);
void collectives_fit_their_group(const JobView& view, Findings& findings);
void collectives_of_a_lane_are_ordered(const JobView& view, Findings& findings);
void collectives_match_across_ranks(const JobView& view, Findings& findings);
void messages_match(const JobView& view, Findings& findings);
void offered_places_are_left_alone(const JobView& view, Findings& findings);
void ranks_do_not_wait_in_a_circle(const JobView& view, Findings& findings);
void reads_follow_writes(const JobView& view, Findings& findings);
void conflicting_accesses_are_ordered(const JobView& view, Findings& findings);
void buffers_share_bytes_only_in_turn(const JobView& view, Findings& findings);
void nothing_is_lost(const JobView& view, Findings& findings);
void streams_meet_at_the_end(const JobView& view, Findings& findings);
void shapes_fit(const JobView& view, Findings& findings);
void factors_are_right(const JobView& view, Findings& findings);
void values_are_right(const JobView& view, Findings& findings);
void spaces_are_kept(const JobView& view, Findings& findings);
void memory_suffices(const JobView& view, Findings& findings);

void calendars_agree(const Job& job, Findings& findings);
void bodies_between_steps_change_nothing(const Job& job, Findings& findings);
// Of a body between steps: brings together weights that ranks have let drift apart.
inline bool averages_weights(const Program& program, const Op& op) {
  return op.is(ops::all_reduce) && program.buffers[program.tensors[op.writes[0]].buffer].role == Role::param;
}
// The axes over which a program's weights differ within a step, since a body between steps averages them.
std::vector<std::string> drift_axes(const Program& program);
void drifting_weights_meet(const Job& job, Findings& findings);

// A job whose steps train, as against one that only moves data: it has a loss.
bool trains(const Job& job);
// Whether it runs a model, to train it or to continue a text; else the plan lists its ops.
bool has_model(const Job& job);
// Parameters, whole ones that were gathered ahead, and optimizer state: all that a training step finds from the step
// before.
bool is_state(const Buffer& buffer);

// Looks at values, and what it makes is no result of the step.
inline bool is_check(const Op& op) { return op.def->role == OpRole::check && op.def->op_class == OpClass::compute; }
inline bool is_optimizer(const Op& op) { return op.def->role == OpRole::optimizer; }
// Makes what a unit begins with: parameters, or the state of a checkpoint.
inline bool makes_state(const Op& op) { return op.is(ops::init_params) || op.is(ops::load_state); }
// How many tensors an optimizer updates: the parameters, then their state.
inline size_t updated_by(const Op& op) { return op.writes.size() - (op.def->optimizer->casts ? 1 : 0); }

// The collectives of each lane of a body that have partners, in the order in which they are issued.
std::map<Lane, std::vector<OpRef>> lanes_of(const BodyView& body);
bool sends_messages(const BodyView& body);
// True when the ops between each pair of ranks are issued in one order on both, whatever the timing.
bool queues_agree(const JobView& view);

// What all members of a group must agree on, call by call.
struct Signature {
  const OpDef* kind = nullptr;
  Dtype dtype = Dtype::f32;
  int64_t count = 0;
  std::string redop;  // "" where the kind does not reduce
  int64_t root = -1;  // -1 where the kind has none
  bool operator==(const Signature&) const = default;
  std::string text() const;  // "all_reduce f32[1024] sum"
};
Signature signature_of(const Program& program, const Op& op);

// Whether all ranks of the job end. `credits`: how many sends of a pair and lane may be under way before their receives
// begin; 0 is a rendezvous.
bool everything_ends(const JobView& view, int credits);

}  // namespace prun::verify
