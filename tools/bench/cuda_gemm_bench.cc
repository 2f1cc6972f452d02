// GEMMs of GPT-2 124M and 350M and of Llama 7B in bf16: the device's ops against the fastest of all algorithms that
// cuBLASLt's heuristic returns for the same GEMM and epilogue. For a weight gradient with a bias the epilogue competes
// with a GEMM that is followed by column sums.
//
// The yardstick's code shares with plugins/cuda only the library and the column sums. It may accumulate in any order,
// while the device uses only algorithms that are bitwise deterministic.
#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>

#include "tools/bench/cuda_bench.h"

namespace prun::bench {
namespace {

constexpr int kDtype = PRUN_BF16;
constexpr size_t kWorkspace = size_t{32} << 20;
constexpr int kAlgorithms = 64;

void check_blas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(fmt::format("{}: {}", call, cublasLtGetStatusName(status)));
}

// A layer: x [rows, k] by w [k, n]. GPT-2 124M has the rows of a step of 64 samples; fewer leave multiprocessors idle.
struct Layer {
  const char *model, *name;
  int64_t rows, k, n;
  bool bias = true, gelu = false, gelu_before = false;  // gelu of the output, gelu of the input
};

constexpr Layer kLayers[] = {
    {"GPT-2 124M", "qkv", 65536, 768, 2304},
    {"GPT-2 124M", "projection", 65536, 768, 768},
    {"GPT-2 124M", "up", 65536, 768, 3072, true, true},
    {"GPT-2 124M", "down", 65536, 3072, 768, true, false, true},
    {"GPT-2 124M", "head", 65536, 768, 50304, false},
    {"GPT-2 124M", "head, not padded", 65536, 768, 50257, false},
    {"GPT-2 350M", "qkv", 16384, 1024, 3072},
    {"GPT-2 350M", "projection", 16384, 1024, 1024},
    {"GPT-2 350M", "up", 16384, 1024, 4096, true, true},
    {"GPT-2 350M", "down", 16384, 4096, 1024, true, false, true},
    {"Llama 7B", "qkv", 8192, 4096, 12288, false},
    {"Llama 7B", "projection", 8192, 4096, 4096, false},
    {"Llama 7B", "gate, up", 8192, 4096, 11008, false},
    {"Llama 7B", "down", 8192, 11008, 4096, false},
    {"Llama 7B", "head", 8192, 4096, 32000, false},
};

// A GEMM in cuBLASLt's column-major terms: D [m, n] = op(A)·op(B).
struct Yardstick {
  int64_t m, n, k;
  bool transpose_a, transpose_b;
  const void *a, *b;
  void* d;
  cudaDataType_t result = CUDA_R_16BF;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void *vector = nullptr, *matrix = nullptr;
};

class BlasSearch {
 public:
  explicit BlasSearch(CudaBench& bench) : bench_(bench), workspace_(bench.bytes(kWorkspace)) {
    check_blas(cublasLtCreate(&handle_), "cublasLtCreate");
  }
  ~BlasSearch() { cublasLtDestroy(handle_); }
  BlasSearch(const BlasSearch&) = delete;
  BlasSearch& operator=(const BlasSearch&) = delete;

  struct Best {
    std::function<void()> run;
    std::string name;
  };

  // Returns the fastest algorithm by short measurements, or nullopt if the library has none.
  std::optional<Best> best(const Yardstick& y) {
    const auto product = std::make_shared<Product>(y);
    std::vector<cublasLtMatmulHeuristicResult_t> found(kAlgorithms);
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, product->what, product->a, product->b, product->d, product->d,
                                       product->preference, kAlgorithms, found.data(), &count);
    if (status != CUBLAS_STATUS_SUCCESS) return std::nullopt;
    std::optional<Best> best;
    double time = 0;
    for (int i = 0; i < count; ++i) {
      const auto& one = found[static_cast<size_t>(i)];
      if (one.state != CUBLAS_STATUS_SUCCESS) continue;
      const auto run = [this, product, y, algorithm = one.algo] {
        const float alpha = 1, beta = 0;
        check_blas(cublasLtMatmul(handle_, product->what, &alpha, y.a, product->a, y.b, product->b, &beta, y.d,
                                  product->d, y.d, product->d, &algorithm, workspace_, kWorkspace, bench_.stream()),
                   "cublasLtMatmul");
      };
      double this_time = 0;
      try {
        this_time = bench_.short_time(run);
      } catch (const std::runtime_error&) {
        continue;  // suggested by the heuristic but rejected at run time; the others count
      }
      if (best && this_time >= time) continue;
      time = this_time;
      best = Best{run, fmt::format("{} of {}", i + 1, count)};
    }
    return best;
  }

