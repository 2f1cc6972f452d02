// The state of an optimizer that keeps means of squared gradients over rows and columns instead of a tensor of the
// parameters' shape (OptimizerTraits::factored). Means that are sums over the same axes share one vector, so that one
// all-reduce completes those of all units.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "compile/compile_state.h"

namespace prun {

// The means of one parameter over its rows or columns, or of a vector for each element.
struct FactoredMean {
  Value value;           // name, shape and split, as of a parameter
  size_t parameter = 0;  // number in the unit
  size_t in = 0;         // index of the vector
  int64_t at = 0;        // first element in the unit's part of it
};

struct FactoredUnit {
  std::vector<std::string> mean_axes, norm_axes;      // axes of the sums of each vector: "dp,tp"; "" = none
  std::vector<int64_t> mean_elements, norm_elements;  // of the unit's part of each vector, padded to cache lines
  std::vector<FactoredMean> means;
  Attrs lists;  // attributes of the unit's ops (prun/sdk/factored_updates.h)
};
FactoredUnit factored_unit(const CompileState& state, UnitId unit);

// Returns whether the unit's optimizer keeps such means, and this rank updates the unit.
bool is_factored(const CompileState& state, UnitId unit);

// The vectors of all units by axes: the elements so far.
class FactoredVectors {
 public:
  // Appends a unit's part; returns its first element.
  int64_t append(const std::string& axes, int64_t elements) {
    const int64_t first = elements_[axes];
    elements_[axes] += elements;
    return first;
  }
  const std::map<std::string, int64_t>& elements() const { return elements_; }

 private:
  std::map<std::string, int64_t> elements_;
};

// Adds the persistent vectors and sets UnitStorage::factors.
void place_factors(CompileState& state);

}  // namespace prun
