// A core's peak rate of bf16 FMAs, for product_bench.
#pragma once
#include <cstdint>

namespace prun {

// Runs on registers alone. `run` is null if the CPU has no bf16 multiplication; GEMMs then run at the f32 rate.
struct Bf16Loop {
  double flops = 0;  // FLOPs per run
  void (*run)() = nullptr;
};
Bf16Loop bf16_loop();

}  // namespace prun
