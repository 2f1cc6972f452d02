// The life of a context and the progress loop. There are no threads of our own: whoever tests a request makes progress
// for all, one thread at a time, and sleeps in epoll_wait without the lock; the others wait until it is their turn.
#include "context.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace prun_socket {
namespace {

constexpr auto kTestLimit = std::chrono::milliseconds(10);
// Polls before sleeping. With a core per rank a few cost less than being woken does. With less, sleeping at once is
// best: sched_yield would hand the core for a whole time slice to whoever computes, while a sleeper is let in soon.
constexpr int kSpins = 64;

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 10));
}

Identity identity_of(const prun_open_params& params) {
  Identity identity;
  identity.rank = params.rank;
  identity.ranks = params.ranks;
  std::copy(std::begin(params.job_id), std::end(params.job_id), identity.job.begin());
  std::copy(std::begin(params.job_secret), std::end(params.job_secret), identity.secret.begin());
  return identity;
}

}  // namespace

Context::Context(const prun_open_params& params, const prun_host* host)
    : host_(host),
      rank_(params.rank),
      may_spin_(host != nullptr && host->cores_per_rank >= 1.0),
      options_(parse_options(params.options ? params.options : "")),
      identity_(identity_of(params)),
      matcher_(options_, params.rank, params.ranks) {
  waker_.event = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!waker_.event) throw system_failure("eventfd", errno);
  poller_.add(waker_.event.get(), &waker_, EPOLLIN);
  join_.emplace(identity_, options_, listen(params, options_), poller_, matcher_);
}

Context::~Context() {
  const Failure& failure = matcher_.first_failure();
  const bool failed = failure || aborted();
  const Goodbye reason = failed ? Goodbye::failed : Goodbye::closed;
  for (Peer& peer : matcher_.peers())
    for (auto& connection : peer.connections)
      if (connection) connection->close_orderly(reason, failed ? failure.culprit : -1);
}

void Context::log(int level, const std::string& text) const {
  if (host_ != nullptr && host_->log != nullptr) host_->log(level, text.c_str());
}

size_t Context::address(void* blob, size_t room) {
  const Address& address = join_->address();
  if (room < sizeof address) throw Failure{PRUN_EINVAL, -1, "too little room for the address"};
  std::memcpy(blob, &address, sizeof address);
  return sizeof address;
}

bool Context::connect(const void* const* blobs, const size_t* bytes) {
  if (connected_) return true;
  if (aborted()) throw Failure{PRUN_EABORTED, -1, "aborted while connecting"};
  if (!join_->step(blobs, bytes)) return false;
  log(join_->strangers() > 0 ? 2 : 0, join_->summary());
  join_.reset();
  connected_ = true;
  return true;
}

void Context::check(const prun_p2p& op) const {
  const int ranks = static_cast<int>(identity_.ranks);
  if (op.peer < 0 || op.peer >= ranks)
    throw Failure{PRUN_EINVAL, -1, fmt::format("rank #{} of {} is no peer", op.peer, ranks)};
  if (op.tag > PRUN_MAX_LANE) throw Failure{PRUN_EINVAL, -1, fmt::format("tag {} is no lane", op.tag)};
  if (op.mem_kind != PRUN_MEM_HOST) throw Failure{PRUN_EINVAL, -1, "socket moves host memory only"};
  if (op.ptr == nullptr && op.bytes > 0) throw Failure{PRUN_EINVAL, -1, "a message without memory"};
}

prun_req* Context::batch(const prun_p2p* ops, size_t n) {
  if (!connected_) throw Failure{PRUN_EINVAL, -1, "batch before connect"};
  auto request = std::make_unique<prun_req>();
  request->messages.resize(n);
  request->pending = n;
  for (size_t i = 0; i < n; ++i) {
    check(ops[i]);
    Message& message = request->messages[i];
    message.request = request.get();
    message.peer = &matcher_.peer(ops[i].peer);
    message.data = static_cast<char*>(ops[i].ptr);
    message.bytes = ops[i].bytes;
    message.lane_id = static_cast<uint16_t>(ops[i].tag);
    message.is_recv = ops[i].is_recv != 0;
  }
  const std::lock_guard lock(mutex_);
  if (aborted()) throw Failure{PRUN_EABORTED, -1, "aborted"};
  matcher_.start(*request);
  flush();
  return request.release();
}

void Context::flush() {
  for (Peer* peer : matcher_.take_dirty()) {
    if (peer->rank == rank_ && matcher_.exchange_with_itself()) matcher_.mark_dirty(*peer);
    for (auto& connection : peer->connections)
      if (connection) connection->write_some();
  }
}

prun_status Context::finish(prun_req* request, prun_result* result) {
  const std::unique_ptr<prun_req> owner(request);
  if (!request->failure) return PRUN_OK;
  matcher_.drop(*request);
  return report(request->failure, result);
}

prun_status Context::test(prun_req* request, prun_result* result) {
  std::unique_lock lock(mutex_);
  if (request->ended()) return finish(request, result);  // the common case reads no clock
  const auto deadline = Clock::now() + kTestLimit;
  do {
    if (aborted()) {
      request->failure = {PRUN_EABORTED, -1, "aborted"};
    } else if (someone_polls_) {
      ++waiting_;
      changed_.wait_until(lock, deadline, [&] { return request->ended() || !someone_polls_; });
      --waiting_;
    } else {
      someone_polls_ = true;
      make_progress(lock, *request, deadline);
      someone_polls_ = false;
      if (waiting_ > 0) changed_.notify_all();
    }
    if (request->ended()) return finish(request, result);
  } while (Clock::now() < deadline);
  return PRUN_AGAIN;
}

// Until the request ends, the deadline passes or the job is aborted. Called with the lock held; polls without it.
void Context::make_progress(std::unique_lock<std::mutex>& lock, prun_req& request, Clock::time_point deadline) {
  const int patience = may_spin_ ? kSpins : 1;
  for (int idle = 0; !request.ended() && !aborted();) {
    const uint64_t ended = matcher_.ended();
    const bool busy = matcher_.has_dirty();
    const int timeout = busy || idle < patience ? 0 : milliseconds_until(deadline);
    lock.unlock();
    const bool events = poller_.wait(timeout);
    lock.lock();
    if (aborted()) return;
    if (events) poller_.dispatch();
    if (!events && timeout > 0) matcher_.announce_waiting(Clock::now());
    flush();
    idle = events || busy ? 0 : idle + 1;
    if (waiting_ > 0 && matcher_.ended() != ended) changed_.notify_all();
    if (idle > patience && Clock::now() >= deadline) return;
  }
}

void Context::abort() {
  aborted_.store(true);
  const uint64_t one = 1;
  (void)!::write(waker_.event.get(), &one, sizeof one);
}

}  // namespace prun_socket
