#include "blas_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "blas_trial.h"
#include "context.h"

namespace prun::cuda {
namespace {

constexpr size_t kCompared = size_t{16} << 20;  // of each result, in bytes

// The product over memory of its own.
class Trial {
 public:
  Trial(Context& context, Gemm gemm, Epilogue epilogue, size_t workspace_bytes) : context_(context) {
    const GemmShape& s = gemm.shape;
    const int64_t whole = s.batch * s.m * s.n;
    gemm.a =
        operand({s.batch, s.transpose_a ? s.k : s.m, s.transpose_a ? s.m : s.k, s.transpose_a, false, true}, s.input);
    gemm.b =
        operand({s.batch, s.transpose_b ? s.n : s.k, s.transpose_b ? s.k : s.n, !s.transpose_b, true, true}, s.input);
    gemm.c = result(whole, s.output);
    if (epilogue.vector != nullptr)
      epilogue.vector = gemm.sum == Sums::none ? beside(1, s.n, s.input) : result(std::max(s.m, s.n), PRUN_F32);
    if (epilogue.matrix != nullptr)
      epilogue.matrix = gemm.gelu_input != nullptr ? beside(s.m, s.n, s.input) : result(whole, s.input);
    product_ = std::make_unique<BlasProduct>(context, gemm, epilogue, memory(workspace_bytes), workspace_bytes);
    check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check(cudaEventCreate(&from_), "cudaEventCreate");
    check(cudaEventCreate(&to_), "cudaEventCreate");
  }
  ~Trial() {
    if (from_ != nullptr) cudaEventDestroy(from_);
    if (to_ != nullptr) cudaEventDestroy(to_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Trial(const Trial&) = delete;

  // What it computes of both sorts of numbers, or nothing where it does not run.
  std::vector<std::byte> bits(const cublasLtMatmulAlgo_t& algorithm) {
    std::vector<std::byte> all;
    for (const bool mirrored : {true, false}) {
      for (Numbers& one : numbers_) {
        one.matrix.mirrored = mirrored;
        if (mirrored && one.beside)
          check(cudaMemsetAsync(one.data, 0, one.bytes, stream_), "cudaMemsetAsync");
        else
          fill(stream_, one.matrix, one.dtype, one.data);
      }
      if (product_->enqueue(algorithm, stream_) != CUBLAS_STATUS_SUCCESS) return {};
      check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
      for (const auto& [data, bytes] : results_) {
        const size_t at = all.size();
        all.resize(at + std::min(bytes, kCompared));
        check(cudaMemcpy(&all[at], data, all.size() - at, cudaMemcpyDeviceToHost), "cudaMemcpy");
      }
    }
    return all;
  }

  // Milliseconds of the quickest of several runs.
  float time(const cublasLtMatmulAlgo_t& algorithm) {
    float best = 0;
    for (int i = 0; i < 5; ++i) {
      check(cudaEventRecord(from_, stream_), "cudaEventRecord");
      check(product_->enqueue(algorithm, stream_), "cublasLtMatmul");
      check(cudaEventRecord(to_, stream_), "cudaEventRecord");
      check(cudaEventSynchronize(to_), "cudaEventSynchronize");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, from_, to_), "cudaEventElapsedTime");
      if (i == 0 || ms < best) best = ms;
    }
    return best;
  }

 private:
  void* memory(size_t bytes) {
    memory_.push_back(device_memory(context_, std::max<size_t>(bytes, 1)));
    return memory_.back().get();
  }
  void* numbers(const TrialMatrix& matrix, int dtype, bool beside) {
    const auto bytes = static_cast<size_t>(matrix.batch * matrix.rows * matrix.columns * dtype_bytes(dtype));
    numbers_.push_back({matrix, dtype, beside, memory(bytes), bytes});
    return numbers_.back().data;
  }
  void* operand(const TrialMatrix& matrix, int dtype) { return numbers(matrix, dtype, false); }
  // A bias, or gelu's input: 0 beside sums that are only rounding errors, which it would swallow.
  void* beside(int64_t rows, int64_t columns, int dtype) {
    return numbers({1, rows, columns, false, false, false}, dtype, true);
  }
  void* result(int64_t count, int dtype) {
    const size_t bytes = static_cast<size_t>(count * dtype_bytes(dtype));
    results_.emplace_back(memory(bytes), bytes);
    check(cudaMemsetAsync(results_.back().first, 0, bytes, nullptr), "cudaMemsetAsync");  // not all may be written
    return results_.back().first;
  }

  Context& context_;
  std::vector<std::shared_ptr<void>> memory_;
  struct Numbers {
    TrialMatrix matrix;
    int dtype;
    bool beside;
    void* data;
    size_t bytes;
  };
  std::vector<Numbers> numbers_;
  std::vector<std::pair<void*, size_t>> results_;
  std::unique_ptr<BlasProduct> product_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t from_ = nullptr, to_ = nullptr;
};

cublasLtMatmulAlgo_t fastest(Trial& trial, const std::vector<cublasLtMatmulHeuristicResult_t>& found) {
  const std::vector<std::byte> right = trial.bits(found.front().algo);
  cublasLtMatmulAlgo_t best = found.front().algo;
  float best_time = trial.time(best);
  for (size_t i = 1; i < found.size(); ++i) {
    if (trial.bits(found[i].algo) != right) continue;
    const float time = trial.time(found[i].algo);
    if (time < best_time && trial.bits(found[i].algo) == right) best = found[i].algo, best_time = time;
  }
  return best;
}

}  // namespace

cublasLtMatmulAlgo_t choose(Context& context, const Gemm& gemm, const Epilogue& epilogue, size_t workspace_bytes,
                            const std::vector<cublasLtMatmulHeuristicResult_t>& found) {
  if (found.size() == 1) return found.front().algo;
  const GemmShape& s = gemm.shape;
  // A model's layers are alike; what the heuristic looked at decides the rest.
  std::string key = fmt::format("{} {} {} {} {}{} {}{} {} {}:", s.m, s.n, s.k, s.batch, s.transpose_a, s.transpose_b,
                                s.input, s.output, static_cast<int>(epilogue.kind), workspace_bytes);
  key.append(reinterpret_cast<const char*>(&found.front().algo), sizeof found.front().algo);
  const auto known = context.algorithms().find(key);
  if (known != context.algorithms().end()) return known->second;
  cublasLtMatmulAlgo_t best = found.front().algo;
  try {
    Trial trial(context, gemm, epilogue, workspace_bytes);
    best = fastest(trial, found);
  } catch (const Failure& failure) {
    if (failure.status != PRUN_ENOMEM) throw;
    context.log(1, fmt::format("no memory to compare algorithms for a product of {} x {} x {}", s.m, s.n, s.k));
  }
  context.algorithms()[key] = best;
  return best;
}

}  // namespace prun::cuda
