// The CPU device's kernels except GEMMs, at the sizes of the gpt plans (width 256, 8 x 128 tokens per rank).
// products.py measures GEMMs and other libraries; kernels.py compares these kernels with their bounds.
//
// Surprising fact: rates are per second of this thread's CPU time, which a busy machine disturbs less.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/gemm/register_tile.h"
#include "kernels/cpu/vectors.h"
#include "kernels/devices.h"
#include "tests/unit/one_op.h"
#include "tools/bench/vector_rates.h"

namespace prun {
namespace {

using test::OneOp;

std::vector<double> numbers(int64_t count) {
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<double>(i % 17) * 0.125 - 1);
  return values;
}

// Records the bytes that a kernel must at least read and write, and the number of elements that it computes.
void count_bytes(benchmark::State& state, int64_t bytes, int64_t elements = 0) {
  state.counters["bytes"] = static_cast<double>(bytes);
  if (elements > 0) state.counters["elements"] = static_cast<double>(elements);
}

void run(benchmark::State& state, OneOp& op, int64_t bytes = 0, int64_t elements = 0) {
  const std::unique_ptr<Device> device = open_device("cpu");
  Kernel& kernel = op.prepare(*device);
  for (auto _ : state) kernel.run();
  if (bytes > 0) count_bytes(state, bytes, elements);
}

// Memory on large pages, as in a rank's arena.
class Array {
 public:
  explicit Array(int64_t bytes) : bytes_(bytes) {
    const auto size = static_cast<size_t>(round_up(bytes, kLargePage));
    data_.reset(static_cast<float*>(std::aligned_alloc(kLargePage, size)));
    madvise(data_.get(), size, MADV_HUGEPAGE);
    std::memset(data_.get(), 0, size);
  }
  float* data() const { return data_.get(); }
  int64_t count() const { return bytes_ / static_cast<int64_t>(sizeof(float)); }

 private:
  static constexpr int64_t kLargePage = int64_t{1} << 21;
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };
  int64_t bytes_;
  std::unique_ptr<float, Free> data_;
};

// Bounds of memory-bound kernels: a copy of as many bytes, a read of all of them, or an update in place.
void copy(benchmark::State& state) {
  const int64_t half = state.range(0) / 2;
  const Array from(half), to(half);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), static_cast<size_t>(half));
    benchmark::ClobberMemory();
  }
  count_bytes(state, state.range(0));
}
void read(benchmark::State& state) {
  const Array from(state.range(0));
  for (auto _ : state)
    cpu::with_lanes([&]<int lanes>() PRUN_INLINED {
      benchmark::DoNotOptimize(cpu::sum_lanes<lanes>(
          from.count(), [&](auto at) PRUN_INLINED { return at.load(static_cast<const float*>(from.data())); }));
    });
  count_bytes(state, state.range(0));
}
void update(benchmark::State& state) {
  const Array all(state.range(0) / 2);
  for (auto _ : state) {
    cpu::with_lanes([&]<int lanes>() PRUN_INLINED {
      cpu::for_lanes<lanes>(all.count(), [x = all.data()](auto at) PRUN_INLINED { at.store(x, at.load(x) + 1.0f); });
    });
    benchmark::ClobberMemory();
  }
  count_bytes(state, state.range(0));
}

constexpr int64_t kRows = 1024, kWidth = 256, kHeads = 4;
constexpr int64_t kSmall = kRows * kWidth;
Dtype dtype_of(const benchmark::State& state) { return state.range(0) != 0 ? Dtype::bf16 : Dtype::f32; }

// Arguments: bf16, tokens per sample; 1024 tokens in total. The masked half of the GEMMs is not counted.
void count_gemms(benchmark::State& state, int64_t gemms) {
  const double flops = static_cast<double>(gemms * kRows * state.range(1) * kWidth);
  state.counters["head"] = static_cast<double>(kWidth / kHeads);
  state.counters["GFLOP/s"] = benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}
