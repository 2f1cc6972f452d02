// Attention of GPT-2 124M and Llama in bf16: the device's ops, and its own kernels, against cuDNN's best.
//
// cuDNN's best gradient may accumulate in any order, which the device must not, and may use unlimited memory.
#include <cudnn_graph.h>
#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "plugins/cuda/attention/attention_graphs.h"
#include "plugins/cuda/device/failure.h"
#include "tools/bench/cuda_bench.h"

namespace prun::bench {
namespace {

using prun::cuda::CudnnAttentionShape;
using prun::cuda::CudnnCall;
using prun::cuda::CudnnGraph;
using prun::cuda::CudnnPlan;
using prun::cuda::CudnnStrides;

struct Shape {
  const char *model, *name;
  int64_t batch, length, heads, kv_heads, head;
};

constexpr Shape kShapes[] = {
    {"GPT-2 124M", "64 x 1024", 64, 1024, 12, 12, 64},  // the step's shape first, because time may run out
    {"GPT-2 124M", "4 x 1024", 4, 1024, 12, 12, 64},
    {"Llama 7B", "2 x 4096", 2, 4096, 32, 32, 128},
    {"Llama 8B", "2 x 4096, 8 kv heads", 2, 4096, 32, 8, 128},
};

// The op attend: causal unless there is a mask of keys, which keeps seven in eight.
struct Rules {
  const char *model, *name;
  int64_t batch, length, heads, kv_heads, head, value, window = 0, document = 0;
  double softcap = 0;
  bool masked = false;
};

constexpr Rules kRules[] = {
    {"Mistral 7B", "1 x 8192, window 4096", 1, 8192, 32, 8, 128, 128, 4096},
    {"DeepSeek V3", "1 x 4096, 16 heads of 192 and 128", 1, 4096, 16, 16, 192, 128},
    {"Gemma 2 9B", "1 x 8192, softcap", 1, 8192, 16, 8, 256, 256, 0, 0, 50},
    {"packed 8B", "1 x 8192, documents of 1024", 1, 8192, 32, 8, 128, 128, 0, 1024},
    {"BERT large", "32 x 512, mask of keys", 32, 512, 16, 16, 64, 64, 0, 0, 0, true},
};

// cuDNN's own handle, and the memory of one shape.
class Yardstick {
 public:
  explicit Yardstick(CudaBench& bench) : bench_(bench) {
    try {
      if (cudnnCreate(&handle_) != CUDNN_STATUS_SUCCESS) handle_ = nullptr;
    } catch (const prun::cuda::Failure&) {  // not installed
    }
  }
  ~Yardstick() {
    if (handle_ != nullptr) cudnnDestroy(handle_);
  }
  Yardstick(const Yardstick&) = delete;
  Yardstick& operator=(const Yardstick&) = delete;

  // Returns a function that enqueues the graph; nullopt if cuDNN does not support it. `sums`: bytes zeroed before each
  // run.
  std::optional<std::function<void()>> call(const CudnnGraph& graph, std::vector<void*> pointers, size_t sums = 0) {
    if (handle_ == nullptr) return std::nullopt;
    try {
      auto plan = std::make_shared<const CudnnPlan>(graph.plan({handle_, nullptr}, false));
      if (sums != 0) pointers.push_back(bench_.bytes(sums));
      void* const zeros = sums != 0 ? pointers.back() : nullptr;
      const CudnnCall call(plan, pointers, bench_.bytes(plan->workspace_bytes()));
      return [this, call, zeros, sums] {
        if (sums != 0) check(cudaMemsetAsync(zeros, 0, sums, bench_.stream()), "cudaMemsetAsync");
        call.enqueue(handle_, bench_.stream());
      };
    } catch (const prun::cuda::Failure&) {
      return std::nullopt;
    }
  }

