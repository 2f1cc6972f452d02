// Judges a mutant: rejected by the verifier, equivalent to the original, or escaped.
#pragma once
#include <string>

#include "device/device.h"
#include "exec/virtual_ranks.h"
#include "mutant.h"

namespace prun::mutate {

inline constexpr int kInterleavings = 32;  // the first two run each stream as early and as late as its edges allow, the
                                           // others are seeded

enum class Outcome { refused, equivalent, without_effect, escaped };

struct Verdict {
  Outcome outcome = Outcome::refused;
  std::string why;  // refused: the rule; escaped: the difference
};

class Judge {
 public:
  Judge(const Job& right, const Device& device);
  Verdict judge(const Mutant& mutant) const;

 private:
  std::string difference(const Job& job) const;  // "" if all interleavings agree with the original
  std::string compare(const Job& job, const VirtualRun& run) const;

  const Device& device_;
  const Job& right_;
  VirtualRun expected_;
};

}  // namespace prun::mutate
