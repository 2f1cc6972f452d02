// Frames, batches and what their failures mean. Steady state allocates nothing: all vectors keep their capacity.
#include "comm/collectives/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace prun {
namespace {

constexpr uint32_t kMagic = 0x314d5250;  // "PRM1"
constexpr uint16_t kFrameVersion = 1;

}  // namespace

Wire::Wire(Route route, std::vector<int> ranks, int index, uint64_t group)
    : route_(std::move(route)), ranks_(std::move(ranks)), index_(index) {
  size_t n = ranks_.size();
  header_.magic = kMagic;
  header_.version = kFrameVersion;
  header_.group = group;
  header_.sender = static_cast<uint32_t>(index);
  out_.resize(n);
  in_.resize(n);
  framed_out_.resize(n);
  framed_in_.resize(n);
  for (Queue& queue : queues_) {
    queue.receives.reserve(3 * n);
    queue.sends.reserve(2 * n);
    queue.arrivals.reserve(n);
    queue.sources.reserve(2 * n);
  }
  for (Batch& batch : batches_) {
    for (Request& request : batch.stages) {
      request.arrivals.reserve(n);
      request.sources.reserve(2 * n);
    }
  }
}

void Wire::Queue::clear() {
  receives.clear();
  sends.clear();
  arrivals.clear();
  sources.clear();
  bytes = 0;
}

void Wire::begin(const FrameHeader& header, Ring ring) {
  header_.fingerprint = header.fingerprint;
  header_.count = header.count;
  header_.counts_hash = header.counts_hash;
  header_.sequence = header.sequence;
  ring_ = ring;
  std::fill(framed_out_.begin(), framed_out_.end(), 0);
  std::fill(framed_in_.begin(), framed_in_.end(), 0);
  if (ring == Ring::apart) {
    send((index_ + 1) % size(), nullptr, 0);
    recv((index_ + size() - 1) % size(), nullptr, 0);
  }
}

void Wire::add(Stage stage, bool is_recv, int member, void* data, int64_t bytes) {
  Queue& queue = queues_[stage];
  (is_recv ? queue.receives : queue.sends)
      .push_back(prun_p2p{.is_recv = is_recv ? 1 : 0,
                          .peer = ranks_[member],
                          .tag = 0,  // and the handle: the route knows
                          .ptr = data,
                          .bytes = static_cast<size_t>(bytes),
                          .mem_kind = PRUN_MEM_HOST,
                          .mem_handle = nullptr});
  if (is_recv) queue.sources.push_back(member);
  queue.bytes += bytes;
}

void Wire::send(int to, const void* data, int64_t bytes) {
  PRUN_CHECK(to >= 0 && to < size() && to != index_, fmt::format("send to {} of {}", to, size()));
  size_t peer = static_cast<size_t>(to);
  bytes_sent_ += bytes;
  if (framed_out_[peer] == 0) {
    framed_out_[peer] = 1;
    CallFrame& frame = out_[peer];
    frame.header = header_;
    frame.header.bytes = static_cast<uint64_t>(bytes);
    bool rides = bytes <= static_cast<int64_t>(kInlineBytes);
    frame.header.inline_bytes = rides ? static_cast<uint16_t>(bytes) : 0;
    if (rides && bytes > 0) std::memcpy(frame.payload, data, static_cast<size_t>(bytes));
    add(kPayload, false, to, &frame, kFrameBytes);
    if (rides) return;
  }
  if (bytes > 0) add(kPayload, false, to, const_cast<void*>(data), bytes);
}

void Wire::recv(int from, void* data, int64_t bytes) {
  PRUN_CHECK(from >= 0 && from < size() && from != index_, fmt::format("receive from {} of {}", from, size()));
  size_t peer = static_cast<size_t>(from);
  if (framed_in_[peer] == 0) {
    framed_in_[peer] = 1;
    in_[peer].header.magic = 0;
    Stage stage = from == (index_ + size() - 1) % size() ? kRing : kFrames;
    // There a receive would hold up the sends behind it.
    if (route_.queue_ordered()) stage = kPayload;
    queues_[stage].arrivals.push_back({from, data, bytes});
    add(stage, true, from, &in_[peer], kFrameBytes);
    if (bytes <= static_cast<int64_t>(kInlineBytes)) return;
  }
  if (bytes > 0) add(kPayload, true, from, data, bytes);
}

int64_t Wire::post() {
  int64_t ticket = next_ticket_++;
  Batch& batch = batches_[ticket % kInFlight];
  PRUN_CHECK(batch.ticket < 0, fmt::format("more than {} batches in flight", kInFlight));
  batch.ticket = ticket;
  for (int stage = 0; stage < kStages; ++stage) post_stage(queues_[stage], batch.stages[stage]);
  return ticket;
}

void Wire::post_stage(Queue& queue, Request& request) {
  request.arrivals.swap(queue.arrivals);
  request.sources.swap(queue.sources);
  request.bytes = queue.bytes;
  // Receives first, as hosts like it.
  queue.receives.insert(queue.receives.end(), queue.sends.begin(), queue.sends.end());
  prun_status status = PRUN_OK;
  prun_result result = empty_result();
  if (!queue.receives.empty()) status = route_.batch(queue.receives, request.req, result);
  queue.clear();
  if (status == PRUN_OK) return;
  failed(request, status, result);
}

