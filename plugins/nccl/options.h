// The plugin's options, "key=value,key=value". All ranks need the same ones; the core checks it when they join.
#pragma once
#include <string>

namespace prun::nccl {

struct Options {
  std::string library;             // file of NCCL; "" = libnccl.so.2 as the loader finds it
  std::string cudart;              // file of the CUDA runtime; "" = as the loader finds it
  int device = -1;                 // CUDA device; -1 = the rank's compute device, else its number on its host
  bool check = true;               // compare calls and sizes between ranks
  bool register_buffers = true;    // ncclCommRegister for memory of mem_reg and mem_alloc
  std::string cta_policy;          // default, efficiency, zero; since NCCL 2.28
  int min_ctas = 0, max_ctas = 0;  // thread blocks; 0 = NCCL's choice, bounded by the device
  bool share = false;              // ranks may share a GPU; for tests
  bool split_share = false;        // communicators of the same ranks share NCCL's resources
  int abort_ms = 5000;             // longest wait of close for ncclCommAbort and ncclCommDestroy
};

// Parses `text`, which may be null. Throws Failure(PRUN_EINVAL) that names the key or value and the closest valid one.
Options parse_options(const char* text);

}  // namespace prun::nccl
