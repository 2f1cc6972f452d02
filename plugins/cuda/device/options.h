// --device-options: "key=value,key=value".
#pragma once
#include <cstddef>

struct prun_op;

namespace prun::cuda {

struct Options {
  bool cudnn = true;          // attention by cuDNN, where it is there and can do it
  bool tf32 = false;          // products of f32 on tensor cores, their operands rounded to 10 bits of mantissa
  bool autotune = false;      // the fastest of cuBLASLt's algorithms by measurement (blas_choice.h)
  bool deterministic = true;  // the same bits in every run; else cuDNN's gradient of attention adds in any order
  // Bytes of scratch that cuDNN's gradient of attention may take; a batch goes through in slices that fit.
  size_t attention_workspace = size_t{1} << 30;
};

// Those that a program is compiled with. Throws as parse_options.
Options options_of(const prun_op& op);
// `text` may be null. Throws Failure(PRUN_EINVAL): the key or the value, and what it could have been.
Options parse_options(const char* text);

}  // namespace prun::cuda
