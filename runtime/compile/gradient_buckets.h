// Gradients of parameters: where backward writes them, and their reduction by the strategies' hooks.
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

  // A parameter, as the target of its whole gradient.
  struct Target {
    UnitId unit;
    int parameter;
  };
  // Returns the parameter whose whole gradient `value` is; null = none.
  const Target* target_of(ValueId value) const;
  TensorId tensor(const Target& target, const ScheduleStep& step);
  // Returns the call of the unit whose backward is last.
  CallId last_backward_of(UnitId unit) const;
  // Keeps a gradient that the input half of backward, or an earlier call of a tied unit, computes for a sharded unit;
  // the bucket opens with the weight half of the unit's last call, when `take_early` copies the gradient there.
  void keep_early(const Target& target, TensorId tensor, const ScheduleStep& step);
  void take_early(const ScheduleStep& step);
  // Zeros gradients without a writer: a twin's parameter that only the other rank uses, and gaps of the layout, which
  // are reduced with their neighbors. Buckets of shards are zeroed when they open.
  void zero_missing(const ScheduleStep& step);
  // Reduces gradients that are partial sums over an axis that splits activations only (norms under sequence
  // parallelism): after the last microbatch, or after each one if buckets are issued after each one.
  void sum_partial(const ScheduleStep& step);

  // Reduces the gradients of a unit: those of sharded parts to shards, all others whole. Throws plan_error for a hook
  // that fits no part.
  void reduce(const ScheduleStep& step, int strategy, const HookAction& action);
  // Reduces the remaining buckets. Throws plan_error for a gradient that ends the step partial, because the result
  // would be wrong on more than one rank.
  void finish();

 private:
  struct Bucket {  // unreduced gradient of a sharded unit
    TensorId flat;
    int slot = -1, microbatch = -1;
    bool reduced = true;
  };
  struct Scattered {  // a gradient between the reductions over the axes that shard it
    TensorId piece;
    int axes = 0, microbatch = -1;
  };
  struct PendingReduce {          // consecutive gradients of units that are not sharded, until their bucket is full
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
  void scale_split(UnitId unit, const ScheduleStep& step, int strategy, const HookAction& action);
  void reduce_scatter(const ScheduleStep& step, UnitId unit, const HookAction& action);
  void scatter(const ScheduleStep& step, UnitId unit, const HookAction& action);
  void all_reduce(const ScheduleStep& step, UnitId unit, int strategy, const HookAction& action);
  void all_reduce_shard(const ScheduleStep& step, UnitId unit, const HookAction& action);
  void over_wire(const OpDef& def, TensorId from, TensorId to, const HookAction& action, const ScheduleStep& step);
  void flush(int strategy, bool all);
  // Returns the ends of tensors in the flat gradient buffer, in elements, ascending.
  std::vector<int64_t> tensor_ends() const;
  std::set<int64_t> last_ends(const PendingReduce& pending, const std::vector<int64_t>& ends) const;
  void emit_all_reduce(PendingReduce& pending, int64_t end);
  void require_whole(UnitId unit, const ScheduleStep& step, const HookAction& action);
  void reduced_once(UnitId unit, const HookAction& action);

  CompileState& state_;
  OpEmitter& emitter_;
  const StepIndex& index_;
  int64_t most_parts_ = 0;  // parts of one unit whose gradients are unreduced at once
  std::map<ValueId, Target> targets_;
  Table<UnitId, Bucket> buckets_;
  Table<UnitId, Scattered> scattered_;
  std::map<int, PendingReduce> pending_;                                // by strategy
  Table<UnitId, std::vector<std::string>> reduced_over_;                // axes
  std::map<std::pair<UnitId, std::string>, int> scaled_by_;             // (unit, axis that splits it) -> strategy
  std::map<std::pair<CallId, int>, std::vector<EarlyGradient>> early_;  // by call and microbatch
};

}  // namespace prun
