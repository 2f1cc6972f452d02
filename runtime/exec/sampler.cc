// Chooses a token at random in time linear in the vocabulary.
//
// The definition: sort the tokens by probability, multiply `unit` by the sum of the weights, and subtract one weight
// after the other until the remainder is less than the next weight. Surprising fact: a large vocabulary is not sorted
// for that. find() narrows the run of tokens that contains the choice and bounds its rounding errors. If a bound
// includes the border to a neighbouring token, by_sorting() decides, so that the chosen token is always that of the
// definition.
#include "exec/sampler.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "base/error.h"
#include "prun/philox.h"

namespace prun {
namespace {

constexpr uint64_t kSamplingKey = (1ULL << 62) + 4;  // distinct from the keys of data and parameters
constexpr size_t kFewTokens = 256;                   // sets and runs of at most this size are sorted

double log_sum_exp(std::span<const double> logits, double top) {
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - top);
  return top + std::log(sum);
}

struct Candidate {
  double logit = 0;
  int64_t token = 0;
  double weight = 0;
};

using Candidates = std::span<Candidate>;

bool more_likely(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

double sum_of_weights(std::span<const Candidate> candidates) {
  return std::accumulate(candidates.begin(), candidates.end(), 0.0,
                         [](double sum, const Candidate& c) { return sum + c.weight; });
}

// Implements the definition.
int64_t by_sorting(Candidates set, double top_p, double unit) {
  std::ranges::sort(set, more_likely);
  const double sum = sum_of_weights(set);
  double so_far = 0;
  size_t kept = 0;
  while (kept < set.size() && (kept == 0 || so_far < top_p * sum)) so_far += set[kept++].weight;
  double left = unit * so_far;
  size_t i = 0;
  while (i + 1 < kept && left >= set[i].weight) left -= set[i++].weight;
  return set[i].token;
}

// The first token at which the weights, summed from the most likely token on, exceed a sum.
struct Reached {
  size_t place = 0;  // in the set; only more likely tokens precede it
  double sum = 0;    // sum of the weights up to and including this token's
};

// Returns null if an error of `error` in any sum could change the result to another token. Reorders the set. Splits a
// run into a more and a less likely part until few tokens are left, so that all splits together pass over the set a few
// times.
std::optional<Reached> find(Candidates set, double target, double error) {
  size_t begin = 0, end = set.size();
  double before = 0;  // weights of the tokens before the run
  while (end - begin > kFewTokens) {
    const size_t middle = begin + (end - begin) / 8;  // most of a softmax's mass is in its first few tokens
    std::ranges::nth_element(set.begin() + begin, set.begin() + middle, set.begin() + end, more_likely);
    const double after = before + sum_of_weights(set.subspan(begin, middle - begin));
    if (target < after)
      end = middle;
    else
      begin = middle, before = after;
  }
  std::ranges::sort(set.subspan(begin, end - begin), more_likely);
  for (size_t i = begin; i < end; ++i) {
    const double after = before + set[i].weight;
    if (target < after) {
      const bool certain = (i == 0 || target - before > error) && after - target > error;
      return certain ? std::optional(Reached{i, after}) : std::nullopt;
    }
    before = after;
  }
  return std::nullopt;
}

std::optional<int64_t> by_selecting(Candidates set, double top_p, double unit) {
  double sum = sum_of_weights(set);
  // A sum of n terms has an error of at most n·2⁻⁵³ of its largest partial sum, in any order, and by_sorting()
  // subtracts as many terms. Eight such bounds cover the sums, subtractions and multiplications of both methods
  // together.
  const double error = 8 * static_cast<double>(set.size() + 8) * 0x1p-53 * sum;
  if (top_p < 1) {
    const std::optional<Reached> last = find(set, top_p * sum, error);
    if (!last) return std::nullopt;
    set = set.first(last->place + 1);
    sum = last->sum;
  }
  const std::optional<Reached> found = find(set, unit * sum, error);
  return found ? std::optional(set[found->place].token) : std::nullopt;
}

// Returns the count-th largest logit.
double least_kept(std::span<const double> logits, size_t count) {
  if (count <= kFewTokens) {
    std::vector<double> kept(count);
    std::ranges::partial_sort_copy(logits, kept, std::greater());
    return kept.back();
  }
  std::vector<double> all(logits.begin(), logits.end());
  std::ranges::nth_element(all, all.begin() + static_cast<std::ptrdiff_t>(count) - 1, std::greater());
  return all[count - 1];
}

// Returns the top_k most likely tokens, in vocabulary order.
std::vector<Candidate> candidates(std::span<const double> logits, const Sampling& sampling, double top) {
  const size_t all = logits.size(), count = sampling.top_k > 0 ? std::min<size_t>(sampling.top_k, all) : all;
  const double least = count < all ? least_kept(logits, count) : -std::numeric_limits<double>::infinity();
  size_t equal = count;  // number of tokens kept among those with the least logit
  if (count < all) equal -= static_cast<size_t>(std::ranges::count_if(logits, [&](double x) { return x > least; }));
  std::vector<Candidate> set;
  set.reserve(count);
  for (size_t i = 0; i < all; ++i) {
    if (logits[i] < least || (logits[i] == least && equal == 0)) continue;
    if (logits[i] == least) --equal;
    set.push_back({logits[i], static_cast<int64_t>(i), std::exp((logits[i] - top) / sampling.temperature)});
  }
  return set;
}

int64_t at_random(std::span<const double> logits, const Sampling& sampling, double top, double unit) {
  std::vector<Candidate> set = candidates(logits, sampling, top);
  if (set.size() > kFewTokens)
    if (const std::optional<int64_t> token = by_selecting(set, sampling.top_p, unit)) return *token;
  return by_sorting(set, sampling.top_p, unit);
}

}  // namespace

Choice choose(std::span<const double> logits, const Sampling& sampling, int64_t index) {
  const auto best = std::max_element(logits.begin(), logits.end());  // the first of equal ones
  if (std::ranges::any_of(logits, [](double x) { return std::isnan(x); }) || std::isinf(*best))
    throw Error(Exit::non_finite, "the model's logits are no finite numbers: its weights hold NaN or infinity");
  Choice choice{best - logits.begin(), 0};
  if (sampling.temperature > 0) {
    const philox::Words words = philox::block(sampling.seed, kSamplingKey, static_cast<uint64_t>(index));
    const double unit = (static_cast<double>(words[0]) + static_cast<double>(words[1]) * 0x1p-32) * 0x1p-32;
    choice.token = at_random(logits, sampling, *best, unit);
  }
  choice.log_probability = logits[choice.token] - log_sum_exp(logits, *best);
  return choice;
}

}  // namespace prun
