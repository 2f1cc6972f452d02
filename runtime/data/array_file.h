// The header of a .npy file, versions 1 to 3 (numpy's format.py): element type and shape of the array that follows.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/element.h"

namespace prun {

struct ArrayHeader {
  Element element = Element::f32;
  std::vector<int64_t> shape;
  int64_t skip_bytes = 0;  // where the numbers begin
};

// `begin`: the first kArrayHeaderMost bytes of the file, or all there are. Throws plan_error with what is wrong in
// words and, where there is one, the call of numpy that mends it.
inline constexpr int64_t kArrayHeaderMost = 4096;
ArrayHeader parse_array_header(std::string_view begin);

}  // namespace prun
