// Maps the elements of a rank's flat vector to parameters, from the attributes of init_params: for their
// initialization, and for comparisons with another rank's.
#pragma once
#include <cstdint>
#include <vector>

#include "device/device.h"

namespace prun {

struct ParameterElement {
  int64_t here = 0;       // offset in the rank's vector
  int64_t parameter = 0;  // index among the parameters that the op lists
  int64_t key = 0;        // key of the parameter, the same on every mesh
  int64_t whole = 0;      // offset in the whole parameter
};

// Returns the elements of the `count` that an init_params with these attributes writes on the rank of `memory`, in
// order, without padding.
std::vector<ParameterElement> parameter_elements(const Attrs& attrs, int64_t count, const RankMemory& memory);

}  // namespace prun
