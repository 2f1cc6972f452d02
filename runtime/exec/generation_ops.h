// The host's part of a generation: which tokens come next, and the choice of a token from the logits.
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
  std::vector<int32_t> ends;    // tokens after which no more are made
  Sampling sampling;
};

// The text as far as it has come; one of a rank, and the same on all.
class GenerationServices {
 public:
  // `print`: takes "TOKEN LOG_PROBABILITY" for each token that is made.
  GenerationServices(GenerationOptions options, int rank, std::function<void(const std::string&)> print);
  const std::vector<int32_t>& prompt() const { return options_.prompt; }
  int32_t last() const { return last_; }
  int64_t position() const { return position_; }  // of `last` in the text
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

// Null: `op` is none of them.
std::unique_ptr<Kernel> make_generation_kernel(const RankMemory& memory, const Op& op,
                                               const std::shared_ptr<GenerationServices>& services);

}  // namespace prun
