// bf16 GEMMs by oneDNN, for shapes on which it is faster than the driver's backends.
//
// Surprising fact: oneDNN reads the number of threads from OpenMP's setting of the calling thread, both when a
// primitive is created and when it runs. OnednnGemm sets it each time, so one process may mix kernels of different
// widths.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cpu/gemm/gemm.h"

namespace prun::cpu {

std::string onednn_version();  // "oneDNN 2.7.2"
// Returns whether oneDNN has brgemm for this shape on this machine.
bool onednn_has(const GemmShape& shape);
int64_t onednn_scratch_bytes(const GemmShape& shape);

class OnednnGemm {
 public:
  OnednnGemm(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c, void* scratch);
  ~OnednnGemm();
  void run() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace prun::cpu
