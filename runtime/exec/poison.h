// --chaos nan: a rank's first gradient of a step becomes NaN when it is told to.
#pragma once
#include <atomic>
#include <memory>

#include "device/device.h"

namespace prun {

using Poison = std::shared_ptr<std::atomic<bool>>;

// The op of a step whose result it is; null: the rank computes no gradients.
const Op* poisoned_op(const Program& program);
// `kernel`, and then, where the poison is set, a NaN over the first element of what `op` has written; that takes it.
std::unique_ptr<Kernel> poisoned(std::unique_ptr<Kernel> kernel, const RankMemory& memory, const Op& op, Poison poison);

}  // namespace prun
