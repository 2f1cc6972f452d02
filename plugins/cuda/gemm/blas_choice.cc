#include "blas_choice.h"

#include <fmt/format.h>

#include <algorithm>

#include "blas_trial.h"
#include "cuda/device/context.h"
#include "cuda/kernels/sums.h"

namespace prun::cuda {
namespace {

constexpr size_t kComparedBytes = size_t{16} << 20;  // of each result

// The GEMM on memory of its own, followed by a kernel for column sums that the GEMM's epilogue does not compute.
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
    const bool of_a = gemm.sum == Sums::of_a;
    if (gemm.sum != Sums::none) gemm.sums = static_cast<float*>(result(of_a ? s.m : s.n, PRUN_F32));
    if (gemm.added != nullptr) gemm.added = beside(s.batch * s.m, s.n, s.output);
    if (epilogue.vector != nullptr)
      epilogue.vector = gemm.sum == Sums::none ? beside(1, s.n, s.input) : static_cast<const void*>(gemm.sums);
    if (epilogue.matrix != nullptr)
      epilogue.matrix = gemm.gelu_input != nullptr ? beside(s.m, s.n, s.input) : result(whole, s.input);
    void* const workspace = memory(workspace_bytes);
    gemm_ = std::make_unique<BlasGemm>(context, gemm, epilogue, workspace, workspace_bytes);
    if (gemm.sum != Sums::none && epilogue.vector == nullptr)
      sums_ = kernel_of([x = of_a ? gemm.a : gemm.b, s, width = of_a ? s.m : s.n, to = gemm.sums,
                         parts = static_cast<float*>(workspace)](cudaStream_t stream) {
        column_sums(stream, x, s.input, s.k, width, parts, to);
      });
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

  // Returns the results for both kinds of numbers, or nothing if the algorithm does not run.
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
      if (enqueue(algorithm) != CUBLAS_STATUS_SUCCESS) return {};
      check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
      for (const auto& [data, bytes] : results_) {
        const size_t at = all.size();
        all.resize(at + std::min(bytes, kComparedBytes));
        check(cudaMemcpy(&all[at], data, all.size() - at, cudaMemcpyDeviceToHost), "cudaMemcpy");
      }
    }
    return all;
  }

  // Returns the milliseconds of the fastest of several runs.
  float time(const cublasLtMatmulAlgo_t& algorithm) {
    float best = 0;
    for (int i = 0; i < 5; ++i) {
      check(cudaEventRecord(from_, stream_), "cudaEventRecord");
      check(enqueue(algorithm), "cublasLtMatmul");
      check(cudaEventRecord(to_, stream_), "cudaEventRecord");
      check(cudaEventSynchronize(to_), "cudaEventSynchronize");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, from_, to_), "cudaEventElapsedTime");
      if (i == 0 || ms < best) best = ms;
    }
    return best;
  }

 private:
  cublasStatus_t enqueue(const cublasLtMatmulAlgo_t& algorithm) {
    const cublasStatus_t status = gemm_->enqueue(algorithm, stream_);
    if (status == CUBLAS_STATUS_SUCCESS && sums_ != nullptr) sums_->run(stream_);
    return status;
  }
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
  // Allocates a bias, or gelu's input. It is 0 with accumulators that are only rounding errors, because it would absorb
  // them.
  void* beside(int64_t rows, int64_t columns, int dtype) {
    return numbers({1, rows, columns, false, false, false}, dtype, true);
  }
  void* result(int64_t count, int dtype) {
    const size_t bytes = static_cast<size_t>(count * dtype_bytes(dtype));
    results_.emplace_back(memory(bytes), bytes);
    // An algorithm may leave elements unwritten.
    check(cudaMemsetAsync(results_.back().first, 0, bytes, nullptr), "cudaMemsetAsync");
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
  std::unique_ptr<BlasGemm> gemm_;
  std::unique_ptr<Kernel> sums_;
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

// Returns the cache key of a measured choice. Layers of a model have equal shapes, so one measurement serves all of
// them. The heuristic's first algorithm is part of the key, because it reflects the heuristic's other inputs, such as
// alignment.
std::string key_of(const Gemm& gemm, const Epilogue& epilogue, size_t workspace_bytes,
                   const cublasLtMatmulAlgo_t& first) {
  const GemmShape& s = gemm.shape;
  std::string key =
      fmt::format("{} {} {} {} {}{} {}{}{} {} {} {}:", s.m, s.n, s.k, s.batch, s.transpose_a, s.transpose_b, s.input,
                  s.output, s.tf32, static_cast<int>(epilogue.kind), gemm.added != nullptr, workspace_bytes);
  return key.append(reinterpret_cast<const char*>(&first), sizeof first);
}

struct Tried {
  std::vector<std::byte> bits;  // empty: it does not run, or its results differ between runs
  float time = 0;
};
Tried tried(Context& context, const Gemm& gemm, const Epilogue& epilogue, size_t workspace_bytes,
            const cublasLtMatmulAlgo_t& algorithm) {
  Trial trial(context, gemm, epilogue, workspace_bytes);
  Tried result{trial.bits(algorithm), 0};
  if (result.bits.empty()) return result;
  result.time = trial.time(algorithm);
  if (trial.bits(algorithm) != result.bits) result.bits.clear();
  return result;
}

}  // namespace

