// The multiply-adds of bf16 that a core can do at most, for product_bench.
#pragma once
#include <cstdint>

namespace prun {

// Runs on registers alone. Where the CPU multiplies no bf16, `run` is null: its products are f32's.
struct Bf16Loop {
  double flops = 0;  // of one run
  void (*run)() = nullptr;
};
Bf16Loop bf16_loop();

}  // namespace prun