void Wire::wait(int64_t ticket) {
  Batch& batch = batches_[ticket % kInFlight];
  if (ticket < 0 || batch.ticket != ticket) return;
  for (Request& request : batch.stages) wait_stage(request);
  batch.ticket = -1;
}

void Wire::wait_stage(Request& request) {
  if (request.req) {
    prun_result result = empty_result();
    prun_status status = route_.wait(request.req, request.bytes, result);
    if (status != PRUN_OK) failed(request, status, result);
  }
  for (const Arrival& arrival : request.arrivals) check_frame(arrival);
  request.arrivals.clear();
  request.sources.clear();
}

void Wire::finish() {
  bool queued =
      std::any_of(queues_, queues_ + kStages, [](const Queue& q) { return !q.receives.empty() || !q.sends.empty(); });
  if (queued) post();
  for (int64_t ticket = std::max<int64_t>(0, next_ticket_ - kInFlight); ticket < next_ticket_; ++ticket) wait(ticket);
  if (ring_ != Ring::none) {
    bool compared = framed_out_[(index_ + 1) % size()] != 0 && framed_in_[(index_ + size() - 1) % size()] != 0;
    PRUN_CHECK(compared, doing() + " compared no frames");
  }
}

void Wire::give_up() {
  std::vector<Route::Request> left;
  for (Batch& batch : batches_) {
    for (Request& request : batch.stages) {
      if (request.req) left.push_back(request.req);
      request.req = {};
      request.arrivals.clear();
      request.sources.clear();
    }
    batch.ticket = -1;
  }
  for (Queue& queue : queues_) queue.clear();
  route_.drain(left);
}

void Wire::check_frame(const Arrival& arrival) {
  const CallFrame& frame = in_[arrival.from];
  const FrameHeader& theirs = frame.header;
  int peer = ranks_[arrival.from];
  if (theirs.magic != kMagic || theirs.version != kFrameVersion) {
    throw Error(Exit::mismatch,
                fmt::format("{}: rank {} sent something that is not the start of a call", doing(), peer));
  }
  uint64_t bytes = static_cast<uint64_t>(arrival.bytes);
  bool same = theirs.group == header_.group && theirs.sequence == header_.sequence &&
              theirs.fingerprint == header_.fingerprint && theirs.count == header_.count &&
              theirs.counts_hash == header_.counts_hash && theirs.bytes == bytes;
  if (!same) {
    std::string extra;
    if (theirs.group != header_.group)
      extra = "; it is in another group";
    else if (theirs.fingerprint == header_.fingerprint && theirs.count == header_.count) {
      if (theirs.counts_hash != header_.counts_hash)
        extra = "; the counts per member differ";
      else if (theirs.bytes != bytes)
        extra = fmt::format("; it sends {} bytes, {} are expected", theirs.bytes, bytes);
    }
    throw_mismatch(arrival.from, theirs.fingerprint, theirs.count, theirs.sequence, extra);
  }
  if (bytes <= kInlineBytes && bytes > 0) std::memcpy(arrival.data, frame.payload, bytes);
}

std::string Wire::doing() const {
  return fmt::format("{} of ranks {}", describe_packed(header_.fingerprint, header_.count), fmt::join(ranks_, ", "));
}

void Wire::throw_mismatch(int member, uint64_t fingerprint, uint64_t count, uint64_t sequence,
                          const std::string& extra) const {
  std::string order;
  if (sequence != header_.sequence) {
    order = fmt::format("; that was call {} of the group there, {} here", sequence + 1, header_.sequence + 1);
  }
  throw Error(Exit::mismatch,
              fmt::format("ranks disagree: rank {} called {}, rank {} called {}{}{} (group of ranks {})",
                          ranks_[member], describe_packed(fingerprint, count), ranks_[index_],
                          describe_packed(header_.fingerprint, header_.count), order, extra, fmt::join(ranks_, ", ")));
}

std::string Wire::awaited(const Request& request, const prun_result& result) const {
  if (result.culprit >= 0) return fmt::format("rank {}", result.culprit);
  std::vector<int> missing;
  for (int from : request.sources) {
    bool framed =
        std::any_of(request.arrivals.begin(), request.arrivals.end(), [&](const Arrival& a) { return a.from == from; });
    if (framed && in_[from].header.magic == kMagic) continue;
    missing.push_back(ranks_[from]);
  }
  if (missing.empty()) return "a peer to take what was sent";
  if (missing.size() == 1) return fmt::format("rank {}", missing[0]);
  return fmt::format("ranks {}", fmt::join(missing, ", "));
}

void Wire::failed(Request& request, prun_status status, prun_result& result) {
  if (status == PRUN_EMISMATCH) {
    // Sizes differ because calls do, and the frame that says so came before. A plugin may end everything at once.
    for (const Batch& batch : batches_) {
      for (const Request& posted : batch.stages) {
        for (const Arrival& arrival : posted.arrivals) {
          bool blamed = ranks_[arrival.from] == result.culprit;
          if (blamed && in_[arrival.from].header.magic == kMagic) check_frame(arrival);
        }
      }
    }
  }
  if (status == PRUN_AGAIN) {
    throw Error(Exit::hang, fmt::format("{}: no progress for {}, waiting for {}", doing(),
                                        human_seconds(route_.deadline_s()), awaited(request, result)));
  }
  route_.fail(status, result, doing());
}

}  // namespace prun
