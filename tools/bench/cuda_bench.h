// Shared parts of the CUDA device's benchmarks: the plugin, loaded as prun loads it, ops over memory with random
// numbers, and GPU timing.
//
// Surprising fact: both sides of a figure run alternately in one process over the same memory, because a GPU's clock
// depends on its temperature, which would distort separate runs.
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

// The times of our op and of a library's best for the same work.
struct Figure {
  std::string group, what;
  double flops = 0;
  double ours = 0, best = 0;  // microseconds; best = 0: not in the library
  std::string best_is;        // "algorithm 66, tile 23 of 12"
  bool judged = true;         // false: for information, without a bar
  std::string problem = {};   // why it could not be measured
  double rate(double microseconds) const { return flops / microseconds * 1e-6; }  // TFLOP/s
};

// Throws std::runtime_error or Error if something is missing or fails.
class CudaBench {
 public:
  explicit CudaBench(const std::string& options);  // options: those of --device-options
  ~CudaBench();
  CudaBench(const CudaBench&) = delete;
  CudaBench& operator=(const CudaBench&) = delete;

  std::string gpu() const { return gpu_; }  // for example "NVIDIA H200"
  cudaStream_t stream() const { return static_cast<cudaStream_t>(stream_.queue().handle); }
  bool quick = false;  // few repetitions
  bool small = false;  // tiny shapes, to test that it runs

  // Returns random numbers in [-1, 1). They live until `forget`.
  BenchOperand tensor(std::vector<int64_t> dims, int dtype);
  void* bytes(size_t count);
  void forget();  // frees all memory and kernels

  // Returns a function that enqueues the op on the stream. Valid until `forget`.
  std::function<void()> op(const BenchOp& op);

  // Returns the median of each in microseconds, measured alternately.
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

// Runs `measure`; an exception becomes a figure without times, so that the other figures are still measured.
void measure_or_say(const Figure& of, const std::function<void()>& measure,
                    const std::function<void(const Figure&)>& report);

// The families, one file each; cuda_kernel_bench.cc lists them. `only`: part of the names to measure, or "".
void gemm_figures(CudaBench& bench, const std::string& only, const std::function<void(const Figure&)>& report);
void experts_figures(CudaBench& bench, const std::string& only, const std::function<void(const Figure&)>& report);
void memory_figures(CudaBench& bench, const std::string& only, const std::function<void(const Figure&)>& report);
void attention_figures(CudaBench& bench, const std::string& only, const std::function<void(const Figure&)>& report);

}  // namespace prun::bench
