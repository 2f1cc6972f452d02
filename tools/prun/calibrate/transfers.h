// What collectives and messages take where they stand in a step: from the arrival of the last rank on, of buffers that
// ops have just written. prun bench repeats a call on the same buffers, which caches then hold.
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
  std::optional<CollKind> kind;  // none: a message
  int ranks = 2;
  double bytes = 0;  // of the full buffer
  double seconds = 0;
};

// Those of this rank beside which nothing computed.
nlohmann::json recorded_transfers(const Program& program, int rank, RecorderHeader* recorder);
// `ranks`: recorded_transfers of all of them; their clock is one. Medians over steps.
std::vector<TransferSample> transfers_of_all(const std::vector<nlohmann::json>& ranks);

// Replaces what prun bench found for a link at these sizes.
void take_transfers(const std::vector<TransferSample>& samples, simulate::LinkModel& link);

}  // namespace prun
