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
  // Muon (muon.cc): updates whose directions are orthogonalized matrix by matrix, each by one rank of the mesh.
  struct Matrix {
    size_t unit = 0;                // index in MatrixGroup::units
    int64_t start = 0;              // first element in the unit's vector, or in each rank's part of it
    int64_t rows = 0, columns = 0;  // of a rank's part, if ranks have parts
    int joined = 0;                 // what the ranks' parts divide: 0 = nothing, 1 = rows, 2 = columns
    int64_t parts = 1;
    double scale = 1;               // of the update
    int64_t owner = 0, offset = 0;  // element in the owner's chunk
    int64_t count() const { return rows * columns; }
    int64_t elements() const { return count() * parts; }
    double cost() const;
  };
  struct MatrixGroup {
    std::vector<UnitId> units;
    std::vector<std::string> joins;  // of each unit: the axis over which its matrices are joined; "" = none
    std::vector<Matrix> matrices;
    std::vector<double> work;  // of each owner, in this group
  };
  void update_by_matrix(UnitId unit, TensorId clip);
  std::vector<std::string> owner_axes(UnitId unit) const;
  void own(MatrixGroup& group, const std::string& axes);
  void finish_group(const std::string& axes, TensorId clip);
  TensorId direction(UnitId unit, const std::string& join, TensorId clip);
  TensorId orthogonalized(const MatrixGroup& group, const std::vector<TensorId>& directions, const std::string& axes,
                          int64_t& chunk);
  void finish(UnitId unit, const Updated& what, bool casts);
  // Adafactor (adafactor.cc): updates by means over rows and columns, which ranks with parts of them all-reduce.
  void update_by_factors(const std::vector<UnitId>& ids, TensorId clip);
  void follow(UnitId unit, TensorId parameters, TensorId average);
  // Updates a unit whose optimizer state is in host memory (offload.cc). `last`: the final update of the step.
  void update_offloaded(UnitId unit, TensorId clip, bool last);
  void transfer(const OpDef& def, TensorId from, TensorId to, StreamId stream, UnitId unit);

  CompileState& state_;
  OpEmitter& emitter_;
  std::map<std::string, MatrixGroup> groups_;        // by the axes whose ranks share the matrices
  std::map<std::string, std::vector<double>> work_;  // of each owner so far
};

}  // namespace prun
