// --device-options: "key=value,key=value".
#pragma once
#include <cstddef>

struct prun_op;

namespace prun::cuda {

struct Options {
  bool cudnn = true;          // attention by cuDNN, if it is available and supports the shape
  bool tf32 = false;          // f32 GEMMs on tensor cores, operands rounded to 10 bits of mantissa
  bool autotune = false;      // the fastest of cuBLASLt's algorithms by measurement (blas_choice.h)
  bool deterministic = true;  // bitwise identical in every run; otherwise cuDNN's gradient adds in any order
  // Upper bound in bytes of the scratch of cuDNN's gradient of attention; a batch is processed in slices that fit.
  size_t attention_workspace = size_t{1} << 30;
};

// Returns the options with which a program was compiled. Throws as parse_options does.
Options options_of(const prun_op& op);
// Parses `text`, which may be null. Throws Failure(PRUN_EINVAL) with the wrong key or value, and the possible ones.
Options parse_options(const char* text);

}  // namespace prun::cuda
