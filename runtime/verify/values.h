// Abstract execution of a job. Each byte carries its last writer, the version of the parameters it was computed from,
// and the placement of its tensor over the mesh.
//
// Surprising fact: one legal order represents all of them. Conflicting accesses are ordered (accesses.cc), so each read
// observes the same write whatever the timing.
#pragma once
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "verify/byte_map.h"
#include "verify/placement.h"
#include "verify/view.h"

namespace prun::verify {

// The version of the parameters of which a value is a copy; none = it is no copy. Frozen ones have a single version.
enum class ParamVersion : uint8_t { none, before_update, after_update, frozen };

// The parts of a dim of a tensor that are written; the other elements are undefined.
struct WrittenParts {
  using Ranges = std::vector<std::pair<int64_t, int64_t>>;  // [begin, end), ascending, not adjacent
  int dim = 0;
  Ranges ranges;
  auto operator<=>(const WrittenParts&) const = default;  // NOLINT(modernize-use-nullptr)
};

struct ValueState {
  OpRef writer{-1, 0};  // stream -1: init or the previous step
  int version = 0;      // numbers the writes of the class within the step; 0 = before the step
  int base = 0;         // latest version that was not computed in place from its predecessor
  ParamVersion params = ParamVersion::none;
  bool live_in = false;  // this step has read the contents that the previous step left here
  int norms = 0;         // number of norm2 ops that have read it
  TensorPlacement placement;
  const WrittenParts* written = nullptr;  // null = all of the tensor
};

struct Segment {
  int64_t begin = 0, end = 0;  // bytes of the buffer
  ValueState state;
};
using Segments = std::vector<Segment>;

struct OpContext;
// Return segments with one placement: the whole tensor, or a range of its elements. parameter() returns the placement
// of one parameter of a flat vector.
Segments whole(const Tensor& tensor, const TensorPlacement& placement);
void place_whole(OpContext& context, size_t write, const TensorPlacement& placement);  // result of a write
Segment part(const Tensor& tensor, int64_t begin, int64_t end, const TensorPlacement& placement);
TensorPlacement parameter(const Piece& piece);

// One op with the contents of its operands; rules fill in the writes.
struct OpContext {
  const BodyView& body;
  OpRef ref;
  const Op& op;
  std::vector<const Tensor*> read_tensors, write_tensors;
  std::vector<Segments> reads;
  std::vector<Segments> writes;  // state is the result of the op
  Findings& findings;
  bool met = false;  // a reduction that has merged the operands of ranks with other programs

  // Reports the rule's message with both sites: "reads ...; embed.grads wrote it".
  void report(const std::string& rule, const std::string& what, const ValueState& state) const;
};

// The walk with one actor per class. A send enqueues its operand's segments. When no actor can advance (deadlock.cc
// reports that), ops continue without their partners.
class Values : private WalkPolicy {
 public:
  Values(const JobView& view, Findings& findings);
  // Executes init and the step of all classes, then the between-steps body under verification, if any.
  void run();

 private:
  struct Class {
    Table<BufferId, ByteMap<ValueState>> buffers;
    int version = 0;
    std::map<std::vector<int64_t>, OpRef> in_place;  // in-place ops, keyed by the versions that they read
  };

  void run(StreamCursor at) override;
  void meet(const std::vector<StreamCursor>& members) override;
  void send(StreamCursor at) override;
  void receive(StreamCursor at) override;
  bool buffers(int) const override { return true; }

  void run_body(bool init);
  void begin_step();
  void end_step();
  OpContext context_of(StreamCursor at);
  void finish(int id, OpContext& context);
  void apply(int id, OpContext& context);
  void check_repeated(int id, const OpContext& context);
  Segments segments_of(int id, const Tensor& tensor);
  const BodyView& body(int id) const { return in_step_ ? view_.steps[id] : view_.bodies[id * 2 + (init_ ? 0 : 1)]; }

  const JobView& view_;
  Findings& findings_;
  PlacementFlow flow_;
  bool init_ = true, in_step_ = false;
  Walk* walk_ = nullptr;  // the walk of the current body
  std::vector<Class> classes_;
  std::vector<Table<BufferId, Segments>> begin_;  // by class: state at the beginning of the step
  std::map<int, std::deque<Segments>> messages_;  // by channel: messages in flight
};

// reads.cc: requires that operands are complete outputs, not parts of them.
void check_reads(const OpContext& context);
// update_settings.cc: requires that an optimizer op updates each parameter with its group's settings.
void check_update_settings(const OpContext& context);
// Returns whether the parameters or the state are in this vector.
bool is_in(const Program& program, const StateTensor& state, const Tensor& vector);
// Returns how the shard of an op's attributes `axis` and `shard` differs from that of the parameter; "" = it does not.
std::string shard_problem(const Program& program, const Attrs& attrs, const StateTensor& parameter);
// matrices.cc: requires that the op applies to each matrix the update that is computed from its direction.
void check_matrices(const OpContext& context);
// Returns the number of dims before the rows of the matrix from element `start` on of a vector that `orthogonal` reads:
// 1 for matrices of experts, otherwise 0.
int dims_before_matrix(const BodyView& body, const Op& orthogonal, size_t read, int64_t start);
// factored.cc: requires that Adafactor's ops of a unit belong together and list its parameters as the state has them.
void check_factors(const OpContext& context);
// Returns the parameter that begins at an element of the unit's vector, the second read; null = none.
const StateTensor* state_at(const OpContext& context, int64_t start);
// updates.cc: requires one update per parameter, refreshed copies, and reads before the update. Sets the parameter
// versions of the writes.
void follow_updates(OpContext& context);
void check_update_at_end(const BodyView& step, BufferId buffer, const Segments& end, Findings& findings);

}  // namespace prun::verify