void attention(benchmark::State& state) {
  const Dtype t = dtype_of(state);
  const int64_t length = state.range(1), batch = kRows / length;
  OneOp op("attention");
  op.attr("heads", kHeads).attr("causal", 1).read(t, {batch, length, 3 * kWidth}, numbers(kRows * 3 * kWidth));
  op.write(t, {batch, length, kWidth}).write(Dtype::f32, {batch, kHeads, length});
  run(state, op);
  count_gemms(state, 2);
}
void attention_grad(benchmark::State& state) {
  const Dtype t = dtype_of(state);
  const int64_t length = state.range(1), batch = kRows / length;
  OneOp op("attention_grad");
  op.attr("heads", kHeads).attr("causal", 1).read(t, {batch, length, 3 * kWidth}, numbers(kRows * 3 * kWidth));
  for (int i = 0; i < 2; ++i) op.read(t, {batch, length, kWidth}, numbers(kRows * kWidth));
  op.read(Dtype::f32, {batch, kHeads, length}, std::vector<double>(kRows * kHeads, 5.0));
  op.write(t, {batch, length, 3 * kWidth});
  run(state, op);
  count_gemms(state, 5);
}
void layernorm(benchmark::State& state) {
  const Dtype t = dtype_of(state);
  OneOp op("layernorm");
  op.read(t, {kRows, kWidth}, numbers(kRows * kWidth))
      .read(t, {kWidth}, numbers(kWidth))
      .read(t, {kWidth}, numbers(kWidth));
  op.write(t, {kRows, kWidth}).write(Dtype::f32, {kRows}).write(Dtype::f32, {kRows});
  run(state, op, 2 * kSmall * dtype_bytes(t), kSmall);
}
void layernorm_grad(benchmark::State& state) {
  const Dtype t = dtype_of(state);
  OneOp op("layernorm_grad");
  for (int i = 0; i < 2; ++i) op.read(t, {kRows, kWidth}, numbers(kRows * kWidth));
  op.read(t, {kWidth}, numbers(kWidth))
      .read(Dtype::f32, {kRows}, numbers(kRows))
      .read(Dtype::f32, {kRows}, numbers(kRows));
  op.write(t, {kRows, kWidth}).write(Dtype::f32, {kWidth}).write(Dtype::f32, {kWidth});
  run(state, op, 3 * kSmall * dtype_bytes(t), kSmall);
}
// A norm and the residual add before it, forward or backward, as one op or two. The tensors exceed every cache, because
// in a step other ops run in between.
void residual_norm(benchmark::State& state) {
  const Dtype t = dtype_of(state);
  const bool backward = state.range(1) != 0, fused = state.range(2) != 0;
  const Shape rows = {32 * kRows, kWidth}, statistic = {32 * kRows};
  const std::vector<double> x = numbers(element_count(rows)), s = numbers(32 * kRows);
  OneOp add("add"), norm(std::string(fused && !backward ? "add_" : "") + "layernorm" + (backward ? "_grad" : "") +
                         (fused && backward ? "_add" : ""));
  add.read(t, rows, x).read(t, rows, x).write(t, rows);
  norm.read(t, rows, x);
  if (backward || fused) norm.read(t, rows, x);
  norm.read(t, {kWidth}, numbers(kWidth));
  if (!backward) norm.read(t, {kWidth}, numbers(kWidth));
  if (backward) norm.read(Dtype::f32, statistic, s).read(Dtype::f32, statistic, s);
  if (backward && fused) norm.read(t, rows, x);
  norm.write(t, rows);
  if (!backward && fused) norm.write(t, rows);
  const Shape beside = backward ? Shape{kWidth} : statistic;
  norm.write(Dtype::f32, beside).write(Dtype::f32, beside);
  const std::unique_ptr<Device> device = open_device("cpu");
  Kernel &first = add.prepare(*device), &second = norm.prepare(*device);
  for (auto _ : state) {
    if (!fused) first.run();
    second.run();
  }
  // Fused, forward reads two tensors and writes two, backward reads three and writes one; of two ops the second reads
  // again, and in backward the first also writes.
  const int64_t tensors = fused ? 4 : (backward ? 6 : 5);
  count_bytes(state, tensors * element_count(rows) * dtype_bytes(t), element_count(rows));
}
void gelu(benchmark::State& state) {
  const Dtype t = dtype_of(state);
  OneOp op("gelu");
  op.read(t, {kRows, 4 * kWidth}, numbers(kRows * 4 * kWidth)).write(t, {kRows, 4 * kWidth});
  run(state, op, 8 * kSmall * dtype_bytes(t), 4 * kSmall);
}
void gelu_dx(benchmark::State& state) {
  const Dtype t = dtype_of(state);
  OneOp op("gelu_dx");
  for (int i = 0; i < 2; ++i) op.read(t, {kRows, 4 * kWidth}, numbers(kRows * 4 * kWidth));
  op.write(t, {kRows, 4 * kWidth});
  run(state, op, 12 * kSmall * dtype_bytes(t), 4 * kSmall);
}
// x·sigmoid(1.702·x) and its derivative, as the compiler makes them of a plan's expression: to compare with gelu.
void own_activation(benchmark::State& state, const char* program, int inputs) {
  const Dtype t = dtype_of(state);
  OneOp op("pointwise");
  op.attr("program", program);
  for (int i = 0; i < inputs; ++i) op.read(t, {kRows, 4 * kWidth}, numbers(kRows * 4 * kWidth));
  op.write(t, {kRows, 4 * kWidth});
  run(state, op, (inputs + 1) * 4 * kSmall * dtype_bytes(t), 4 * kSmall);
}
void own_gelu(benchmark::State& state) { own_activation(state, "mul x0 1.702; sigmoid r0; mul x0 r1", 1); }
void own_gelu_dx(benchmark::State& state) {
  own_activation(
      state, "mul x0 1.702; sigmoid r0; mul x1 r1; mul x1 x0; sub 1 r1; mul r1 r4; mul r3 r5; mul r6 1.702; add r2 r7",
      2);
}
void silu_mul(benchmark::State& state) {
  const Dtype t = dtype_of(state);
  OneOp op("silu_mul");
  for (int i = 0; i < 2; ++i) op.read(t, {kRows, 4 * kWidth}, numbers(kRows * 4 * kWidth));
  op.write(t, {kRows, 4 * kWidth});
  run(state, op, 12 * kSmall * dtype_bytes(t), 4 * kSmall);
}
void tanh_of(benchmark::State& state) {
  const Dtype t = dtype_of(state);
  OneOp op("tanh");
  op.read(t, {kRows, 4 * kWidth}, numbers(kRows * 4 * kWidth)).write(t, {kRows, 4 * kWidth});
  run(state, op, 8 * kSmall * dtype_bytes(t), 4 * kSmall);
}
void dropout(benchmark::State& state) {
  const Dtype t = dtype_of(state);
  OneOp op("dropout");
  op.attr("p", 0.1).read(t, {kRows, kWidth}, numbers(kRows * kWidth)).write(t, {kRows, kWidth});
  run(state, op, 2 * kSmall * dtype_bytes(t), kSmall);
}
void rotary(benchmark::State& state) {
  const Dtype t = dtype_of(state);
  OneOp op("rotary");
  op.attr("size", kWidth / kHeads).attr("heads", kHeads).read(t, {1, kRows, kWidth}, numbers(kRows * kWidth));
  op.write(t, {1, kRows, kWidth});
  const int64_t angles = kRows * (kWidth / kHeads) * 4;  // a cosine and a sine for each pair of a head
  run(state, op, 2 * kSmall * dtype_bytes(t) + angles, kSmall);
}
// Logits of GPT-2's vocabulary, which exceed a core's cache. Gradients are written to another buffer: in place, the
// next iteration would read the previous gradient, and repeated gradients are all zeros.
void loss(benchmark::State& state, const char* kind, bool lse, bool gradient) {
  const Dtype t = dtype_of(state);
  const int64_t rows = 256, vocab = 50304;
  OneOp op(kind);
  op.attr("scale", 1.0 / static_cast<double>(rows)).read(t, {rows, vocab}, numbers(rows * vocab));
  op.read(Dtype::i32, {rows}, std::vector<double>(static_cast<size_t>(rows), 7));
  if (lse) op.write(Dtype::f32, {}).write(Dtype::f32, {rows});
  if (!lse) op.read(Dtype::f32, {rows}, numbers(rows));
  if (gradient) op.write(t, {rows, vocab});
  run(state, op, (gradient ? 2 : 1) * rows * vocab * dtype_bytes(t), rows * vocab);
}
void cross_entropy(benchmark::State& state) { loss(state, "cross_entropy", true, false); }
void cross_entropy_grad(benchmark::State& state) { loss(state, "cross_entropy_grad", false, true); }
void cross_entropy_and_grad(benchmark::State& state) { loss(state, "cross_entropy_and_grad", true, true); }

