// Surprising fact: a random choice is the first token at which the probabilities, from the largest on, add up to a
// number that depends on seed and index only, so a larger top_k does not change choices among the most likely.
#include "exec/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "prun/philox.h"

namespace prun {
namespace {

constexpr uint64_t kSamplingKey = (1ULL << 62) + 4;  // apart from those of data and parameters

double log_sum_exp(std::span<const double> logits, double top) {
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - top);
  return top + std::log(sum);
}

// Tokens that are in the choice, the most likely first, and their weights.
struct Candidates {
  std::vector<int64_t> tokens;
  std::vector<double> weights;
};

Candidates candidates(std::span<const double> logits, const Sampling& sampling, double top) {
  Candidates c;
  c.tokens.resize(logits.size());
  std::iota(c.tokens.begin(), c.tokens.end(), 0);
  const auto more_likely = [&](int64_t a, int64_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  const int64_t most = std::ssize(c.tokens), kept = sampling.top_k > 0 ? std::min(sampling.top_k, most) : most;
  std::partial_sort(c.tokens.begin(), c.tokens.begin() + kept, c.tokens.end(), more_likely);
  c.tokens.resize(kept);
  double sum = 0;
  for (const int64_t token : c.tokens) {
    c.weights.push_back(std::exp((logits[token] - top) / sampling.temperature));
    sum += c.weights.back();
  }
  double so_far = 0;
  for (size_t i = 0; i < c.weights.size(); ++i) {
    so_far += c.weights[i];
    if (so_far < sampling.top_p * sum) continue;
    c.tokens.resize(i + 1);
    c.weights.resize(i + 1);
  }
  return c;
}

}  // namespace

Choice choose(std::span<const double> logits, const Sampling& sampling, int64_t index) {
  const auto best = std::max_element(logits.begin(), logits.end());  // the first of equal ones
  if (std::ranges::any_of(logits, [](double x) { return std::isnan(x); }) || std::isinf(*best))
    throw Error(Exit::non_finite, "the model's logits are no finite numbers: its weights hold NaN or infinity");
  Choice choice{best - logits.begin(), 0};
  if (sampling.temperature > 0) {
    const Candidates c = candidates(logits, sampling, *best);
    const philox::Words words = philox::block(sampling.seed, kSamplingKey, static_cast<uint64_t>(index));
    const double unit = (static_cast<double>(words[0]) + static_cast<double>(words[1]) * 0x1p-32) * 0x1p-32;
    double left = unit * std::accumulate(c.weights.begin(), c.weights.end(), 0.0);
    size_t i = 0;
    while (i + 1 < c.tokens.size() && left >= c.weights[i]) left -= c.weights[i++];
    choice.token = c.tokens[i];
  }
  choice.log_probability = logits[choice.token] - log_sum_exp(logits, *best);
  return choice;
}

}  // namespace prun
