// The next batch of a body's data, as a kernel of the host.
#pragma once
#include <memory>

#include "device/device.h"

namespace prun {

// Throws usage_error when a file of the data is gone or has changed; so does run(), where it happens later, and where
// an id is not in the vocabulary.
std::unique_ptr<Kernel> make_next_batch(const RankMemory& memory, const Op& op);

}  // namespace prun
