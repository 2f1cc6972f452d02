// Chooses a token from logits: the most likely one, or one at random, by temperature, among the most likely.
#pragma once
#include <cstdint>
#include <span>

namespace prun {

struct Sampling {
  double temperature = 1;  // 0: the most likely token
  int64_t top_k = 0;       // of so many most likely tokens; 0: of all
  double top_p = 1;        // of the most likely ones whose probabilities add up to this
  uint64_t seed = 0;
};

struct Choice {
  int64_t token = 0;
  double log_probability = 0;  // by the model's own softmax, whatever the temperature
};

// A function of its arguments alone, so ranks that see the same logits choose the same; `index` is the number of the
// choice. First temperature, then top_k, then top_p, as Hugging Face's transformers do it. Of equal logits the lower
// token is the more likely one. Allocates.
Choice choose(std::span<const double> logits, const Sampling& sampling, int64_t index);

}  // namespace prun
