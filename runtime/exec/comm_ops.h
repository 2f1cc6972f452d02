// Communication ops of a program as kernels over communicators. A call is prepared once, when its kernel is made.
//
// Making a communicator is collective, so all ranks make the kernels of their ops in the same order (stream by stream,
// op by op), or the communicators beforehand. run() throws as Communicator::run does.
#pragma once
#include <memory>
#include <utility>

#include "comm/comm.h"
#include "device/device.h"

namespace prun {

// Returns a kernel that calls `body`.
template <class Body>
std::unique_ptr<Kernel> kernel_of(Body body) {
  class BodyKernel final : public Kernel {
   public:
    explicit BodyKernel(Body body) : body_(std::move(body)) {}
    void run() override { body_(); }

   private:
    Body body_;
  };
  return std::make_unique<BodyKernel>(std::move(body));
}

// Returns a kernel that runs `op` over its group's communicator, or over a put channel.
std::unique_ptr<Kernel> make_comm_kernel(const RankMemory& memory, const Op& op, World& world);

// Returns a kernel for a transport that enqueues on a device's streams. Its run() returns once the call is in `queue`,
// and does nothing for an offer.
std::unique_ptr<Kernel> make_enqueued_kernel(const RankMemory& memory, const Op& op, World& world, prun_queue queue);

// Likewise for a counted op; `counts`: their copy in host memory, read by each run.
std::unique_ptr<Kernel> make_counted_kernel(const RankMemory& memory, const Op& op, World& world, const void* counts,
                                            prun_queue queue);

// Sends a byte between all pairs of members, so that none of them connects in the middle of a step: that blocks the
// thread that enqueues, while a collective of the peer may wait for it. All members call it.
void connect_pairs(Communicator& communicator);

// Returns the channel of a one-sided op that the transport implements; null: the op is not one-sided, or is a message
// through a communicator.
PutChannel* put_channel_of(const RankMemory& memory, const Op& op, World& world);

// Returns the communicator of the op's group, on its lane.
Communicator& communicator_of(const RankMemory& memory, const Op& op, World& world);

// Returns the op's collective with this rank's pointers; counts are in elements. Does not support all_gather_v.
CollCall coll_call(const RankMemory& memory, const Op& op, int group_size);

}  // namespace prun
