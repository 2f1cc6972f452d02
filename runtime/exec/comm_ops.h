// Communication ops of a program as kernels over communicators.
#pragma once
#include <memory>

#include "comm/comm.h"
#include "device/device.h"

namespace prun {

// A kernel that runs `op` over its group's communicator; run() throws what Communicator::run throws. Makes the
// communicator, so all ranks must call it for their ops in the same order (stream by stream, op by op).
std::unique_ptr<Kernel> make_comm_kernel(const RankMemory& memory, const Op& op, World& world);

// The same where the transport enqueues on a device's streams: run() returns once it is in `queue`; nothing for an
// offer.
std::unique_ptr<Kernel> make_enqueued_kernel(const RankMemory& memory, const Op& op, World& world, prun_queue queue);

// Where a one-sided op is carried out by the transport; null: it is a message through a communicator, or no such op.
PutChannel* put_channel_of(const RankMemory& memory, const Op& op, World& world);

// Of the op's group, on its lane.
Communicator& communicator_of(const RankMemory& memory, const Op& op, World& world);

// The collective that an op stands for, with this rank's pointers; counts are in elements. Not for all_gather_v.
CollCall coll_call(const RankMemory& memory, const Op& op, int group_size);

}  // namespace prun
