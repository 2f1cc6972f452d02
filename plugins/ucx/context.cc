// Messages, progress and waiting. The plugin has no threads: a thread that tests a request makes progress for all, one
// thread at a time, and sleeps on UCX's descriptor without the lock; the others wait on `changed_`.
#include "context.h"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cstring>

namespace prun::ucx {
namespace {

constexpr auto kTestLimit = std::chrono::milliseconds(8);  // the ABI allows 10
// A tag holds the lane in its low 16 bits and the sender above them.
constexpr int kSenderShift = 16;
constexpr uint64_t kWholeTag = ~uint64_t{0};
constexpr uint64_t kSenderMask = 0xffffffffull << kSenderShift;

uint64_t tag_of(int sender, uint64_t lane) { return static_cast<uint64_t>(sender) << kSenderShift | lane; }

}  // namespace

// A waiting thread yields early, because the awaited rank may need this very core even where there are enough. It
// sleeps late, because a wake-up by UCX is slow and ranks that sleep for each other delay each other.
Context::Context(const prun_open_params& params)
    : Transport(params),
      spin_(std::chrono::microseconds(host.cores_per_rank >= 1.0 ? 1 : 0)),
      yield_(std::chrono::microseconds(1500)),
      mark_(mark_of(params.job_secret)),
      worker_(params, parse_options(params.options), kSenderMask, host),
      peers_(static_cast<size_t>(params.ranks)) {
  for (int r = 0; r < ranks; ++r) {
    peers_[r].context = this;
    peers_[r].rank = r;
  }
  listen_to_signals();
  listen_to_takers();
}

Context::~Context() {
  for (const Memory& memory : memory_) {
    if (memory.handle != nullptr) ucp_mem_unmap(worker_.context(), memory.handle);
  }
}

// Takes the lock; a thread that polls under it gives way.
std::unique_lock<std::mutex> Context::enter() {
  ++wanted_;
  std::unique_lock lock(mutex_);
  --wanted_;
  return lock;
}

void Context::give_way(std::unique_lock<std::mutex>& lock, bool yield) {
  if (!yield && wanted_.load(std::memory_order_relaxed) == 0) return;
  lock.unlock();
  sched_yield();
  lock.lock();
}

void Context::fail(Failure failure) {
  if (!failure_) failure_ = std::move(failure);
}

void Context::check_usable() {
  if (stopped()) fail({PRUN_EABORTED, "aborted"});
  if (failure_) throw failure_;
}

std::unique_ptr<Request> Context::new_request(size_t operations) {
  auto request = std::make_unique<Request>();
  request->operations.resize(operations);
  for (Operation& operation : request->operations) {
    operation.context = this;
    operation.request = request.get();
  }
  request->open = operations;
  open_ += operations;
  return request;
}

Request* Context::batch(std::span<const prun_p2p> ops, prun_queue) {
  std::unique_lock lock = enter();
  check_usable();
  std::unique_ptr<Request> request = new_request(ops.size());
  for (size_t i = 0; i < ops.size(); ++i) {
    Operation& operation = request->operations[i];
    operation.peer = ops[i].peer;
    operation.is_recv = ops[i].is_recv != 0;
    operation.lane = static_cast<uint16_t>(ops[i].tag);
    operation.bytes = ops[i].bytes;
    post(operation, tag_of(operation.is_recv ? operation.peer : rank, operation.lane), ops[i].ptr);
  }
  return hand_over(std::move(request));
}

ucp_request_param_t Context::with_callback(ucp_send_nbx_callback_t callback, Operation& operation) {
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.cb.send = callback;
  param.user_data = &operation;
  return param;
}

void Context::post(Operation& operation, uint64_t tag, void* data) {
  Peer& peer = peers_[operation.peer];
  operation.data = data;
  ucp_request_param_t param = with_callback(on_ended, operation);
  if (!operation.is_recv) {
    if (!lend(operation, peer, tag))
      started(operation, ucp_tag_send_nbx(peer.endpoint, data, operation.bytes, tag, &param));
    return;
  }
  // No immediate completion, because UCX 1.13 would not report the message's length.
  param.op_attr_mask |= UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.cb.recv = on_received;
  const bool small = operation.bytes < sizeof(Place);
  started(operation, ucp_tag_recv_nbx(worker_.get(), small ? &operation.place : data,
                                      small ? sizeof(Place) : operation.bytes, tag, kWholeTag, &param));
}

// Handles a return value of UCX: null, an error, or a request whose callback follows or has already run.
void Context::started(Operation& operation, ucs_status_ptr_t ucx) {
  if (!UCS_PTR_IS_PTR(ucx)) ended(operation, UCS_PTR_RAW_STATUS(ucx));
}

// Completes one part of an operation. A failed part ends it at once.
void Context::ended(Operation& operation, ucs_status_t status) {
  if (--operation.parts > 0 && status == UCS_OK) return;
  operation.open = false;
  --operation.request->open;
  --open_;
  quiet_since_ = {};
  if (status == UCS_OK) return;
  operation.request->failed = true;
  if (!operation.is_recv) lent_.erase(operation.place.number);
  if (status == UCS_ERR_MESSAGE_TRUNCATED)
    return fail({PRUN_EMISMATCH, operation.peer,
                 fmt::format("rank #{} has taken less than the {} bytes sent to it on lane {}", operation.peer,
                             operation.bytes, operation.lane)});
  fail({PRUN_EPEER, operation.peer, fmt::format("rank #{}: {}", operation.peer, ucs_status_string(status))});
}

// Completes a receive. UCX accepts a shorter message for a longer receive silently, so sizes are compared here.
void Context::received(Operation& operation, ucs_status_t status, size_t bytes) {
  const bool small = operation.bytes < sizeof(Place);
  if (status == UCS_OK && bytes == sizeof(Place)) {
    Place place;
    std::memcpy(&place, small ? &operation.place : operation.data, sizeof place);
    if (place.mark == mark_) return borrow(operation, place);
  }
  if (operation.any_size != nullptr && status == UCS_OK)
    operation.any_size->resize(bytes);
  else if (status == UCS_ERR_MESSAGE_TRUNCATED || (status == UCS_OK && bytes != operation.bytes))
    return differs(operation, bytes);
  else if (small && status == UCS_OK && bytes > 0)
    std::memcpy(operation.data, &operation.place, bytes);
  ended(operation, status);
}

void Context::differs(Operation& operation, size_t bytes) {
  fail({PRUN_EMISMATCH, operation.peer,
        fmt::format("a message of {} bytes on lane {} where {} are expected", bytes, operation.lane, operation.bytes)});
  ended(operation, UCS_ERR_MESSAGE_TRUNCATED);
}

void Context::on_ended(void* ucx, ucs_status_t status, void* user_data) {
  auto& operation = *static_cast<Operation*>(user_data);
  operation.context->ended(operation, status);
  ucp_request_free(ucx);
}

void Context::on_received(void* ucx, ucs_status_t status, const ucp_tag_recv_info_t* info, void* user_data) {
  auto& operation = *static_cast<Operation*>(user_data);
  operation.context->received(operation, status, info->length);
  ucp_request_free(ucx);
}

// Wakes a sleeping thread, because it would not notice the new operations. Throws the context's failure unless
// the request has ended.
Request* Context::hand_over(std::unique_ptr<Request> request) {
  if (someone_sleeps_) worker_.wake();
  if (!failure_ || request->ended()) return request.release();
  unfinished_.push_back(std::move(request));
  throw failure_;
}

// Returns whether the wait for a request is over.
bool Context::settled(const Request& request) {
  if (failure_ || request.ended()) return true;
  if (stopped()) fail({PRUN_EABORTED, "aborted"});
  for (const Operation& operation : request.operations) {
    if (!some_lost_) break;
    const Peer& peer = peers_[operation.peer];
    if ((operation.open || request.counter != nullptr) && peer.lost != UCS_OK)
      fail({PRUN_EPEER, peer.rank,
            fmt::format("the connection to rank #{} is lost: {}", peer.rank, ucs_status_string(peer.lost))});
  }
  return static_cast<bool>(failure_);
}

Failure Context::finish(Request* request) {
  std::unique_ptr<Request> owner(request);
  if (request->ended() && !request->failed) return {};
  if (request->open > 0) unfinished_.push_back(std::move(owner));
  return failure_;
}

Failure Context::test(Request* request) {
  std::unique_lock lock = enter();
  if (!failure_ && !request->ended()) progress();
  if (settled(*request)) return finish(request);
  const auto deadline = Clock::now() + kTestLimit;
  do {
    if (someone_sleeps_) {
      ++waiting_;
      changed_.wait_until(lock, deadline, [&] { return request->ended() || failure_ || !someone_sleeps_; });
      --waiting_;
    } else {
      make_progress(lock, *request, deadline);
    }
    if (settled(*request)) return finish(request);
  } while (Clock::now() < deadline);
  return awaited(*request);
}

// Names the awaited rank if the request waits for only one.
Failure Context::awaited(const Request& request) const {
  Failure again{PRUN_AGAIN, ""};
  for (const Operation& operation : request.operations) {
    if ((!operation.open && request.counter == nullptr) || operation.peer == again.culprit) continue;
    if (again.culprit >= 0) return {PRUN_AGAIN, ""};
    again.culprit = operation.peer;
  }
  return again;
}

// Makes progress until the request has ended, the deadline passes or another thread sleeps for all. Spins, then yields,
// then sleeps; the phases continue across calls of test while nothing happens.
void Context::make_progress(std::unique_lock<std::mutex>& lock, const Request& request, Clock::time_point deadline) {
  while (!someone_sleeps_) {
    while (!failure_ && progress()) {
      quiet_since_ = {};
      if (settled(request)) break;
    }
    if (waiting_ > 0) changed_.notify_all();
    if (settled(request)) return;
    const auto now = Clock::now();
    if (now >= deadline) return;
    if (quiet_since_ == Clock::time_point{}) quiet_since_ = now;
    const auto quiet = now - quiet_since_;
    if (quiet < spin_)
      give_way(lock, false);
    else if (quiet < spin_ + yield_)
      give_way(lock, true);
    else
      sleep(lock, deadline);
  }
}

// Sleeps on UCX's descriptor. UCX may need progress before it can be armed, usually briefly. If arming keeps failing
// (for example, a peer with a full queue), the thread naps for 200 us instead.
void Context::sleep(std::unique_lock<std::mutex>& lock, Clock::time_point deadline) {
  constexpr int kRefusals = 8;
  const bool armed = worker_.arm();
  refused_ = armed ? 0 : refused_ + 1;
  if (!armed && refused_ < kRefusals) return;
  const auto left = armed ? deadline - Clock::now() : Clock::duration(std::chrono::microseconds(200));
  const auto ns = std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::nanoseconds>(left).count());
  const timespec limit{ns / 1000000000, ns % 1000000000};
  pollfd ready{armed ? worker_.fd() : -1, POLLIN, 0};
  someone_sleeps_ = true;
  lock.unlock();
  ppoll(&ready, 1, &limit, nullptr);
  lock.lock();
  someone_sleeps_ = false;
  if (waiting_ > 0) changed_.notify_all();
}

void Context::abort() {
  Transport::abort();
  worker_.wake();
}

}  // namespace prun::ucx

const prun_transport* prun_transport_v1(const prun_host* host) {
  using namespace prun;
  const prun_transport* table = sdk::transport_table<ucx::Context>(
      host, {.name = "ucx", .version = "1.0.0", .summary = "UCX: InfiniBand and RoCE, shared memory, TCP"});
  if (table != nullptr) ucx::take_over_log(host);
  return table;
}
