// The NVIDIA driver as the system shows it, without a call to CUDA.
#pragma once
#include <string>

namespace prun::cuda {

struct Driver {
  bool library = false;  // libcuda.so.1 can be loaded
  bool module = false;   // the kernel's part is there
  std::string version;   // "580.65.06", of the kernel's part; "" unknown
  int gpus = 0;          // that the kernel's part drives, whatever CUDA_VISIBLE_DEVICES says
};
Driver find_driver();

}  // namespace prun::cuda
