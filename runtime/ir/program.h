// The program of one class of ranks: compiled once, then verified, executed, interpreted, drawn.
//
// Surprising fact: streams join at the end of each step (the last op of stream 0 waits for all ops except those of
// ir/carried.h, and every stream's first op waits for that op of the previous step), so that one step's order proves
// every step's.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "ir/adapters.h"
#include "ir/attrs.h"
#include "ir/data_source.h"
#include "ir/ids.h"
#include "ir/learning_rate.h"
#include "ir/mesh.h"
#include "ir/model_description.h"
#include "ir/numerics.h"
#include "ir/op_def.h"
#include "ir/repeat.h"
#include "ir/run_position.h"
#include "ir/state.h"
#include "ir/types.h"

namespace prun {

enum class Role : uint8_t {
  param,
  grad,
  optimizer,
  gathered,
  reduce,
  activation,
  data,
  workspace,
  snapshot,
  cache,
  frozen,
  buffer
};
std::string_view role_name(Role role);
inline constexpr int kRoles = 12;

// Each rank has an arena in both memories. Ops work in the device's; `load` and `store` copy between them.
enum class Space : uint8_t { device, host };

// A byte range in the arena; the memory pass sets `offset`. A persistent buffer is always live, or, in a pool's slot,
// except between its last reader and its next writer. Any other buffer is live from its first access to its last in the
// happens-before order.
struct Buffer {
  std::string name;
  Role role = Role::activation;
  int64_t bytes = 0;    // a multiple of kAlignBytes
  int64_t offset = -1;  // from the start of the rank's arena in `space`
  bool persistent = false;
  int pool = -1;  // >= 0: in slot `slot` of this pool (gathered units, unreduced gradients)
  int slot = -1;
  Site site;
  Space space = Space::device;
};

// A typed, contiguous view of a buffer.
struct Tensor {
  std::string name;
  BufferId buffer;
  int64_t byte_offset = 0;  // within the buffer
  Dtype dtype = Dtype::f32;
  Shape shape;
  int64_t count() const { return element_count(shape); }
  int64_t bytes() const { return count() * dtype_bytes(dtype); }
  TensorType type() const { return {dtype, shape}; }
};

// Waits until stream `stream` has completed op `index` of this step or (back = 1) of the previous one.
struct Edge {
  StreamId stream = 0;
  int index = 0;
  int back = 0;
  bool operator==(const Edge&) const = default;
};

enum class Phase : uint8_t { init, data, forward, backward, step, program };
std::string_view phase_name(Phase phase);

struct Op {
  const OpDef* def = nullptr;
  std::vector<TensorId> reads, writes;  // in the op's order
  Attrs attrs;
  std::vector<Edge> waits;  // besides the previous op on its stream
  std::string axis;         // communication: the rank's group along this axis ("world" = all ranks)
  int lane = 0;             // communication: the communicator of that group; one per stream
  Phase phase = Phase::program;
  std::string unit;     // label; "" outside units
  int microbatch = -1;  // label; -1 outside microbatches
  Site site;
  bool is(const OpDef& kind) const { return def == &kind; }
  bool communicates() const { return def->op_class == OpClass::communication; }
  // Messages between two ranks. One-sided: the receiver offers a buffer (signal), the sender puts, the receiver waits.
  bool sends() const { return def->message.sends; }
  bool receives() const { return def->message.receives; }
  bool point_to_point() const { return sends() || receives(); }
  bool offers() const { return def->message.offers; }
  bool one_sided() const { return def->message.one_sided; }
};

// Returns the global ranks that a communication op of `rank` involves: the group along the axis, in its order; of a
// message the pair, sender first.
std::vector<int> members_of(const Mesh& mesh, const Op& op, int rank);

inline constexpr int kMaxStreams = 16;  // per body

struct Stream {
  std::string name;
  std::vector<Op> ops;
};

// When a body runs: `times` in a row after every `every` steps, or before step 0.
struct When {
  int64_t every = 0;  // steps; 0 = before step 0
  int64_t times = 1;
  int64_t last = 0;    // also after this many steps; 0 = no
  bool first = false;  // also before the first step of a run that does not resume
  bool due_after(int64_t step) const { return every > 0 && ((step + 1) % every == 0 || step + 1 == last); }
  bool operator==(const When&) const = default;
};

// A number that a body reports by name, computed on the host from its results: Σ factor·result / Σ over.
struct NamedResult {
  struct Part {
    int64_t slot = 0;  // element of Body::results
    double factor = 1;
  };
  std::string name;
  std::vector<Part> terms, over;  // `over` empty = 1
  double of(const std::vector<double>& results) const;
};
inline constexpr int kMostNamed = 16;  // named numbers of a body

// Ops that run together, when ir/calendar.h schedules them. Each stream runs its own list; stream 0 computes.
struct Body {
  std::string name;
  When when;
  Table<StreamId, Stream> streams;
  DataSource data;        // source of its next_batch; consecutive runs read one batch each
  TensorId loss;          // scalar with the global mean after a run; -1 = none
  TensorId norm = {};     // scalar with the norm of all gradients before clipping; -1 = none
  Repeat repeat = {};     // ops listed once that run several times
  TensorId results = {};  // vector of global sums, the loss first, if numbers have names; -1 = none
  std::vector<NamedResult> named = {};
  int64_t op_count() const;  // listed ops
};
inline constexpr BodyId kInitBody = 0, kStepBody = 1;

// The metric by which checkpoints are compared and a run may end early.
struct Watched {
  std::string metric = "eval_loss";
  bool largest = false;  // the largest value is the best, otherwise the smallest
  int64_t patience = 0;  // evaluations in a row without improvement that end the run; 0 = unlimited
  bool keeps = false;    // the best checkpoint is retained
  bool any() const { return patience > 0 || keeps; }
  bool improves(double value, double best) const { return largest ? value > best : value < best; }
};

// Inputs of a program besides its buffers, which the step table provides.
struct Schedule {
  int64_t steps = 1;
  RunPosition begin;  // start of this run; its checkpoint contains the earlier steps
  uint64_t seed = 0;
  LearningRate learning_rate;
  // Number of consecutive steps with a non-finite gradient norm that ends the run; such steps update nothing. 0 = not
  // checked; 1 = the first one ends the run, and so does a non-finite loss.
  int64_t most_skips = 0;
  Watched watched;
};

struct Pool {
  std::string name;
  Role role = Role::gathered;
  int slots = 0;
  int64_t slot_bytes = 0;
};

struct Program {
  std::string name;  // the plan's path as typed
  ModelDescription model;
  std::string initial_weights;  // path of the weights that the run begins with; "" = init_params
  Adapters adapters;            // their base is read by resumed runs, too
  Mesh mesh;
  std::string device = "cpu";
  bool rank_order = false;  // reductions add in rank order
  Table<BufferId, Buffer> buffers;
  Table<TensorId, Tensor> tensors;
  std::vector<Pool> pools;
  std::vector<StateTensor> state;  // this class's part of a checkpoint
  // The body that runs once before step 0, the step, then the bodies between steps in their order.
  Table<BodyId, Body> bodies = {{"init", {0}, {}, {}, {}}, {"step", {1}, {}, {}, {}}};
  Schedule schedule;
  int64_t tokens_per_step = 0;  // global; samples if the data has no tokens
  std::string sample_word = "tokens";
  int64_t arena_bytes = 0;
  int64_t role_bytes[kRoles] = {};  // the arena by role
  int64_t host_arena_bytes = 0;     // arena in host memory; 0 = none
  int64_t host_role_bytes[kRoles] = {};

