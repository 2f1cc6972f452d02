// Replaces the toolkit's header: CUDA C++ for an ordinary C++ compiler, so that kernels run on the CPU.
#pragma once
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <tuple>
#include <type_traits>
#include <utility>

#include "../kernel.h"
#include "../meetings.h"
#include "../numbers.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __shared__ thread_local  // a block's threads all run in one thread of the CPU
#define __constant__
#define __launch_bounds__(...)
#define __grid_constant__
#define PRUN_SHARED(name) unsigned char* const name = ::substitute::dynamic_shared

namespace substitute {
inline thread_local char first_shared;  // any address in the thread-local memory of this library
}

template <class... Params, class... Args>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Params...), Args&&... args) {
  auto body = [kernel, all = std::tuple<std::remove_const_t<Params>...>(std::forward<Args>(args)...)] {
    auto copy = all;  // every thread has its own copy of the parameters
    std::apply(kernel, copy);
  };
  return substitute::launch_kernel(*config, reinterpret_cast<const void*>(kernel), std::move(body),
                                   []() -> const void* { return &substitute::first_shared; });
}
template <class... Params>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Params...), cudaFuncAttribute attribute, int value) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), attribute, value);
}
