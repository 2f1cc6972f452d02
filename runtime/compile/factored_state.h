// The state of an optimizer that keeps means of squared gradients over rows and columns instead of a tensor of the
// parameters' shape (OptimizerTraits::factored). Means that are sums over the same axes share one vector, so that one
// all-reduce completes those of all units.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "compile/compile_state.h"

namespace prun {

// The means of one parameter over its rows or columns, or of a vector for each element.
struct FactoredMean {
  Value value;        // name, shape and split, as of a parameter
  size_t vector = 0;  // index in FactoredUnit::means
  int64_t start = 0;  // first element in the unit's part of the vector
};

// A unit's parts of vectors: the axes over which ranks add each up ("dp,tp"; "" = none), and the elements of the part,
// padded to cache lines.
struct FactoredParts {
  std::vector<std::string> axes;
  std::vector<int64_t> elements;
};

struct FactoredUnit {
  FactoredParts means, norms;
  std::vector<FactoredMean> listed;
  Attrs lists;  // attributes of the unit's ops (prun/sdk/factored_updates.h)
};
FactoredUnit factored_unit(const CompileState& state, UnitId unit);

// Returns whether the unit's optimizer keeps such means, and this rank updates the unit.
bool is_factored(const CompileState& state, UnitId unit);

// One vector for each set of axes, in which each unit has a part.
class FactoredVectors {
 public:
  explicit FactoredVectors(const char* name) : name_(name) {}
  void append(const FactoredParts& parts);
  // Adds the vectors with `add(name, elements)`, which returns a tensor.
  void add(const std::function<TensorId(const std::string&, int64_t)>& add);
  // Returns the parts of the unit that was appended as number `unit`, as views.
  std::vector<TensorId> parts_of(Program& program, size_t unit, const std::string& unit_name) const;
  const std::map<std::string, TensorId>& by_axes() const { return tensors_; }

 private:
  struct Part {
    std::string axes;
    int64_t start, elements;
  };
  const char* name_;
  std::vector<std::vector<Part>> units_;
  std::map<std::string, int64_t> elements_;  // so far, by axes
  std::map<std::string, TensorId> tensors_;
};

// Adds the persistent vectors and sets UnitStorage::factors.
void place_factors(CompileState& state);

}  // namespace prun
