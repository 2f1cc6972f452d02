// What the benchmarks of the CUDA device share: the plugin, loaded as prun loads it, ops over memory of random numbers,
// and times on the GPU.
//
// Surprising fact: both sides of a figure run in turn, in one process, over the same memory: a GPU's clock follows its
// temperature, and figures taken apart would compare that.
#pragma once
#include <cuda_runtime_api.h>

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "device/queue_device.h"
#include "prun/device.h"

namespace prun::bench {

struct BenchOperand {
  void* data;
  std::vector<int64_t> dims;
  int dtype;
};

struct BenchOp {
  const char* kind;
  std::vector<BenchOperand> reads, writes;
  std::vector<prun_attr> attrs;
};

inline prun_attr integer_attr(const char* name, int64_t value) {
  return {name, PRUN_ATTR_INTEGER, value, 0, nullptr, nullptr, nullptr, 0};
}

// Ours and the best that a library has for the same work.
struct Figure {
  std::string group, what;
  double flops = 0;
  double ours = 0, best = 0;  // microseconds; best 0: the library has nothing
  std::string best_is;        // "algorithm 66, tile 23 of 12"
  bool judged = true;         // false: for information, held to nothing
  std::string problem = {};   // it could not be measured
  double rate(double microseconds) const { return flops / microseconds * 1e-6; }  // TFLOP/s
};

// Throws std::runtime_error or Error: what is missing, or what failed.
class CudaBench {
 public:
  explicit CudaBench(const std::string& options);  // as --device-options
  ~CudaBench();
  CudaBench(const CudaBench&) = delete;
  CudaBench& operator=(const CudaBench&) = delete;

  std::string gpu() const { return gpu_; }  // "NVIDIA H200"
  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_.queue().handle); }
  bool quick = false;  // few repetitions
  bool small = false;  // tiny shapes: whether it runs, not how fast

  // Random numbers in [-1, 1). It lives until `forget`.
  BenchOperand tensor(std::vector<int64_t> dims, int dtype);
  void* bytes(size_t count);
  void forget();  // all memory and kernels

  // What enqueues the op on the stream. Valid until `forget`.
  std::function<void()> op(const BenchOp& op);

  // Medians in microseconds of each, taken in turn.
  std::vector<double> times(const std::vector<std::function<void()>>& runs) const;
  double short_time(const std::function<void()>& run) const;

 private:
  double time(const std::function<void()>& run, int repetitions) const;

  std::unique_ptr<Device> cuda_;
  QueueDevice device_;
  DeviceStream stream_;
  DeviceMemory values_;
  cudaEvent_t from_ = nullptr, to_ = nullptr;
  std::string gpu_;
  std::list<DeviceMemory> memory_;
  std::list<DeviceKernel> kernels_;
};

void check(cudaError_t error, const char* call);

// Runs `measure`; what it throws becomes a figure without times, and the others go on.
void measure_or_say(const Figure& of, const std::function<void()>& measure,
                    const std::function<void(const Figure&)>& report);

// The families, a file each; cuda_kernel_bench.cc lists them. `only`: a part of the names of what to measure, or "".
void gemm_figures(CudaBench& bench, const std::string& only, const std::function<void(const Figure&)>& report);
void attention_figures(CudaBench& bench, const std::string& only, const std::function<void(const Figure&)>& report);

}  // namespace prun::bench
