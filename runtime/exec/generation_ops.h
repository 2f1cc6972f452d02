// The host's part of a generation: supplies the next tokens, and chooses a token from the logits.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.h"
#include "exec/sampler.h"

namespace prun {

struct GenerationOptions {
  std::vector<int32_t> prompt;  // empty: the job generates nothing
  std::vector<int32_t> ends;    // tokens that end the generation
  Sampling sampling;
};

// The text so far; one object per rank, with equal contents on all ranks.
class GenerationServices {
 public:
  // `print` receives "TOKEN LOG_PROBABILITY" for each generated token.
  GenerationServices(GenerationOptions options, int rank, std::function<void(const std::string&)> print);
  const std::vector<int32_t>& prompt() const { return options_.prompt; }
  int32_t last() const { return last_; }
  int64_t position() const { return position_; }  // index of `last` in the text
  void take(std::span<const double> logits);
  bool ended() const { return ended_; }

 private:
  GenerationOptions options_;
  int rank_;
  std::function<void(const std::string&)> print_;
  int32_t last_;
  int64_t position_, made_ = 0;
  bool ended_ = false;
};

// Returns null if `op` is not one of these ops.
std::unique_ptr<Kernel> make_generation_kernel(const RankMemory& memory, const Op& op,
                                               const std::shared_ptr<GenerationServices>& services);

}  // namespace prun
