// --chaos SPEC: faults that a rank of one's own job brings about, at a step and, by a seed, at a moment within it. How
// a job ends is part of what prun promises; so it can be tried.
//
//     kill:rank=3@step=7;flip:rank=any,peer=any,within=20@step=2;seed=5
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/comm.h"
#include "device/device.h"

namespace prun {

struct ChaosFault {
  enum class Kind { kill, stop, delay, reset, flip, enospc, nan, omit } kind;
  int rank = 0, peer = -1;  // -1: by the seed
  int64_t step = 1;         // before which it comes, from 1
  double seconds = 1;       // of a delay
  int64_t within_ms = 0;    // at a moment so long after the step's begin at most, by the seed
  uint64_t seed = 0;        // of its own
};

// With ranks that the seed chooses filled in. Throws usage_error with the wrong word.
std::vector<ChaosFault> parse_chaos(const std::string& spec, int ranks);

// One rank's faults. `world` outlives it.
class Chaos {
 public:
  Chaos(const std::string& spec, int rank, int ranks, World& world);
  ~Chaos();
  void begin_step(int64_t step);  // from 0; before it
  // Set when a gradient of the rank is to become NaN; null: never.
  const std::shared_ptr<std::atomic<bool>>& poison() const { return poison_; }
  // Set when the rank is to leave out a collective; null: never.
  const std::shared_ptr<std::atomic<bool>>& omission() const { return omission_; }

 private:
  void bring_about(const ChaosFault& fault);
  std::vector<ChaosFault> faults_;
  World& world_;
  std::shared_ptr<std::atomic<bool>> poison_, omission_;
  std::vector<std::thread> later_;
};

// --chaos omit: a rank leaves out a collective when it is told to, so that its peers meet its next one.
using Omission = std::shared_ptr<std::atomic<bool>>;

// `kernel`, but for the run that finds the omission set; that takes it.
std::unique_ptr<Kernel> omitting(std::unique_ptr<Kernel> kernel, Omission omission);

// --chaos nan: a rank's first gradient of a step becomes NaN when it is told to.
using Poison = std::shared_ptr<std::atomic<bool>>;

// The op of a step whose result it is; null: the rank computes no gradients.
const Op* poisoned_op(const Program& program);
// `kernel`, and then, where the poison is set, a NaN over the first element of what `op` has written; that takes it.
std::unique_ptr<Kernel> poisoned(std::unique_ptr<Kernel> kernel, const RankMemory& memory, const Op& op, Poison poison);

}  // namespace prun