  Body& init() { return bodies[kInitBody]; }
  Body& step() { return bodies[kStepBody]; }
  const Body& init() const { return bodies[kInitBody]; }
  const Body& step() const { return bodies[kStepBody]; }
};

inline int64_t arena_bytes(const Program& program, Space space) {
  return space == Space::host ? program.host_arena_bytes : program.arena_bytes;
}

// Returns the position after `step` steps, counted from the position where the run begins. Steps that the run itself
// skips are not counted as skipped.
RunPosition position_after(const Program& program, int64_t step);

// The programs of all ranks, one per class of equal programs.
struct Job {
  std::vector<Program> classes;
  std::vector<int> class_of_rank;
  Numerics numerics;  // numerics of all ranks; empty until the launcher determines them
  const Program& program(int rank) const { return classes[class_of_rank[rank]]; }
};

// Binary form (ir/serialize.cc). `parse_job` throws Error(mismatch) for bytes that are not a job of this version.
std::string serialize_job(const Job& job);
Job parse_job(std::string_view bytes);
std::string job_hash(std::string_view bytes);  // SHA-256, 64 hex digits

// Text form (ir/dump.cc): stable, golden-tested, one op per line.
std::string dump_job(const Job& job);
std::string dump_op(const Program& program, const Op& op);  // one line without stream and index

}  // namespace prun