cublasLtMatmulAlgo_t choose(Context& context, const Gemm& gemm, const Epilogue& epilogue, size_t workspace_bytes,
                            const std::vector<cublasLtMatmulHeuristicResult_t>& found) {
  if (found.size() == 1) return found.front().algo;
  const std::string key = key_of(gemm, epilogue, workspace_bytes, found.front().algo);
  const auto known = context.algorithms().find(key);
  if (known != context.algorithms().end()) return known->second;
  cublasLtMatmulAlgo_t best = found.front().algo;
  Gemm alone = gemm;
  if (epilogue.vector == nullptr) alone.sum = Sums::none;
  try {
    Trial trial(context, alone, epilogue, workspace_bytes);
    best = fastest(trial, found);
  } catch (const Failure& failure) {
    if (failure.status != PRUN_ENOMEM) throw;
    const GemmShape& s = gemm.shape;
    context.log(1, fmt::format("no memory to compare algorithms for a GEMM of {} x {} x {}", s.m, s.n, s.k));
  }
  context.algorithms()[key] = best;
  return best;
}

bool fused_sums_win(Context& context, const Gemm& gemm, const Epilogue& epilogue, const BlasGemm& fused,
                    const BlasGemm& apart, size_t workspace_bytes) {
  const std::string key = key_of(gemm, epilogue, workspace_bytes, fused.algorithm());
  const auto known = context.fused_sums().find(key);
  if (known != context.fused_sums().end()) return known->second;
  const GemmShape& s = gemm.shape;
  const std::string what = fmt::format("cuda: a GEMM of {} x {} x {} and its bias gradient", s.m, s.n, s.k);
  bool wins = false;
  try {
    const Tried one = tried(context, gemm, epilogue, workspace_bytes, fused.algorithm());
    const Tried two = tried(context, gemm, {}, workspace_bytes, apart.algorithm());
    const bool same = !one.bits.empty() && one.bits == two.bits;
    wins = same && one.time < two.time;
    context.log(0, fmt::format("{}: {} kernel{}; fused {:.4f} ms{}, apart {:.4f} ms", what, wins ? "one" : "two",
                               wins ? "" : "s", one.time, same ? "" : " with other bits", two.time));
  } catch (const Failure& failure) {
    if (failure.status != PRUN_ENOMEM) throw;
    context.log(1, fmt::format("{}: two kernels, for lack of memory to measure one", what));
  }
  context.fused_sums()[key] = wins;
  return wins;
}

}  // namespace prun::cuda
