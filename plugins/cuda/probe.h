// What is here, before anything is opened, and why it cannot be used, in words that say what to do.
#pragma once
#include <string>

#include "prun/device.h"

namespace prun::cuda {

// "13.0" of 13000.
std::string cuda_version(int code);

// How many devices CUDA sees; otherwise the problem in one line, and 0.
std::string find_devices(int& devices);

// "there is no GPU 3: this machine has GPUs 0 to 1".
std::string no_such_device(int index, int devices);

// Both make CUDA's state in this process: a child that is forked later cannot use CUDA.
void probe_machine(prun_device_probe& probe);
void describe_device(int index, prun_device_info& info);  // throws Failure

}  // namespace prun::cuda
