// The embedding's gradient at the sizes of GPT-2 124M and Llama 8B, with uniform ids and with ids by Zipf's law as in
// text: a frequent word's row sums thousands of tokens, which uniform ids hide.
//
// No library has the op, so the yardstick is a copy of as many bytes.
#include <fmt/format.h>

#include <random>
#include <string_view>

#include "tools/bench/cuda_bench.h"

namespace prun::bench {
namespace {

struct Shape {
  const char* model;
  int64_t batch, length, vocab, width;
};
constexpr Shape kShapes[] = {{"GPT-2 124M", 64, 1024, 50304, 768}, {"Llama 8B", 4, 2048, 128256, 4096}};

// Ids in no order of frequency: rank r has a share of 1 / (r + 2.7) (Mandelbrot 1953), as in token_ids.py.
std::vector<int32_t> ids_of(const Shape& s, bool zipf) {
  std::vector<double> weights(static_cast<size_t>(s.vocab), 1.0);
  for (size_t r = 0; zipf && r < weights.size(); ++r) weights[r] = 1 / (static_cast<double>(r) + 2.7);
  std::discrete_distribution<int64_t> rank(weights.begin(), weights.end());
  std::mt19937_64 random(1);
  std::vector<int32_t> ids(static_cast<size_t>(s.batch * s.length));
  constexpr int64_t kStride = 7919;  // a prime, so that it permutes the ranks
  for (int32_t& id : ids) id = static_cast<int32_t>(rank(random) * kStride % s.vocab);
  return ids;
}

void figures_of(CudaBench& bench, const Shape& s, bool zipf, const std::function<void(const Figure&)>& report) {
  const std::vector<int32_t> ids = ids_of(s, zipf);
  const BenchOperand tokens{bench.bytes(ids.size() * sizeof(int32_t)), {s.batch, s.length}, PRUN_I32};
  check(cudaMemcpy(tokens.data, ids.data(), ids.size() * sizeof(int32_t), cudaMemcpyHostToDevice), "cudaMemcpy");
  const BenchOperand dy = bench.tensor({s.batch, s.length, s.width}, PRUN_BF16);
  const BenchOperand dtable = bench.tensor({s.vocab, s.width}, PRUN_F32);
  const std::function<void()> op = bench.op(
      {"embedding_grad", {tokens, dy}, {dtable}, {integer_attr("vocab", s.vocab), integer_attr("positions", 0)}});
  const size_t bytes = static_cast<size_t>(s.width * (s.batch * s.length * 2 + s.vocab * 4)) / 2;
  char* half = static_cast<char*>(bench.bytes(2 * bytes));
  const std::vector<double> times = bench.times(
      {op, [&] {
         check(cudaMemcpyAsync(half, half + bytes, bytes, cudaMemcpyDefault, bench.stream()), "cudaMemcpyAsync");
       }});
  report({.group = s.model,
          .what = fmt::format("embedding_grad, {}", zipf ? "Zipf ids" : "uniform ids"),
          .ours = times[0],
          .best = times[1],
          .best_is = "a copy of as many bytes",
          .judged = false});
}

}  // namespace

void embedding_figures(CudaBench& bench, const std::string& only, const std::function<void(const Figure&)>& report) {
  for (Shape s : kShapes) {
    for (const bool zipf : {false, true}) {
      const std::string name = fmt::format("embedding_grad, {}", zipf ? "Zipf ids" : "uniform ids");
      if (fmt::format("{} {}", s.model, name).find(only) == std::string::npos) continue;
      if (bench.small) s.batch = 2, s.length = 512, s.vocab = 1000, s.width = 256;
      measure_or_say(
          {s.model, name}, [&] { figures_of(bench, s, zipf, report); }, report);
      bench.forget();
    }
  }
}

}  // namespace prun::bench
