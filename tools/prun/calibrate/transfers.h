// Durations of collectives and messages inside a step: from the arrival of the last rank, on buffers that ops have just
// written. In contrast, prun bench repeats a call on the same buffers, which remain in the caches.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "exec/recorder.h"
#include "ir/program.h"
#include "simulate/cluster.h"

namespace prun {

struct TransferSample {
  std::optional<CollKind> kind;  // nullopt: a message
  int ranks = 2;
  double bytes = 0;  // bytes of the full buffer
  double seconds = 0;
};

// Returns this rank's transfers. Transfers with hardly any overlapping compute are marked.
nlohmann::json recorded_transfers(const Program& program, int rank, RecorderHeader* recorder);
// Joins recorded_transfers of all ranks, which share a clock. Returns medians over steps.
std::vector<TransferSample> transfers_of_all(const std::vector<nlohmann::json>& ranks);

// Replaces prun bench's results for a link at these sizes.
void take_transfers(const std::vector<TransferSample>& samples, simulate::LinkModel& link);

}  // namespace prun
