// require_same, the end of the body of --check-replicas: fails if ranks hold different things that are to be alike.
#pragma once
#include <memory>

#include "device/device.h"

namespace prun {

// run() throws Error(corrupt_link) for the first tensor whose fingerprints differ along the op's axis: its name, the
// ranks, the step.
std::unique_ptr<Kernel> make_require_same(const RankMemory& memory, const Op& op);

}  // namespace prun