 private:
  struct Product {
    explicit Product(const Yardstick& y) {
      const auto set = [&](cublasLtMatmulDescAttributes_t name, auto value) {
        check_blas(cublasLtMatmulDescSetAttribute(what, name, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
      };
      check_blas(cublasLtMatmulDescCreate(&what, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
      set(CUBLASLT_MATMUL_DESC_TRANSA, static_cast<int32_t>(y.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
      set(CUBLASLT_MATMUL_DESC_TRANSB, static_cast<int32_t>(y.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(y.epilogue));
      if (y.vector != nullptr) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, y.vector);
      if (y.matrix != nullptr) {
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, y.matrix);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, y.m);
      }
      const auto matrix = [](cublasLtMatrixLayout_t* to, cudaDataType_t type, int64_t rows, int64_t columns) {
        check_blas(
            cublasLtMatrixLayoutCreate(to, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows),
            "cublasLtMatrixLayoutCreate");
      };
      y.transpose_a ? matrix(&a, CUDA_R_16BF, y.k, y.m) : matrix(&a, CUDA_R_16BF, y.m, y.k);
      y.transpose_b ? matrix(&b, CUDA_R_16BF, y.n, y.k) : matrix(&b, CUDA_R_16BF, y.k, y.n);
      matrix(&d, y.result, y.m, y.n);
      check_blas(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
      const uint64_t bytes = kWorkspace;
      check_blas(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                                      sizeof bytes),
                 "cublasLtMatmulPreferenceSetAttribute");
    }
    ~Product() {
      cublasLtMatmulPreferenceDestroy(preference);
      for (cublasLtMatrixLayout_t layout : {a, b, d}) cublasLtMatrixLayoutDestroy(layout);
      cublasLtMatmulDescDestroy(what);
    }
    Product(const Product&) = delete;
    Product& operator=(const Product&) = delete;
    cublasLtMatmulDesc_t what = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, d = nullptr;
    cublasLtMatmulPreference_t preference = nullptr;
  };

  CudaBench& bench_;
  void* workspace_;
  cublasLtHandle_t handle_ = nullptr;
};

struct Measured {
  const Layer& layer;
  CudaBench& bench;
  const std::function<void(const Figure&)>& report;

  // `apart`: an op that replaces the yardstick's epilogue. The yardstick is then the faster of the fused GEMM and the
  // GEMM without an epilogue followed by that op.
  void operator()(const BenchOp& op, Yardstick yardstick, const std::optional<BenchOp>& apart = std::nullopt) const {
    Figure figure{layer.model, fmt::format("{} {}", layer.name, op.kind), 0, 0, 0, ""};
    figure.flops = 2 * static_cast<double>(layer.rows) * static_cast<double>(layer.k) * static_cast<double>(layer.n);
    BlasSearch search(bench);
    std::optional<BlasSearch::Best> best = search.best(yardstick);
    if (apart) {
      yardstick.epilogue = CUBLASLT_EPILOGUE_DEFAULT, yardstick.vector = nullptr;
      std::optional<BlasSearch::Best> two = search.best(yardstick);
      if (two) {
        two->run = [gemm = two->run, after = bench.op(*apart)] { gemm(), after(); };
        two->name += std::string(", then ") + apart->kind;
        if (!best || bench.short_time(two->run) < bench.short_time(best->run)) best = two;
      }
    }
    std::vector<std::function<void()>> runs = {bench.op(op)};
    if (best) runs.push_back(best->run);
    const std::vector<double> times = bench.times(runs);
    figure.ours = times[0];
    if (best) figure.best = times[1], figure.best_is = best->name;
    report(figure);
  }
};

// Row-major [r, c] is column-major [c, r], so each GEMM is computed transposed with swapped operands.
void measure(CudaBench& bench, const Layer& l, const std::function<void(const Figure&)>& report) {
  const BenchOperand x = bench.tensor({l.rows, l.k}, kDtype), w = bench.tensor({l.k, l.n}, kDtype);
  const BenchOperand y = bench.tensor({l.rows, l.n}, kDtype), b = bench.tensor({l.n}, kDtype);
  const BenchOperand dx = bench.tensor({l.rows, l.k}, kDtype);
  const BenchOperand dw = bench.tensor({l.k, l.n}, PRUN_F32), db = bench.tensor({l.n}, PRUN_F32);
  const Measured measured{l, bench, report};

  BenchOp forward{"linear", {x, w}, {y}, {}};
  Yardstick ahead{l.n, l.rows, l.k, false, false, w.data, x.data, y.data};
  if (l.bias) {
    forward.reads.push_back(b);
    ahead.epilogue = CUBLASLT_EPILOGUE_BIAS, ahead.vector = b.data;
  }
  measured(forward, ahead);
  if (l.gelu) {
    const BenchOperand pre = bench.tensor({l.rows, l.n}, kDtype);
    forward.kind = "linear_gelu", forward.writes.push_back(pre);
    ahead.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS, ahead.matrix = pre.data;
    measured(forward, ahead);
  }

  BenchOp to_input{"linear_dx", {y, w}, {dx}, {}};
  Yardstick back{l.k, l.rows, l.n, true, false, w.data, y.data, dx.data};
  measured(to_input, back);
  if (l.gelu_before) {
    to_input.kind = "linear_dx_gelu", to_input.reads.push_back(x);
    back.epilogue = CUBLASLT_EPILOGUE_DGELU, back.matrix = x.data;
    measured(to_input, back);
  }

  BenchOp to_weight{"linear_dw", {x, y}, {dw}, {}};
  Yardstick down{l.n, l.k, l.rows, false, true, y.data, x.data, dw.data, CUDA_R_32F};
  if (l.bias) {
    to_weight.writes.push_back(db);
    down.epilogue = CUBLASLT_EPILOGUE_BGRADA, down.vector = db.data;
  }
  const std::optional<BenchOp> sums = l.bias ? std::optional(BenchOp{"bias_grad", {y}, {db}, {}}) : std::nullopt;
  measured(to_weight, down, sums);
}

}  // namespace

void gemm_figures(CudaBench& bench, const std::string& only, const std::function<void(const Figure&)>& report) {
  for (Layer layer : kLayers) {
    if ((std::string(layer.model) + " " + layer.name).find(only) == std::string::npos) continue;
    if (bench.small)
      for (int64_t* size : {&layer.rows, &layer.k, &layer.n}) *size = std::min<int64_t>(*size, 64);
    measure_or_say(
        {layer.model, layer.name}, [&] { measure(bench, layer, report); }, report);
    bench.forget();
  }
}

}  // namespace prun::bench