void optimizer(benchmark::State& state, const char* kind, Dtype param, int64_t n, bool casts) {
  OneOp op(kind);
  op.at_step(3, 1e-3).read(Dtype::f32, {n}, numbers(n)).read(param, {n}, numbers(n));
  for (int i = 0; i < 2; ++i) op.read(Dtype::f32, {n}, std::vector<double>(static_cast<size_t>(n), 0.01));
  op.write_over(1).write_over(2).write_over(3);
  if (casts) op.write(Dtype::bf16, {n});
  run(state, op, n * (5 * 4 + 2 * dtype_bytes(param) + (casts ? 2 : 0)), n);
}
void adamw_1m(benchmark::State& state) { optimizer(state, "adamw", dtype_of(state), 1 << 20, false); }
// A unit of GPT-2 whose update exceeds the cache, with bf16 parameters: two ops, or one.
constexpr int64_t kUnit = 7 << 20;
void adamw_7m(benchmark::State& state) { optimizer(state, "adamw", Dtype::f32, kUnit, false); }
void adamw_cast_7m(benchmark::State& state) { optimizer(state, "adamw_cast", Dtype::f32, kUnit, true); }
void cast_7m(benchmark::State& state) {
  OneOp op("cast");
  op.attr("dtype", "bf16").read(Dtype::f32, {kUnit}, numbers(kUnit)).write(Dtype::bf16, {kUnit});
  run(state, op, 6 * kUnit, kUnit);
}
void norm2_1m(benchmark::State& state) {
  OneOp op("norm2");
  op.read(Dtype::f32, {1 << 20}, numbers(1 << 20)).write(Dtype::f32, {});
  run(state, op, 4 << 20, 1 << 20);
}
BENCHMARK(copy)->RangeMultiplier(2)->Range(1 << 18, 1 << 28)->Unit(benchmark::kMicrosecond);
BENCHMARK(read)->RangeMultiplier(2)->Range(1 << 18, 1 << 28)->Unit(benchmark::kMicrosecond);
BENCHMARK(update)->RangeMultiplier(2)->Range(1 << 18, 1 << 28)->Unit(benchmark::kMicrosecond);
BENCHMARK(attention)->ArgsProduct({{0, 1}, {64, 128, 512, 1024}})->Unit(benchmark::kMicrosecond);
BENCHMARK(attention_grad)->ArgsProduct({{0, 1}, {64, 128, 512, 1024}})->Unit(benchmark::kMicrosecond);
// Argument: bf16.
BENCHMARK(layernorm)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(layernorm_grad)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
// Arguments: bf16, backward, fused.
BENCHMARK(residual_norm)->ArgsProduct({{0, 1}, {0, 1}, {0, 1}})->Unit(benchmark::kMicrosecond);
BENCHMARK(gelu)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(gelu_dx)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(own_gelu)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(own_gelu_dx)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(silu_mul)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(tanh_of)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(dropout)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(rotary)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(adamw_1m)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(norm2_1m)->Unit(benchmark::kMicrosecond);
BENCHMARK(adamw_7m)->Unit(benchmark::kMicrosecond);
BENCHMARK(cast_7m)->Unit(benchmark::kMicrosecond);
BENCHMARK(adamw_cast_7m)->Unit(benchmark::kMicrosecond);
BENCHMARK(cross_entropy)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(cross_entropy_grad)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(cross_entropy_and_grad)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace prun

int main(int count, char** words) {
  benchmark::Initialize(&count, words);
  if (benchmark::ReportUnrecognizedArguments(count, words)) return 1;
  benchmark::AddCustomContext("tiles", prun::cpu::has_amx() ? "1" : "0");
  prun::register_vector_rates();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