 private:
  CudaBench& bench_;
  cudnnHandle_t handle_ = nullptr;  // null: no cuDNN to compare with
};

void* column(const BenchOperand& packed, int64_t at) { return static_cast<char*>(packed.data) + 2 * at; }

// Reports the device's op with its options, and with its own kernels.
void report_figure(CudaBench& bench, CudaBench& own, const BenchOp& op, Figure figure,
                   const std::vector<std::pair<const char*, std::optional<std::function<void()>>>>& rivals,
                   const std::function<void(const Figure&)>& report) {
  std::vector<std::function<void()>> runs = {bench.op(op)};
  std::vector<const char*> names = {""};
  for (const auto& [name, run] : rivals)
    if (run) runs.push_back(*run), names.push_back(name);
  const std::vector<double> times = bench.times(runs);
  figure.ours = times[0];
  for (size_t i = 1; i < times.size(); ++i)
    if (figure.best == 0 || times[i] < figure.best) figure.best = times[i], figure.best_is = names[i];
  report(figure);
  figure.what += ", own kernels", figure.judged = false;
  figure.ours = own.times({own.op(op)})[0];
  report(figure);
}

void figures_of(CudaBench& bench, CudaBench& own, const Shape& s, const std::function<void(const Figure&)>& report) {
  Yardstick cudnn(bench);
  const int64_t width = s.heads * s.head, shared = s.kv_heads * s.head, rows = s.batch * s.heads * s.length;
  const auto tensor = [&](int64_t columns) { return bench.tensor({s.batch, s.length, columns}, PRUN_BF16); };
  const BenchOperand qkv = tensor(width + 2 * shared), out = tensor(width), dout = tensor(width);
  const BenchOperand dqkv = tensor(width + 2 * shared), lse = bench.tensor({s.batch, s.heads, s.length}, PRUN_F32);
  const std::vector<prun_attr> attrs = {integer_attr("heads", s.heads), integer_attr("kv_heads", s.kv_heads),
                                        integer_attr("causal", 1)};
  const CudnnStrides packed{width + 2 * shared, s.length * (width + 2 * shared)};
  const CudnnAttentionShape shape{.batch = s.batch,
                                  .queries = s.length,
                                  .keys = s.length,
                                  .heads = s.heads,
                                  .kv_heads = s.kv_heads,
                                  .head = s.head,
                                  .value = s.head,
                                  .scale = 1 / std::sqrt(static_cast<float>(s.head)),
                                  .q = packed,
                                  .k = packed,
                                  .v = packed,
                                  .out = {width, s.length * width},
                                  .dq = packed,
                                  .dk = packed,
                                  .dv = packed,
                                  .causal = true};
  // FLOPs of a GEMM, half masked.
  const double gemm = static_cast<double>(rows) * static_cast<double>(s.length * s.head);
  const std::string name = fmt::format("attention {}", s.name), back = fmt::format("attention_grad {}", s.name);

  report_figure(
      bench, own, {"attention", {qkv}, {out, lse}, attrs}, {.group = s.model, .what = name, .flops = 2 * gemm},
      {{"cuDNN", cudnn.call(attention_graph(shape),
                            {column(qkv, 0), column(qkv, width), column(qkv, width + shared), out.data, lse.data})}},
      report);
  const std::vector<void*> pointers = {column(qkv, 0),
                                       column(qkv, width),
                                       column(qkv, width + shared),
                                       out.data,
                                       dout.data,
                                       lse.data,
                                       bench.bytes(static_cast<size_t>(rows) * 4),
                                       column(dqkv, 0),
                                       column(dqkv, width),
                                       column(dqkv, width + shared)};
  report_figure(bench, own, {"attention_grad", {qkv, out, dout, lse}, {dqkv}, attrs},
                {.group = s.model, .what = back, .flops = 5 * gemm},
                {{"cuDNN, its gradients of scores in memory", cudnn.call(attention_gradient_graph(shape), pointers)},
                 {"cuDNN, adding in any order",
                  cudnn.call(attention_gradient_graph(shape, true), pointers, static_cast<size_t>(rows * s.head) * 4)}},
                report);
}

BenchOperand numbers(CudaBench& bench, std::vector<int64_t> dims, const std::vector<int32_t>& values) {
  const BenchOperand operand{bench.bytes(values.size() * sizeof(int32_t)), std::move(dims), PRUN_I32};
  check(cudaMemcpy(operand.data, values.data(), values.size() * sizeof(int32_t), cudaMemcpyHostToDevice), "cudaMemcpy");
  return operand;
}

// Ops that no library call here does; their FLOPs are those of the scores that queries see.
void rule_figures(CudaBench& bench, CudaBench& own, const Rules& s, const std::function<void(const Figure&)>& report) {
  const auto tensor = [&](int64_t columns) { return bench.tensor({s.batch, s.length, columns}, PRUN_BF16); };
  const BenchOperand q = tensor(s.heads * s.head), k = tensor(s.kv_heads * s.head), v = tensor(s.kv_heads * s.value);
  const BenchOperand dq = tensor(s.heads * s.head), dk = tensor(s.kv_heads * s.head), dv = tensor(s.kv_heads * s.value);
  const BenchOperand out = tensor(s.heads * s.value), dout = tensor(s.heads * s.value);
  const BenchOperand lse = bench.tensor({s.batch, s.heads, s.length}, PRUN_F32);
  std::vector<prun_attr> attrs = {integer_attr("heads", s.heads),           integer_attr("kv_heads", s.kv_heads),
                                  integer_attr("causal", s.masked ? 0 : 1), integer_attr("window", s.window),
                                  integer_attr("spans", s.document > 0),    integer_attr("masked", s.masked)};
  attrs.push_back({"softcap", PRUN_ATTR_NUMBER, 0, s.softcap, nullptr, nullptr, nullptr, 0});
  std::vector<BenchOperand> rest;
  std::vector<int32_t> values;
  double seen = 0;  // keys of all queries of a sample
  for (int64_t t = 0; t < s.length; ++t) {
    const int64_t begin = s.document > 0 ? t / s.document * s.document : 0;
    const int64_t first = s.window > 0 ? std::max(begin, t + 1 - s.window) : begin;
    seen += static_cast<double>(s.masked ? s.length - s.length / 8 : t + 1 - first);
    if (s.document > 0) values.insert(values.end(), {int32_t(begin), int32_t(std::min(begin + s.document, s.length))});
    if (s.masked) values.push_back(t < s.length - s.length / 8 ? 1 : 0);
  }
  const size_t one = values.size();
  for (int64_t b = 1; b < s.batch; ++b) values.insert(values.end(), values.begin(), values.begin() + int64_t(one));
  if (s.document > 0) rest.push_back(numbers(bench, {s.batch, s.length, 2}, values));
  if (s.masked) rest.push_back(numbers(bench, {s.batch, s.length}, values));
  const auto reads = [&](std::vector<BenchOperand> first) {
    first.insert(first.end(), rest.begin(), rest.end());
    return first;
  };
  const double gemm = 2 * static_cast<double>(s.batch * s.heads) * seen;  // of one element of a head
  const double forward = gemm * static_cast<double>(s.head + s.value);
  const double backward = gemm * static_cast<double>(3 * s.head + 2 * s.value);
  report_figure(bench, own, {"attend", reads({q, k, v}), {out, lse}, attrs},
                {.group = s.model, .what = fmt::format("attend {}", s.name), .flops = forward}, {}, report);
  report_figure(bench, own, {"attend_grad", reads({q, k, v, out, dout, lse}), {dq, dk, dv}, attrs},
                {.group = s.model, .what = fmt::format("attend_grad {}", s.name), .flops = backward}, {}, report);
}

}  // namespace

void attention_figures(CudaBench& bench, const std::string& only, const std::function<void(const Figure&)>& report) {
  std::optional<CudaBench> own;
  for (Shape s : kShapes) {
    if (fmt::format("{} attention {}", s.model, s.name).find(only) == std::string::npos) continue;
    if (!own) own.emplace("cudnn=0"), own->quick = bench.quick;
    if (bench.small) s.batch = 1, s.length = 32, s.heads = 2, s.kv_heads = std::min<int64_t>(s.kv_heads, 2);
    measure_or_say(
        {s.model, fmt::format("attention {}", s.name)}, [&] { figures_of(bench, *own, s, report); }, report);
    bench.forget();
    own->forget();
  }
  for (Rules s : kRules) {
    if (fmt::format("{} attention {}", s.model, s.name).find(only) == std::string::npos) continue;
    if (!own) own.emplace("cudnn=0"), own->quick = bench.quick;
    if (bench.small) s.batch = 1, s.length = 32, s.heads = 2, s.kv_heads = 1, s.window /= 256, s.document /= 64;
    measure_or_say(
        {s.model, fmt::format("attend {}", s.name)}, [&] { rule_figures(bench, *own, s, report); }, report);
    bench.forget();
    own->forget();
  }
}

}  // namespace prun::bench
