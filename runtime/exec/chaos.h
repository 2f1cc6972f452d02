// --chaos SPEC: injects faults into ranks of one's own job, at a step and, by a seed, at a moment within it, to test
// how a job ends.
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
  int rank = 0, peer = -1;  // -1 = chosen by the seed
  int64_t step = 1;         // the fault comes before this step; counted from 1
  double seconds = 1;       // duration of a delay
  int64_t within_ms = 0;    // maximum delay after the step's begin; the seed chooses the moment
  uint64_t seed = 0;        // seed of this fault
};

// Returns the faults, with ranks that the seed chooses filled in. Throws usage_error that names the wrong text.
std::vector<ChaosFault> parse_chaos(const std::string& spec, int ranks);

// Throws usage_error for a fault that would not happen: its step is not among those after `first` up to `last`, or the
// disk fills up while nothing is written.
void require_effect(const std::vector<ChaosFault>& faults, int64_t first, int64_t last, bool checkpoints);

// One rank's faults. `world` must outlive it.
class Chaos {
 public:
  Chaos(const std::string& spec, int rank, int ranks, World& world);
  ~Chaos();
  void begin_step(int64_t step);  // call before the step; steps count from 0
  // Set when a gradient of the rank is to become NaN; null = never.
  const std::shared_ptr<std::atomic<bool>>& poison() const { return poison_; }
  // Set when the rank is to skip a collective; null = never.
  const std::shared_ptr<std::atomic<bool>>& omission() const { return omission_; }

 private:
  void bring_about(const ChaosFault& fault);
  std::vector<ChaosFault> faults_;
  World& world_;
  std::shared_ptr<std::atomic<bool>> poison_, omission_;
  std::vector<std::thread> later_;
};

// --chaos omit: a rank skips one collective when the flag is set, so that its peers receive its next one.
using Omission = std::shared_ptr<std::atomic<bool>>;

// Wraps `kernel`: a run that finds the omission set clears it and does nothing.
std::unique_ptr<Kernel> omitting(std::unique_ptr<Kernel> kernel, Omission omission);

// --chaos nan: a rank's first gradient of a step becomes NaN when the flag is set.
using Poison = std::shared_ptr<std::atomic<bool>>;

// Returns the op of a step that writes this gradient; null: the rank computes no gradients.
const Op* poisoned_op(const Program& program);
// Wraps `kernel`: a run that finds the poison set clears it, and afterwards writes a NaN to the first element of `op`'s
// output.
std::unique_ptr<Kernel> poisoned(std::unique_ptr<Kernel> kernel, const RankMemory& memory, const Op& op, Poison poison);

}  // namespace prun
