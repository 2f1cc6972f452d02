// Gradients of parameters: where backward writes them, and how the strategies' hooks reduce them.
#pragma once
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compile/op_emitter.h"
#include "compile/step_index.h"

namespace prun {

class GradientBuckets {
 public:
  GradientBuckets(CompileState& state, OpEmitter& emitter, const StepIndex& index);

  // A parameter of a unit whose whole gradient a value is.
  struct Target {
    UnitId unit;
    int parameter;
  };
  // Null: the value is no parameter's whole gradient.
  const Target* target_of(ValueId value) const;
  TensorId tensor(const Target& target, const ScheduleStep& step);
  // What the half of the inputs makes of a sharded unit's gradient, whose bucket opens with the half of the weights:
  // `take_early` copies it there.
  void keep_early(const Target& target, TensorId tensor, const ScheduleStep& step);
  void take_early(const ScheduleStep& step);
  // A twin's parameter that only the other rank uses has no gradient here, and gaps are scattered with what lies
  // around them. Buckets of shards are zeroed when they open.
  void zero_missing(const ScheduleStep& step);
  // Gradients that are parts of a sum over an axis that divides activations only (norms under sequence parallelism):
  // summed when the last microbatch has added its own, or where they leave earlier, each time.
  void sum_partial(const ScheduleStep& step);

  // Reduces what backward has made of a unit, in the way in which each part of it is kept: sharded or whole.
  void reduce(const ScheduleStep& step, int strategy, const HookAction& action);
  // Sends the buckets that have not filled; then throws for a gradient that ends the step partial, which is a wrong
  // result on more than one rank.
  void finish();

 private:
  struct Bucket {  // unreduced gradient of a sharded unit
    TensorId flat;
    int slot = -1, microbatch = -1;
    bool reduced = true;
  };
  struct PendingReduce {  // consecutive gradients of units that are not sharded, waiting for their bucket to fill
    int64_t first = -1, end = 0;  // elements of the flat gradient buffer
    int buckets = 0;
    HookAction action;
    ScheduleStep step;
  };
  struct EarlyGradient {
    Target target;
    TensorId tensor;
  };
  TensorId whole_gradient_of(UnitId unit, const ScheduleStep& step);
  void open_bucket(UnitId unit, const ScheduleStep& step);
  void zero_gaps(UnitId unit, TensorId flat, const ScheduleStep& step, const Site& site);
  bool reduce_part(const ScheduleStep& step, UnitId unit, int strategy, const HookAction& action);
  void scale_split(UnitId unit, const ScheduleStep& step, const HookAction& action);
  void reduce_scatter(const ScheduleStep& step, UnitId unit, const HookAction& action);
  void all_reduce(const ScheduleStep& step, UnitId unit, int strategy, const HookAction& action);
  void all_reduce_shard(const ScheduleStep& step, UnitId unit, const HookAction& action);
  void over_wire(const OpDef& def, TensorId from, TensorId to, const HookAction& action, const ScheduleStep& step);
  void flush(int strategy, bool all);
  // Of the tensors in the flat buffer of gradients that are not sharded, in elements, ascending.
  std::vector<int64_t> tensor_ends() const;
  std::set<int64_t> last_ends(const PendingReduce& pending, const std::vector<int64_t>& ends) const;
  void emit_all_reduce(PendingReduce& pending, int64_t end);
  void require_whole(UnitId unit, const ScheduleStep& step, const HookAction& action);
  void reduced_once(UnitId unit, const HookAction& action);

  CompileState& state_;
  OpEmitter& emitter_;
  const StepIndex& index_;
  std::map<ValueId, Target> targets_;
  Table<UnitId, Bucket> buckets_;
  std::map<int, PendingReduce> pending_;                                // by strategy
  Table<UnitId, std::vector<std::string>> reduced_over_;                // axes
  std::map<std::pair<CallId, int>, std::vector<EarlyGradient>> early_;  // by call and microbatch
};

}  // namespace prun
