// The program: what one class of ranks does. Compiled once, then verified, executed, interpreted, drawn.
//
// Surprising fact: streams meet at the end of each step (the last op of stream 0 waits for all but what ir/carried.h
// names, every stream's first op for that op of the step before), so one step's order proves every step's.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
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

enum class Role : uint8_t { param, grad, optimizer, gathered, reduce, activation, data, workspace, snapshot, cache };
std::string_view role_name(Role role);
inline constexpr int kRoles = 10;

// Whose memory: each rank has an arena in both. Ops work in the device's; `load` and `store` copy between them.
enum class Space : uint8_t { device, host };

// Bytes in the arena. `offset` is set by the memory pass. A persistent buffer is live in every step; one in a pool's
// slot but for the time between its last reader and its next writer. Another is live from its first access to its last
// in the happens-before order.
struct Buffer {
  std::string name;
  Role role = Role::activation;
  int64_t bytes = 0;    // a multiple of kAlignBytes
  int64_t offset = -1;  // from the start of the rank's arena in `space`
  bool persistent = false;
  int pool = -1;  // >= 0: lives in slot `slot` of this pool (gathered units, unreduced gradients)
  int slot = -1;
  Site site;
  Space space = Space::device;
};

// A typed view of a buffer; always contiguous.
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

// "stream `stream` has completed op `index`", of this step or (back = 1) of the step before.
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
  std::vector<TensorId> reads, writes;  // order is the op's convention
  Attrs attrs;
  std::vector<Edge> waits;  // besides the op before it on its stream
  std::string axis;         // communication: the group is the rank's along this axis ("world": all ranks)
  int lane = 0;             // communication: which communicator of that group; one per stream
  Phase phase = Phase::program;
  std::string unit;     // label; "" outside units
  int microbatch = -1;  // label; -1 outside microbatches
  Site site;
  bool is(const OpDef& kind) const { return def == &kind; }
  bool communicates() const { return def->op_class == OpClass::communication; }
  // Messages of a pair of ranks. One-sided ones: the receiver says where (signal), the sender puts, the receiver waits.
  bool sends() const { return def->message.sends; }
  bool receives() const { return def->message.receives; }
  bool point_to_point() const { return sends() || receives(); }
  bool offers() const { return def->message.offers; }
  bool one_sided() const { return def->message.one_sided; }
};

// The global ranks that a communication op of `rank` involves, in the order of the group: all along the axis; of a
// message the pair, the sender first.
std::vector<int> members_of(const Mesh& mesh, const Op& op, int rank);

inline constexpr int kMaxStreams = 16;  // of one body

struct Stream {
  std::string name;
  std::vector<Op> ops;
};

// When a body runs: `times` in a row after every so many steps, or once, before step 0.
struct When {
  int64_t every = 0;  // steps; 0: before step 0
  int64_t times = 1;
  int64_t last = 0;  // also after this many steps; 0: not
  bool due_after(int64_t step) const { return every > 0 && ((step + 1) % every == 0 || step + 1 == last); }
  bool operator==(const When&) const = default;
};

// Ops that run together, on the calendar (ir/calendar.h). Every stream walks its own list; stream 0 computes.
struct Body {
  std::string name;
  When when;
  Table<StreamId, Stream> streams;
  DataSource data;     // what its next_batch reads; a body that runs several times in a row reads one batch in each
  TensorId loss;       // scalar that holds the global mean after a run; -1: none
  TensorId norm = {};  // scalar that holds the norm of all gradients before clipping; -1: none
  Repeat repeat = {};  // ops that are listed once and run several times
  int64_t op_count() const;  // listed
};
inline constexpr BodyId kInitBody = 0, kStepBody = 1;

// Where a program computes besides its buffers: what the step table holds.
struct Schedule {
  int64_t steps = 1;
  RunPosition begin;  // of this run: the steps before it are in the checkpoint that it begins with
  uint64_t seed = 0;
  LearningRate learning_rate;
  // A step whose gradients have no finite norm updates nothing, and the run ends after so many in a row; 0: nobody
  // looks. 1: the run ends with the first, and also where the loss is not finite.
  int64_t most_skips = 0;
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
  std::string initial_weights;  // path of those that the run begins with; "": made by init_params
  Mesh mesh;
  std::string device = "cpu";
  bool rank_order = false;  // reductions sum in rank order
  Table<BufferId, Buffer> buffers;
  Table<TensorId, Tensor> tensors;
  std::vector<Pool> pools;
  std::vector<StateTensor> state;  // what a checkpoint holds of this class
  // What runs once before step 0, the step, then what runs between steps, in the order in which it runs.
  Table<BodyId, Body> bodies = {{"init", {0}, {}, {}, {}}, {"step", {1}, {}, {}, {}}};
  Schedule schedule;
  int64_t tokens_per_step = 0;  // global; samples when the data has no tokens
  std::string sample_word = "tokens";
  int64_t arena_bytes = 0;
  int64_t role_bytes[kRoles] = {};  // how the arena divides
  int64_t host_arena_bytes = 0;     // of the arena in the host's memory; 0: there is none
  int64_t host_role_bytes[kRoles] = {};

  Body& init() { return bodies[kInitBody]; }
  Body& step() { return bodies[kStepBody]; }
  const Body& init() const { return bodies[kInitBody]; }
  const Body& step() const { return bodies[kStepBody]; }
};

inline int64_t arena_bytes(const Program& program, Space space) {
  return space == Space::host ? program.host_arena_bytes : program.arena_bytes;
}

// Returns the position after `step` steps, counted from the position that the run begins at. Steps that the run itself
// skips are not counted as skipped.
RunPosition position_after(const Program& program, int64_t step);

// The programs of all ranks: equal ones are one class.
struct Job {
  std::vector<Program> classes;
  std::vector<int> class_of_rank;
  Numerics numerics;  // of all ranks; empty until the launcher has settled them
  const Program& program(int rank) const { return classes[class_of_rank[rank]]; }
};

// Binary form (ir/serialize.cc). `parse_job` throws Error(mismatch) on bytes that are not a job of this version.
std::string serialize_job(const Job& job);
Job parse_job(std::string_view bytes);
std::string job_hash(std::string_view bytes);  // SHA-256, 64 hex digits

// Text form (ir/dump.cc): stable, golden-tested, one op a line.
std::string dump_job(const Job& job);
std::string dump_op(const Program& program, const Op& op);  // one line without stream and index

}  // namespace prun
