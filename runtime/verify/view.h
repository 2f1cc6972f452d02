// The input of every rule: the job with its orders and accesses computed once, and the collector of findings.
//
// Surprising fact: rules see classes of ranks, never ranks; messages name the first rank of a class.
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

// Access of one op to bytes [begin, end) of a buffer.
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
  int rank = 0;  // first rank of the class
  bool many_classes = false;
  bool is_init = false, is_step = false;
  Order order;
  std::vector<int> position;                      // index of each op in order.sequence(), by flat number; -1 = blocked
  std::vector<OpRef> talks;                       // communicating ops of the sequence, in its order
  Table<BufferId, std::vector<Access>> accesses;  // in sequence order; an op's reads before its writes

  BodyView(const Job& job, int class_id, BodyId id);
  void find_kinds(OpKinds& of_job);
  const Op& op(OpRef ref) const { return body->streams[ref.stream].ops[ref.index]; }
  int position_of(OpRef ref) const { return position[first_[ref.stream] + ref.index]; }
  int kind_of(OpRef ref) const { return kinds_[first_[ref.stream] + ref.index]; }  // see op_kinds.h
  bool ordered() const { return order.stuck().empty(); }
  // Returns "linear (block0 forward, compute#12, plans/a.lua:3)"; collectives with their signature: "all_reduce f32[8]
  // sum (...)".
  std::string describe(OpRef ref) const;
  // Returns "rank 3: " where classes differ, otherwise "".
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
  std::vector<BodyView> bodies;  // class c: init at 2c; at 2c + 1 the step, or the between-steps body under
                                 // verification
  std::vector<BodyView> steps;   // by class, when verifying a between-steps body: the step that precedes it
  OpKinds kinds;                 // kinds of the ops in all of these bodies
};

// Collects findings, at most kMost per rule, because a broken pass breaks every unit in the same way.
class Findings {
 public:
  static constexpr int kMost = 8;
  void add(const std::string& rule, std::string message, Site site);
  bool full(const std::string& rule) const;
  bool has(const std::string& rule) const { return counts_.count(rule) != 0; }
  std::vector<Finding> take();  // the first of each rule, then all others
  bool empty() const { return all_.empty(); }

 private:
  std::vector<Finding> all_;
  std::map<std::string, int> counts_;
};

// A listed op in execution order. `copy`: periods of the repeat that have run before it.
struct Run {
  OpRef op;
  int64_t copy = 0;
};
std::vector<Run> as_run(const BodyView& body, const std::vector<OpRef>& listed);

// The rules. The rules of shape.cc and waits.cc (within a rank) run first, because all others rely on them.
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
void shares_fit(const JobView& view, Findings& findings);
void values_are_right(const JobView& view, Findings& findings);
void spaces_are_kept(const JobView& view, Findings& findings);
void memory_suffices(const JobView& view, Findings& findings);

void calendars_agree(const Job& job, Findings& findings);
void bodies_between_steps_change_nothing(const Job& job, Findings& findings);
// Returns whether this op of a between-steps body averages weights that have drifted apart.
inline bool averages_weights(const Program& program, const Op& op) {
  return op.is(ops::all_reduce) && program.buffers[program.tensors[op.writes[0]].buffer].role == Role::param;
}
// Returns the axes over which a program's weights differ within a step because a between-steps body averages them.
std::vector<std::string> drift_axes(const Program& program);
void drifting_weights_meet(const Job& job, Findings& findings);

// Returns whether the job's steps train: it has a loss.
bool trains(const Job& job);
// Returns whether the job runs a model, for training or generation. Otherwise the plan lists its ops.
bool has_model(const Job& job);
// Returns whether a training step reads the buffer as the previous step left it: parameters, gathered parameters,
// optimizer state, caches.
bool is_state(const Buffer& buffer);

// Returns whether the op only inspects values; its output is no result of the step.
inline bool is_check(const Op& op) { return op.def->role == OpRole::check && op.def->op_class == OpClass::compute; }
inline bool is_optimizer(const Op& op) { return op.def->role == OpRole::optimizer; }
// Returns whether the op applies updates that other ops compute from gradients.
inline bool applies_directions(const Op& op) { return is_optimizer(op) && op.def->optimizer->direction != nullptr; }
// Returns whether the op finds matrices in flat vectors by its attributes, as Muon's do.
inline bool finds_matrices(const Op& op) { return op.is(ops::orthogonalize) || applies_directions(op); }
// Returns whether the op is one of Adafactor's, whose operands prun/sdk/factored_updates.h describes.
inline bool is_factored(const Op& op) { return is_optimizer(op) && op.def->optimizer->factored; }
// Returns whether the op produces a unit's initial contents: fresh parameters or the state of a checkpoint.
inline bool makes_state(const Op& op) { return op.is(ops::init_params) || op.is(ops::load_state); }
// Returns the number of tensors that an optimizer updates: the parameters, then their state.
inline size_t updated_by(const Op& op) {
  return op.writes.size() - (op.def->optimizer->casts ? 1 : 0) - (op.attrs.has("workspace") ? 1 : 0);
}

// Returns the collectives of each lane of a body that have partners, in the order of issue.
std::map<Lane, std::vector<OpRef>> lanes_of(const BodyView& body);
bool sends_messages(const BodyView& body);
// Returns whether both ranks of each pair issue the pair's ops in the same order, whatever the timing.
bool queues_agree(const JobView& view);

// The properties of a collective that all members of a group must agree on, call by call.
struct Signature {
  const OpDef* kind = nullptr;
  Dtype dtype = Dtype::f32;
  int64_t count = 0;
  std::string redop;  // "" if the kind does not reduce
  int64_t root = -1;  // -1 if the kind has no root
  bool operator==(const Signature&) const = default;
  std::string text() const;  // for example "all_reduce f32[1024] sum"
};
Signature signature_of(const Program& program, const Op& op);

// Returns whether all ranks of the job terminate. `credits`: sends of a pair and lane that may complete before their
// receives begin; 0 = rendezvous.
bool everything_ends(const JobView& view, int credits);

}  // namespace prun::verify
