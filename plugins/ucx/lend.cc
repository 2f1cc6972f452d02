// Large messages between ranks of one host, from memory that the plugin has allocated.
//
//   sender                                   receiver
//     | -- Place {memory, offset, bytes} ------> |  same tag as a message, so the order holds
//     |                                          |  copies once from the mapped memory
//     | <-- active message: taken (number) ----- |
//
// UCX 1.13 would read the message through the kernel (cma), which looks up every page, or send it through a queue,
// which copies twice. A mark that only this job has distinguishes a Place from a message of equal length.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "context.h"

namespace prun::ucx {
namespace {

constexpr size_t kLeast = 8 << 10;    // shorter messages are as fast without lending
constexpr size_t kSlice = 512 << 10;  // bytes copied per slice, so that a copy of gigabytes does not hold the lock
constexpr unsigned kTakenMessage = 2;

}  // namespace

// Returns a hash of the secret, because the mark is sent in the clear.
Place::Mark mark_of(const uint8_t (&secret)[32]) {
  Place::Mark mark{0xcbf29ce484222325u, 0x84222325cbf29ce4u};
  for (uint64_t& word : mark) {
    for (uint8_t byte : secret) word = (word ^ byte) * 0x100000001b3u;
  }
  return mark;
}

bool Context::lend(Operation& operation, Peer& peer, uint64_t tag) {
  if (operation.bytes < kLeast || !peer.maps_us) return false;
  const auto* data = static_cast<const char*>(operation.data);
  for (size_t i = 0; i < std::min(memory_.size(), shared_); ++i) {
    const Memory& memory = memory_[i];
    if (data < memory.start || data + operation.bytes > memory.start + memory.bytes) continue;
    operation.place = {mark_, i, static_cast<uint64_t>(data - memory.start), operation.bytes, ++lent_so_far_};
    operation.parts = 2;  // two parts: the Place was sent, and the message was taken
    lent_[operation.place.number] = &operation;
    const ucp_request_param_t param = with_callback(on_ended, operation);
    started(operation, ucp_tag_send_nbx(peer.endpoint, &operation.place, sizeof operation.place, tag, &param));
    return true;
  }
  return false;
}

// Starts the copy of a receive that got a Place instead of a message.
void Context::borrow(Operation& operation, const Place& place) {
  Peer& peer = peers_[operation.peer];
  if (place.bytes != operation.bytes) return differs(operation, place.bytes);
  const bool known = place.memory < peer.memory.size() && place.offset <= peer.memory[place.memory].bytes &&
                     place.bytes <= peer.memory[place.memory].bytes - place.offset;
  if (!known) {
    fail({PRUN_ECORRUPT, peer.rank, fmt::format("rank #{} lends memory that it does not have", peer.rank)});
    return ended(operation, UCS_ERR_INVALID_ADDR);
  }
  operation.place = place;
  const Peer::Memory& memory = peer.memory[place.memory];
  if (memory.mapped != nullptr) {
    operation.source = memory.mapped + place.offset;
    return copies_.push_back(&operation);
  }
  const ucp_request_param_t param = with_callback(on_got, operation);
  const ucs_status_ptr_t ucx =
      ucp_get_nbx(peer.endpoint, operation.data, operation.bytes, memory.address + place.offset, memory.key, &param);
  if (!UCS_PTR_IS_PTR(ucx)) was_got(operation, UCS_PTR_RAW_STATUS(ucx));
}

bool Context::copy_some() {
  if (copies_.empty()) return false;
  Operation& operation = *copies_.front();
  const size_t n = std::min(kSlice, operation.bytes - operation.moved);
  std::memcpy(static_cast<char*>(operation.data) + operation.moved, operation.source + operation.moved, n);
  operation.moved += n;
  if (operation.moved < operation.bytes) return true;
  copies_.pop_front();
  std::atomic_thread_fence(std::memory_order_acq_rel);  // the copy ends before its owner is notified
  was_got(operation, UCS_OK);
  return true;
}

void Context::was_got(Operation& operation, ucs_status_t status) {
  if (status != UCS_OK) return ended(operation, status);
  const ucp_request_param_t param = with_callback(on_ended, operation);
  started(operation, ucp_am_send_nbx(peers_[operation.peer].endpoint, kTakenMessage, &operation.place.number,
                                     sizeof operation.place.number, nullptr, 0, &param));
}

void Context::on_got(void* ucx, ucs_status_t status, void* user_data) {
  auto& operation = *static_cast<Operation*>(user_data);
  operation.context->was_got(operation, status);
  ucp_request_free(ucx);
}

ucs_status_t Context::on_taken(void* user_data, const void* header, size_t bytes, void*, size_t,
                               const ucp_am_recv_param_t*) {
  auto& context = *static_cast<Context*>(user_data);
  uint64_t number = 0;
  if (bytes == sizeof number) std::memcpy(&number, header, sizeof number);
  const auto lent = context.lent_.find(number);
  if (lent == context.lent_.end()) return UCS_OK;
  Operation& operation = *lent->second;
  context.lent_.erase(lent);
  context.ended(operation, UCS_OK);
  return UCS_OK;
}

void Context::listen_to_takers() { listen(kTakenMessage, on_taken); }

}  // namespace prun::ucx
