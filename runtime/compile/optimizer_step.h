// The end of a step: global norm, clip coefficient, and one update per unit.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "compile/op_emitter.h"

namespace prun {

class OptimizerStep {
 public:
  OptimizerStep(CompileState& state, OpEmitter& emitter) : state_(state), emitter_(emitter) {}
  void run();

 private:
  struct Updated {
    TensorId grad, master;
    std::vector<TensorId> states;
    TensorId compute;   // none = parameters have the master's dtype
    int64_t first = 0;  // first element: of the unit's vector, or of each rank's shard
  };
  enum class Wave { early, last_but_one, last };  // order in which reductions complete gradients
  std::map<UnitId, Wave> waves_of(const std::vector<UnitId>& units);
  std::vector<UnitId> by_readiness(const std::vector<UnitId>& units);
  TensorId clip_coefficient(const std::vector<UnitId>& units);
  TensorId scalar(const std::string& name, Dtype dtype = Dtype::f64);
  TensorId add(TensorId a, TensorId b, const char* name);
  TensorId norm2(const std::vector<TensorId>& tensors, Attrs attrs, const std::string& name,
                 const std::string& unit = "");
  void sum_over(const std::string& axis, TensorId tensor);
  void update(UnitId unit, TensorId clip, const Updated& what);
  void follow(UnitId unit, TensorId parameters, TensorId average);
  // Updates a unit whose optimizer state is in host memory (offload.cc). `last`: the final update of the step.
  void update_offloaded(UnitId unit, TensorId clip, bool last);
  void transfer(const OpDef& def, TensorId from, TensorId to, StreamId stream, UnitId unit);

  CompileState& state_;
  OpEmitter& emitter_;
};

}  // namespace prun
