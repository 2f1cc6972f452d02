// Finds the GPUs of this machine before any is opened. A GPU that cannot be used has a message with the fix.
#pragma once
#include <cuda_runtime_api.h>

#include <string>

#include "prun/device.h"
#include "prun/health.h"

namespace prun::cuda {

int attribute(cudaDeviceAttr which, int device);  // throws Failure, like capability_of
int capability_of(int device);                    // 90 for sm_90

// Returns "13.0" for 13000.
std::string cuda_version(int code);

// Sets `devices` to the number that CUDA sees and returns ""; otherwise sets 0 and returns the problem in one line.
std::string find_devices(int& devices);

// Throws Failure(PRUN_ENOTSUP) with the reason if no device of this number can be used.
int expect_device(int index);  // returns the number of devices

// probe_machine and describe_device create CUDA's state in this process, so a child that is forked later cannot use
// CUDA.
void probe_machine(prun_device_probe& probe);
void describe_device(int index, prun_device_info& info);  // throws Failure

// health.cc: reports facts of a GPU that matter before a job: its modes, its memory errors, and its connections to
// other GPUs. Opens the GPU, so it must run in a process of its own. Throws Failure.
void examine_device(int index, prun_health_report& report);

// The NVIDIA driver as the system shows it, without a call to CUDA.
struct Driver {
  bool library = false;  // libcuda.so.1 can be loaded
  bool module = false;   // the kernel module is loaded
  std::string version;   // version of the kernel module, "580.65.06"; "" = unknown
  int gpus = 0;          // number of GPUs that the kernel module drives, regardless of CUDA_VISIBLE_DEVICES
};
Driver find_driver();

}  // namespace prun::cuda
