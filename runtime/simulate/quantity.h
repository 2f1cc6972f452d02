// Numbers with units, as cluster files have them: "312 TFLOP/s", "24 GB/s", "100 Gbit/s", "80 GiB", "4 us".
#pragma once
#include <cstdint>
#include <string>

namespace prun::simulate {

enum class Unit : uint8_t { none, seconds, bytes, bandwidth, flops };

// In seconds, bytes, bytes/s or FLOP/s. Throws usage_error without a place: wrong or missing units, NaN, infinity,
// negative numbers.
double read_quantity(const std::string& text, Unit unit);

}  // namespace prun::simulate
