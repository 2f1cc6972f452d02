// The life of a context and the progress loop. The plugin has no threads: a thread that tests a request makes progress
// for all requests, one thread at a time, and sleeps in epoll_wait without the lock; the others wait on `changed_`.
#include "context.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

namespace prun::socket {
namespace {

constexpr auto kTestLimit = std::chrono::milliseconds(10);
// Polls before sleeping. With a core per rank, 64 of them cost less than a wake-up. Afterwards, or at once on shared
// cores, the thread yields the core for a while, unless another process computes on it (Yields).
constexpr int kSpins = 64;
constexpr uint64_t kYield = 300 * 1000;  // nanoseconds
// A request of at most kFew messages reads their connections directly, which saves the epoll call; every kAllEvery-th
// turn polls all connections.
constexpr size_t kFew = 2;
constexpr int kAllEvery = 4;

uint64_t nanoseconds() { return static_cast<uint64_t>(Clock::now().time_since_epoch().count()); }

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 10));
}

}  // namespace

Context::Context(const prun_open_params& params)
    : Transport(params),
      may_spin_(host.cores_per_rank >= 1.0),
      options_(parse_options(params.options)),
      identity_(params),
      matcher_(options_, params.rank, params.ranks) {
  waker_.event = Descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!waker_.event) throw sdk::system_failure("eventfd");
  poller_.add(waker_.event.get(), &waker_, EPOLLIN);
  connector_.emplace(identity_, options_, listen(params, options_), sdk::longest_silence(params.local_ranks), poller_,
                     matcher_);
}

Context::~Context() {
  const Failure& failure = matcher_.first_failure();
  const bool failed = failure || stopped();
  const Goodbye reason = failed ? Goodbye::failed : Goodbye::closed;
  for (Peer& peer : matcher_.peers())
    for (auto& connection : peer.connections)
      if (connection) connection->close_orderly(reason, failed ? failure.culprit : -1);
}

Failure Context::connect(const sdk::Blobs& blobs) {
  if (!connector_->step(blobs)) return connector_->missing();
  log(connector_->strangers() > 0 ? 2 : 0, connector_->summary());
  connector_.reset();
  return {};
}

Request* Context::batch(std::span<const prun_p2p> ops, prun_queue) {
  auto request = std::make_unique<Request>();
  request->messages.resize(ops.size());
  request->pending = ops.size();
  for (size_t i = 0; i < ops.size(); ++i) {
    Message& message = request->messages[i];
    message.request = request.get();
    message.peer = &matcher_.peer(ops[i].peer);
    message.data = static_cast<char*>(ops[i].ptr);
    message.bytes = ops[i].bytes;
    message.lane_id = static_cast<uint16_t>(ops[i].tag);
    message.is_recv = ops[i].is_recv != 0;
  }
  const std::lock_guard lock(mutex_);
  check_running();
  quiet_since_ = 0;
  matcher_.start(*request);
  flush();
  return request.release();
}

void Context::flush() {
  for (Peer* peer : matcher_.take_dirty()) {
    if (peer->rank == rank && matcher_.exchange_with_itself()) matcher_.mark_dirty(*peer);
    for (auto& connection : peer->connections)
      if (connection) connection->write_some();
  }
}

void Context::when_idle() {
  const auto now = Clock::now();
  matcher_.announce_waiting(now);
  if (!options_.encrypt) return;
  for (Peer& peer : matcher_.peers())
    for (auto& connection : peer.connections)
      if (connection) connection->fill_when_idle(now);
}

Failure Context::finish(Request* request) {
  const std::unique_ptr<Request> owner(request);
  if (request->failure) matcher_.drop(*request);
  return std::move(request->failure);
}

Failure Context::test(Request* request) {
  std::unique_lock lock(mutex_);
  if (request->ended()) return finish(request);  // avoids reading the clock in the common case
  const auto deadline = Clock::now() + kTestLimit;
  do {
    if (stopped()) {
      request->failure = {PRUN_EABORTED, "aborted"};
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
    if (request->ended()) return finish(request);
  } while (Clock::now() < deadline);
  return {PRUN_AGAIN, ""};
}

// Waits for events without the lock. Returns whether any arrived.
bool Context::poll(std::unique_lock<std::mutex>& lock, int milliseconds) {
  const uint64_t ended = matcher_.ended();
  const bool busy = matcher_.has_dirty();
  lock.unlock();
  const bool events = poller_.wait(milliseconds);
  lock.lock();
  if (stopped()) return false;
  if (events) poller_.dispatch();
  if (!events && milliseconds > 0) when_idle();
  flush();
  if (events || busy) quiet_since_ = 0;
  if (waiting_ > 0 && matcher_.ended() != ended) changed_.notify_all();
  return events || busy;
}

// Reads from the peers of messages that are not complete, without an epoll call. Returns whether any frame arrived.
bool Context::read_awaited(Request& request) {
  bool came = matcher_.has_dirty();
  for (size_t i = 0; i < request.messages.size() && !request.ended(); ++i) {
    if (request.messages[i].complete) continue;
    for (auto& connection : request.messages[i].peer->connections)
      if (connection) came |= connection->read_now();
  }
  flush();
  if (came) quiet_since_ = 0;
  if (came && waiting_ > 0) changed_.notify_all();
  return came;
}

// Makes progress until the request ends, the deadline passes or the job is aborted. Called with the lock held; polls
// without it.
void Context::make_progress(std::unique_lock<std::mutex>& lock, Request& request, Clock::time_point deadline) {
  const int patience = may_spin_ ? kSpins : 1;
  const auto look = [&](int turn) {
    const bool few = request.pending <= kFew && turn % kAllEvery != 0;
    return few ? read_awaited(request) : poll(lock, 0);
  };
  int yields = 0;
  for (int idle = 0; !request.ended() && !stopped();) {
    if (idle < patience || matcher_.has_dirty()) {
      idle = look(idle + 1) ? 0 : idle + 1;
      continue;
    }
    const uint64_t now = nanoseconds();
    if (quiet_since_ == 0) quiet_since_ = now;
    const bool pays = yields_.pay(now, matcher_.ended());
    if (pays && now - quiet_since_ < kYield) {
      lock.unlock();
      ::sched_yield();
      lock.lock();
      yields_.took(now, nanoseconds(), matcher_.ended());
      (void)look(++yields);
      continue;
    }
    if (Clock::now() >= deadline) return;
    if (poll(lock, milliseconds_until(deadline))) idle = 0;
  }
}

void Context::abort() {
  Transport::abort();
  const uint64_t one = 1;
  (void)!::write(waker_.event.get(), &one, sizeof one);
}

}  // namespace prun::socket

const prun_transport* prun_transport_v1(const prun_host* host) {
  return prun::sdk::transport_table<prun::socket::Context>(
      host, {.name = "socket",
             .version = prun::socket::kVersion,
             .summary = "TCP between hosts, AF_UNIX stream sockets between ranks of one host"});
}
