// Norms with the residuals that they take in, at the sizes of GPT-2 124M and of Llama 7B: as one op beside the two that
// it is made of, and beside a copy of as many bytes, which is what the GPU's memory allows.
//
// No library has these ops, so figures are held to nothing.
#include <fmt/format.h>

#include <string_view>

#include "tools/bench/cuda_bench.h"

namespace prun::bench {
namespace {

struct Shape {
  const char *model, *norm;
  int64_t rows, width;
};
constexpr Shape kShapes[] = {{"GPT-2 124M", "layernorm", 64 * 1024, 768}, {"Llama 7B", "rmsnorm", 4 * 2048, 4096}};

void figures_of(CudaBench& bench, const Shape& s, const std::function<void(const Figure&)>& report) {
  const bool centred = std::string_view(s.norm) == "layernorm";
  const auto tensor = [&] { return bench.tensor({s.rows, s.width}, PRUN_BF16); };
  const BenchOperand a = tensor(), b = tensor(), x = tensor(), y = tensor(), extra = tensor();
  const BenchOperand gamma = bench.tensor({s.width}, PRUN_BF16), beta = bench.tensor({s.width}, PRUN_BF16);
  const BenchOperand mean = bench.tensor({s.rows}, PRUN_F32), scale = bench.tensor({s.rows}, PRUN_F32);
  const BenchOperand dgamma = bench.tensor({s.width}, PRUN_F32), dbeta = bench.tensor({s.width}, PRUN_F32);
  using Operands = std::vector<BenchOperand>;
  const auto joined = [](Operands first, const Operands& more) {
    first.insert(first.end(), more.begin(), more.end());
    return first;
  };
  const Operands parameters = centred ? Operands{gamma, beta} : Operands{gamma};
  const Operands gradients = centred ? Operands{dgamma, dbeta} : Operands{dgamma};
  const Operands statistics = centred ? Operands{mean, scale} : Operands{scale};
  const std::string forward = s.norm, backward = forward + "_grad";
  const std::string added = "add_" + forward, backward_added = backward + "_add";
  const size_t bytes = static_cast<size_t>(s.rows * s.width) * 2;
  const auto copy = [&, half = static_cast<char*>(bench.bytes(4 * bytes))] {
    check(cudaMemcpyAsync(half, half + 2 * bytes, 2 * bytes, cudaMemcpyDefault, bench.stream()), "cudaMemcpyAsync");
  };

  const auto figure = [&](const std::string& name, const BenchOp& one, const BenchOp& first, const BenchOp& second) {
    const std::function<void()> fused = bench.op(one), before = bench.op(first), behind = bench.op(second);
    const std::vector<double> times = bench.times({fused, [&] { before(), behind(); }, copy});
    report({.group = s.model,
            .what = name,
            .ours = times[0],
            .best = times[2],
            .best_is = fmt::format("a copy of as many bytes; as two ops {:.1f} us", times[1]),
            .judged = false});
  };
  figure(added, {added.c_str(), joined({a, b}, parameters), joined({y, x}, statistics), {}}, {"add", {a, b}, {x}, {}},
         {forward.c_str(), joined({x}, parameters), joined({y}, statistics), {}});
  const Operands reads = joined({x, a, gamma}, statistics);
  figure(backward_added, {backward_added.c_str(), joined(reads, {b}), joined({y}, gradients), {}},
         {backward.c_str(), reads, joined({extra}, gradients), {}}, {"add", {b, extra}, {y}, {}});
}

}  // namespace

void norm_figures(CudaBench& bench, const std::string& only, const std::function<void(const Figure&)>& report) {
  for (Shape s : kShapes) {
    if (fmt::format("{} {}", s.model, s.norm).find(only) == std::string::npos) continue;
    if (bench.small) s.rows = 64, s.width = 256;
    measure_or_say(
        {s.model, s.norm}, [&] { figures_of(bench, s, report); }, report);
    bench.forget();
  }
}

}  // namespace prun::bench
