// Completion of requests: the device's events, the agreement of the other ranks, and the awaited rank.
#include "request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "context.h"

namespace prun::nccl {
namespace {

constexpr auto kTestLimit = std::chrono::milliseconds(10);
constexpr auto kSpin = std::chrono::microseconds(50);  // duration of spinning with a core per rank
constexpr auto kShortestNap = std::chrono::microseconds(20), kLongestNap = std::chrono::microseconds(10'000);
constexpr int kNapsPerWait = 8;  // bounds the delay of noticing completion to an eighth of the wait
constexpr auto kStall = std::chrono::milliseconds(100);   // delay of the notes to all members about this call
constexpr auto kSettle = std::chrono::milliseconds(500);  // limit for an aborted communicator to release memory

void check_call(Context& c, Request& req) {
  Request::Call& call = *req.call;
  if (call.agreed) return;
  Comm& comm = *req.collective;
  const auto theirs = c.board.call(comm.key(), comm.previous(), call.sequence);
  if (!theirs) return;
  if (theirs->fingerprint != call.fingerprint || theirs->count != call.count) {
    comm.seen = {sizeof(prun_coll_seen), theirs->fingerprint, theirs->count, theirs->sequence};
    throw Failure{PRUN_EMISMATCH, comm.previous(), fmt::format("rank #{} called another collective", comm.previous())};
  }
  c.board.forget_call(comm.key(), comm.previous(), call.sequence);
  call.agreed = true;
}

void check_arrivals(Context& c, Request& req) {
  for (Request::Arrival& arrival : req.arrivals) {
    if (arrival.agreed) continue;
    const auto bytes = c.board.bytes_of(arrival.peer, arrival.lane, arrival.number);
    if (!bytes) continue;
    if (*bytes != arrival.bytes)
      throw Failure{PRUN_EMISMATCH, arrival.peer,
                    fmt::format("rank #{} sends {} bytes where {} are expected", arrival.peer, *bytes, arrival.bytes)};
    c.board.forget_message(arrival.peer, arrival.lane, arrival.number);
    arrival.agreed = true;
  }
}

void copy_from_itself(Context& c, Request& req, const Request::SelfReceive& receive, const SelfMessage& message) {
  const Cuda& cuda = c.library->cuda();
  if (receive.stream == nullptr) {
    if (receive.bytes > 0) std::memcpy(receive.to, message.pinned, receive.bytes);
    c.memory.give_bounce(message.pinned, message.bytes);
    return;
  }
  if (message.event != nullptr)
    c.library->check("cudaStreamWaitEvent", cuda.stream_wait_event(receive.stream, message.event, 0));
  c.library->check("cudaMemcpyAsync",
                   cuda.memcpy_async(receive.to, message.pinned, message.bytes, cudaMemcpyDefault, receive.stream));
  if (message.captured) return;
  req.copies.push_back({message.pinned, message.bytes, c.take_event()});
  c.library->check("cudaEventRecord", cuda.event_record(req.copies.back().event, receive.stream));
}

// Receives messages to this rank itself whose send has been posted.
void receive_from_itself(Context& c, Request& req) {
  std::lock_guard lock(c.to_itself.mutex);
  std::erase_if(req.from_itself, [&](const Request::SelfReceive& receive) {
    auto& waiting = c.to_itself.by_lane[receive.lane];
    if (waiting.empty()) return false;
    const SelfMessage message = waiting.front();
    if (receive.stream == nullptr && message.event != nullptr) {
      const cudaError_t error = c.library->cuda().event_query(message.event);
      if (error == cudaErrorNotReady) return false;
      c.library->check("cudaMemcpyAsync", error);
    }
    waiting.pop_front();
    --c.to_itself.awaited[receive.lane];
    if (message.bytes != receive.bytes)
      throw Failure{
          PRUN_EMISMATCH, c.rank,
          fmt::format("rank #{} sends itself {} bytes where {} are expected", c.rank, message.bytes, receive.bytes)};
    copy_from_itself(c, req, receive, message);
    if (message.event != nullptr) c.give_event(message.event);
    return true;
  });
}

bool copies_done(Context& c, Request& req) {
  std::erase_if(req.copies, [&](const SelfMessage& copy) {
    const cudaError_t error = c.library->cuda().event_query(copy.event);
    if (error == cudaErrorNotReady) return false;
    c.library->check("cudaMemcpyAsync", error);
    c.give_event(copy.event);
    if (copy.pinned != nullptr) c.memory.give_bounce(copy.pinned, copy.bytes);
    return true;
  });
  return req.copies.empty();
}

// Returns a sender, or a member of the collective, that has not arrived; -1 = unknown.
int missing(Context& c, const Request& req) {
  for (const Request::Arrival& arrival : req.arrivals)
    if (!arrival.agreed) return arrival.peer;
  if (req.collective == nullptr || !req.call) return -1;
  if (!req.call->agreed && req.collective->size() == 2) return req.collective->previous();
  if (!req.stalled) return -1;
  for (int rank : req.collective->ranks())
    if (rank != c.rank && !c.board.has_called(req.collective->key(), rank, req.call->sequence)) return rank;
  return -1;
}

void tell_everybody(Context& c, Request& req) {
  if (req.stalled || Clock::now() - req.since < kStall) return;
  req.stalled = true;
  if (!req.call) return;
  Note note;
  note.kind = Note::here;
  note.key = req.collective->key();
  note.sequence = req.call->sequence;
  for (int rank : req.collective->ranks())
    if (rank != c.rank && rank != req.collective->next()) c.control.send(rank, note);
}

bool step(Context& c, Request& req) {
  c.check_running();
  if (req.call) check_call(c, req);
  check_arrivals(c, req);
  bool done = true;
  for (Request::Part& part : req.parts) {
    if (part.launch.state == Launch::State::ended) continue;
    part.comm->pump();
    done = part.comm->done(part.launch) && done;
  }
  if (!req.from_itself.empty()) receive_from_itself(c, req);
  done = copies_done(c, req) && req.from_itself.empty() && done;
  if (done && (!req.call || req.call->agreed) &&
      std::all_of(req.arrivals.begin(), req.arrivals.end(), [](const auto& a) { return a.agreed; }))
    return true;
  if (const int lost = c.board.lost_among(req.peers); lost >= 0)
    throw Failure{PRUN_EPEER, lost, fmt::format("rank #{} is gone", lost)};
  tell_everybody(c, req);
  return false;
}

// After a failure NCCL's kernels may write to memory until the communicators are aborted.
bool settled(Request& req) {
  if (Clock::now() - req.failed_at > kSettle) return true;
  return std::all_of(req.parts.begin(), req.parts.end(), [](Request::Part& part) {
    return part.launch.state == Launch::State::ended || part.launch.state == Launch::State::waiting ||
           part.comm->quiet();
  });
}

void fail(Request& req, const Failure& failure) {
  req.failure = failure;
  req.failed_at = Clock::now();
  for (Request::Part& part : req.parts) {
    part.comm->withdraw(&part.launch);
    part.comm->fail(
        {PRUN_EABORTED, failure.culprit, "an earlier operation of this communicator failed: " + failure.message});
  }
}

Failure finish(Context& c, Request* request) {
  const std::unique_ptr<Request> owner(request);
  const bool failed = static_cast<bool>(request->failure);
  for (Request::Part& part : request->parts)
    if (part.launch.event != nullptr) c.give_event(part.launch.event);
  for (const Bounce& bounce : request->bounces) {
    if (!failed && bounce.user != nullptr) std::memcpy(bounce.user, bounce.pinned, bounce.bytes);
    // After a failure the device may still use the buffer, so it is abandoned with the communicator.
    if (!failed) c.memory.give_bounce(bounce.pinned, bounce.bytes);
  }
  return std::move(request->failure);
}

void nap(Context& c, const Request& req) {
  const bool own_core = c.host.cores_per_rank >= 1.0;
  const auto waited = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - req.since);
  if (own_core && waited < kSpin) return std::this_thread::yield();
  c.board.wait(std::clamp(waited / kNapsPerWait, kShortestNap, kLongestNap));
}

}  // namespace

void enqueue(Context& c, Request& request) {
  while (std::any_of(request.parts.begin(), request.parts.end(), [](const auto& part) {
    return part.launch.state == Launch::State::waiting || part.launch.state == Launch::State::issued;
  })) {
    c.check_running();
    for (Request::Part& part : request.parts) part.comm->pump();
    std::this_thread::yield();
  }
  receive_from_itself(c, request);
  if (!request.from_itself.empty())
    throw Failure{PRUN_EINVAL, c.rank, "a receive from itself in front of its send would hold its queue for ever"};
}

Failure Context::test(Request* request) {
  use_device();
  const RelaxedCapture guard(library->cuda());
  const auto deadline = Clock::now() + kTestLimit;
  for (;;) {
    try {
      if (!request->failure && step(*this, *request)) return finish(*this, request);
    } catch (const Failure& failure) {
      fail(*request, failure);
    }
    if (request->failure && settled(*request)) return finish(*this, request);
    if (Clock::now() >= deadline) break;
    nap(*this, *request);
  }
  return {PRUN_AGAIN, missing(*this, *request)};
}

}  // namespace prun::nccl
