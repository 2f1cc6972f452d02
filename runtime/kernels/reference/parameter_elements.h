// Which elements of which parameters a rank's flat vector holds, by the attributes of init_params: for who initializes
// them, and for who compares them with another rank's.
#pragma once
#include <cstdint>
#include <vector>

#include "device/device.h"

namespace prun {

struct ParameterElement {
  int64_t here = 0;       // in the rank's vector
  int64_t parameter = 0;  // of those that the op lists
  int64_t key = 0;        // the parameter's, the same on every mesh
  int64_t whole = 0;      // element of the whole parameter
};

// Of the `count` elements that an init_params with these attributes writes on the rank that `memory` names, without
// padding, in order.
std::vector<ParameterElement> parameter_elements(const Attrs& attrs, int64_t count, const RankMemory& memory);

}  // namespace prun
