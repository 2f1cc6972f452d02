// The angle a token of each pair that rotary turns, from the op's attributes.
#pragma once
#include <cstdint>
#include <vector>

#include "ir/attrs.h"

namespace prun::cpu {

std::vector<double> rotary_speeds_of(const Attrs& attrs, int64_t half);

}  // namespace prun::cpu
