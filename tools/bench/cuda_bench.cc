#include "tools/bench/cuda_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>

#include "kernels/devices.h"

namespace prun::bench {
namespace {

constexpr size_t kDtypeBytes[] = {8, 4, 2, 2, 8, 4, 1, 1};  // by prun_dtype

// Random numbers with which memory is filled repeatedly; no kernel's time depends on their order.
std::vector<char> pattern(int dtype) {
  constexpr size_t kCount = size_t{1} << 20;
  std::mt19937 random(1);
  std::uniform_real_distribution<float> real(-1, 1);
  std::vector<char> bytes(kCount * kDtypeBytes[dtype]);
  for (size_t i = 0; i < kCount; ++i) {
    const float x = real(random);
    if (dtype == PRUN_F32) {
      std::memcpy(&bytes[i * 4], &x, 4);
    } else if (dtype == PRUN_BF16) {
      std::memcpy(&bytes[i * 2], reinterpret_cast<const char*>(&x) + 2, 2);  // the high half, on a little-endian host
    }
  }
  return bytes;
}

}  // namespace

void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw std::runtime_error(fmt::format("{}: {}", call, cudaGetErrorString(error)));
}

void measure_or_say(const Figure& of, const std::function<void()>& measure,
                    const std::function<void(const Figure&)>& report) {
  try {
    measure();
  } catch (const std::exception& error) {
    Figure figure = of;
    figure.problem = error.what();
    report(figure);
  }
}

CudaBench::CudaBench(const std::string& options)
    : cuda_(open_device("cuda")),
      device_(*cuda_->queue(), 0, options),
      stream_(device_),
      values_(device_, sizeof(prun_step_values), PRUN_PLACE_DEVICE) {
  prun_device_info info{};
  info.size = sizeof info;
  device_.call("describing it", [&](prun_result* result) { return device_.table().describe(0, &info, result); });
  gpu_ = info.name;
  stream_.zero(values_.get(), sizeof(prun_step_values));
  check(cudaEventCreate(&from_), "cudaEventCreate");
  check(cudaEventCreate(&to_), "cudaEventCreate");
}

CudaBench::~CudaBench() {
  cudaStreamSynchronize(stream());
  cudaEventDestroy(from_);
  cudaEventDestroy(to_);
}

void* CudaBench::bytes(size_t count) {
  return memory_.emplace_back(device_, static_cast<int64_t>(std::max<size_t>(count, 1)), PRUN_PLACE_DEVICE).get();
}

BenchOperand CudaBench::tensor(std::vector<int64_t> dims, int dtype) {
  size_t count = kDtypeBytes[dtype];
  for (const int64_t dim : dims) count *= static_cast<size_t>(dim);
  BenchOperand operand{bytes(count), std::move(dims), dtype};
  const std::vector<char> numbers = pattern(dtype);
  char* const data = static_cast<char*>(operand.data);
  const size_t first = std::min(numbers.size(), count);
  check(cudaMemcpy(data, numbers.data(), first, cudaMemcpyHostToDevice), "cudaMemcpy");
  // The remaining memory repeats it by device copies, because gigabytes from the host take seconds.
  for (size_t at = first; at < count; at += std::min(at, count - at))
    check(cudaMemcpy(data + at, data, std::min(at, count - at), cudaMemcpyDeviceToDevice), "cudaMemcpy");
  check(cudaStreamSynchronize(nullptr),
        "cudaStreamSynchronize");  // these copies are asynchronous, and `stream` does not wait for them
  return operand;
}

void CudaBench::forget() {
  check(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  kernels_.clear();
  memory_.clear();
}

std::function<void()> CudaBench::op(const BenchOp& spec) {
  const auto tensors = [](const std::vector<BenchOperand>& operands) {
    std::vector<prun_tensor> all;
    for (const BenchOperand& t : operands)
      all.push_back({t.data, t.dims.data(), static_cast<int>(t.dims.size()), t.dtype});
    return all;
  };
  const std::vector<prun_tensor> reads = tensors(spec.reads), writes = tensors(spec.writes);
  prun_op op{};
  op.size = sizeof op;
  op.kind = spec.kind;
  op.reads = reads.data(), op.n_reads = reads.size();
  op.writes = writes.data(), op.n_writes = writes.size();
  op.attrs = spec.attrs.data(), op.n_attrs = spec.attrs.size();
  op.values = reinterpret_cast<const prun_step_values*>(values_.get());
  op.threads = 1;
  op.share = [](const void*, const char*, int64_t* index, int64_t* of) { *index = 0, *of = 1; };
  device_.call(spec.kind,
               [&](prun_result* result) { return device_.table().workspace(&op, &op.workspace_bytes, result); });
  if (op.workspace_bytes != 0) op.workspace = bytes(op.workspace_bytes);
  DeviceKernel& kernel = kernels_.emplace_back(device_, op);
  return [this, &kernel] { kernel.run(stream_); };
}

double CudaBench::time(const std::function<void()>& run, int repetitions) const {
  check(cudaEventRecord(from_, stream()), "cudaEventRecord");
  for (int i = 0; i < repetitions; ++i) run();
  check(cudaEventRecord(to_, stream()), "cudaEventRecord");
  check(cudaEventSynchronize(to_), "cudaEventSynchronize");
  float ms = 0;
  check(cudaEventElapsedTime(&ms, from_, to_), "cudaEventElapsedTime");
  return 1e3 * static_cast<double>(ms) / repetitions;
}

double CudaBench::short_time(const std::function<void()>& run) const {
  constexpr double kLong = 2e3;  // microseconds; a longer run is accurate enough alone
  run();
  const double once = time(run, 1);
  return once > kLong ? once : std::min(time(run, 3), time(run, 3));
}

std::vector<double> CudaBench::times(const std::vector<std::function<void()>>& runs) const {
  constexpr double kTurn = 10e3;  // microseconds
  const int rounds = quick ? 3 : 9;
  std::vector<std::vector<double>> all(runs.size());
  std::vector<int> repetitions;
  for (const auto& run : runs) {
    run();
    repetitions.push_back(static_cast<int>(std::clamp(kTurn / std::max(time(run, 3), 0.1), 3.0, 1000.0)));
  }
  for (int round = 0; round < rounds; ++round)
    for (size_t i = 0; i < runs.size(); ++i) all[i].push_back(time(runs[i], repetitions[i]));
  std::vector<double> medians;
  for (std::vector<double>& one : all) {
    std::nth_element(one.begin(), one.begin() + rounds / 2, one.end());
    medians.push_back(one[static_cast<size_t>(rounds / 2)]);
  }
  return medians;
}

}  // namespace prun::bench
