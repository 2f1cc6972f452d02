// One-sided calls. A signal is an active message that is sent once UCX has flushed the preceding puts.
//
// A counter in the peer's memory behind a fence does not suffice: a fence orders one path, but large puts may use
// several (UCX_MAX_RMA_RAILS), and a sleeping rank would not notice the counter. Where puts are stores, the flush is
// free.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "context.h"

namespace prun::ucx {
namespace {

constexpr unsigned kSignalMessage = 1;

}  // namespace

void* Context::mem_alloc(size_t bytes, int, void*& handle) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
  params.length = bytes;
  params.flags = UCP_MEM_MAP_ALLOCATE;
  ucp_mem_h memory = nullptr;
  check(fmt::format("ucp_mem_map of {} bytes", bytes), ucp_mem_map(worker_.context(), &params, &memory));
  ucp_mem_attr_t attributes{};
  attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
  const ucs_status_t status = ucp_mem_query(memory, &attributes);
  memory_.push_back({memory, static_cast<const char*>(attributes.address), bytes});
  check("ucp_mem_query", status);
  handle = memory;
  return attributes.address;
}

// Frees memory. After the hello, peers refer to memory by its index, so freeing it leaves a gap.
void Context::mem_free(void*, void* handle) {
  std::unique_lock lock = enter();
  const auto memory = std::find_if(memory_.begin(), memory_.end(), [&](const Memory& m) { return m.handle == handle; });
  if (memory == memory_.end() || handle == nullptr) return;
  ucp_mem_unmap(worker_.context(), memory->handle);
  *memory = {};
  if (connecting_ == nullptr) memory_.erase(memory);
}

void Context::listen(unsigned message, ucp_am_recv_callback_t callback) {
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = message;
  handler.cb = callback;
  handler.arg = this;
  check("ucp_worker_set_am_recv_handler", ucp_worker_set_am_recv_handler(worker_.get(), &handler));
}

void Context::listen_to_signals() { listen(kSignalMessage, on_signal); }

ucs_status_t Context::on_signal(void* user_data, const void* header, size_t bytes, void*, size_t,
                                const ucp_am_recv_param_t*) {
  auto& context = *static_cast<Context*>(user_data);
  Operation::Signal signal;
  if (bytes == sizeof signal) std::memcpy(&signal, header, sizeof signal);
  if (signal.sender < context.peers_.size() && signal.number <= PRUN_MAX_SIGNAL)
    ++context.peers_[signal.sender].raised[signal.number];
  return UCS_OK;
}

// Returns a request with one operation that `start` begins.
template <class Start>
Request* Context::one_sided(int peer, uint64_t number, Start start) {
  Peer& other = peers_[peer];
  std::unique_lock lock = enter();
  check_usable();
  std::unique_ptr<Request> request = new_request(1);
  Operation& operation = request->operations[0];
  operation.peer = peer;
  operation.signal = {static_cast<uint32_t>(rank), static_cast<uint32_t>(number)};
  start(other, operation);
  return hand_over(std::move(request));
}

// Returns the peer's window. Throws Failure unless it holds [offset, offset + bytes).
const Peer::Memory& Context::window(int peer, size_t offset, size_t bytes) {
  static const Peer::Memory kNone;
  const Peer::Memory& memory = peers_[peer].memory.empty() ? kNone : peers_[peer].memory[0];
  if (offset > memory.bytes || bytes > memory.bytes - offset)
    throw Failure{
        PRUN_EINVAL, peer,
        fmt::format("{} bytes at {} of the window of rank #{}, which has {}", bytes, offset, peer, memory.bytes)};
  return memory;
}

Request* Context::put(int peer, const void* src, size_t offset, size_t bytes, uint64_t signal) {
  const Peer::Memory& to = window(peer, offset, bytes);
  return one_sided(peer, signal, [&](Peer& other, Operation& operation) {
    const ucp_request_param_t param = with_callback(on_put, operation);
    const ucs_status_ptr_t ucx =
        bytes == 0 ? nullptr : ucp_put_nbx(other.endpoint, src, bytes, to.address + offset, to.key, &param);
    if (!UCS_PTR_IS_PTR(ucx)) was_put(operation, UCS_PTR_RAW_STATUS(ucx));
  });
}

Request* Context::get(int peer, void* dst, size_t offset, size_t bytes) {
  const Peer::Memory& from = window(peer, offset, bytes);
  return one_sided(peer, 0, [&](Peer& other, Operation& operation) {
    const ucp_request_param_t param = with_callback(on_ended, operation);
    started(operation,
            bytes == 0 ? nullptr : ucp_get_nbx(other.endpoint, dst, bytes, from.address + offset, from.key, &param));
  });
}

Request* Context::signal(int peer, uint64_t number) {
  return one_sided(peer, number, [&](Peer&, Operation& operation) { was_put(operation, UCS_OK); });
}

Request* Context::wait_signal(int peer, uint64_t number, uint64_t count) {
  return one_sided(peer, number, [&](Peer& other, Operation& operation) {
    operation.request->counter = &other.raised[number];
    operation.request->count = count;
    ended(operation, UCS_OK);
  });
}

// The steps of a put: the put completes locally (was_put), the flush completes (was_flushed), the signal is sent.
void Context::was_put(Operation& operation, ucs_status_t status) {
  if (status != UCS_OK || operation.signal.number == 0) return ended(operation, status);
  const ucp_request_param_t param = with_callback(on_flushed, operation);
  const ucs_status_ptr_t ucx = ucp_ep_flush_nbx(peers_[operation.peer].endpoint, &param);
  if (!UCS_PTR_IS_PTR(ucx)) was_flushed(operation, UCS_PTR_RAW_STATUS(ucx));
}

void Context::was_flushed(Operation& operation, ucs_status_t status) {
  if (status != UCS_OK) return ended(operation, status);
  const ucp_request_param_t param = with_callback(on_ended, operation);
  started(operation, ucp_am_send_nbx(peers_[operation.peer].endpoint, kSignalMessage, &operation.signal,
                                     sizeof operation.signal, nullptr, 0, &param));
}

void Context::on_put(void* ucx, ucs_status_t status, void* user_data) {
  auto& operation = *static_cast<Operation*>(user_data);
  operation.context->was_put(operation, status);
  ucp_request_free(ucx);
}

void Context::on_flushed(void* ucx, ucs_status_t status, void* user_data) {
  auto& operation = *static_cast<Operation*>(user_data);
  operation.context->was_flushed(operation, status);
  ucp_request_free(ucx);
}

}  // namespace prun::ucx
