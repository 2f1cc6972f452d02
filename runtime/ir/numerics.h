// The choices that determine a job's rounding and are not in its plan. A checkpoint stores them, and a resumed run
// makes the same ones, so that its losses continue bitwise.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "base/named_field.h"

namespace prun {

struct Numerics {
  std::string kernels;         // kernels of all CPU ranks, e.g. "avx512+pairs" (kernel_choice.h); "" = no choice
  int64_t arithmetic = 0;      // version of the arithmetic of these kernels (cpu::kArithmetic); 0 = no choice
  std::string implementation;  // Device::numerics of node 0: the device and its libraries
  std::optional<std::string> algorithms;  // WorldOptions::algorithm_costs; nullopt = unknown

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(field("kernels", kernels), field("arithmetic", arithmetic), field("implementation", implementation),
           optional_field("algorithms", algorithms));
  }
};

}  // namespace prun
