// Chooses a token from logits: the most likely one, or one at random by temperature, top-k and top-p.
#pragma once
#include <cstdint>
#include <span>

namespace prun {

struct Sampling {
  double temperature = 1;  // 0 = the most likely token
  int64_t top_k = 0;       // number of most likely tokens to choose from; 0 = all
  double top_p = 1;        // probability mass of the most likely tokens to choose from
  uint64_t seed = 0;
};

struct Choice {
  int64_t token = 0;
  double log_probability = 0;  // by the model's own softmax, whatever the temperature
};

// Returns a function of the arguments alone, so that ranks with the same logits choose the same token; `index` is the
// number of the choice. Applies the temperature, then top_k, then top_p, like Hugging Face's transformers. The lower of
// two tokens with equal logits counts as the more likely one. Takes time linear in the number of logits, and allocates.
// Throws if a logit is NaN or the largest is infinite; a logit of minus infinity has probability 0.
Choice choose(std::span<const double> logits, const Sampling& sampling, int64_t index);

}  // namespace prun
