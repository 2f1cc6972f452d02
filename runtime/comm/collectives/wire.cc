// Frames, batches and their errors. The steady state allocates nothing, because all vectors keep their capacity.
#include "comm/collectives/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/text.h"
#include "comm/transport/long_wait.h"

namespace prun {
namespace {

constexpr uint32_t kMagic = 0x314d5250;  // "PRM1"
constexpr uint16_t kFrameVersion = 2;

uint32_t hash_with(uint32_t hash, const PastCall& call) {
  for (uint64_t word : {call.fingerprint, call.count}) {
    hash = (hash ^ static_cast<uint32_t>(word)) * 0x01000193u;
    hash = (hash ^ static_cast<uint32_t>(word >> 32)) * 0x01000193u;
  }
  return hash;
}

prun_p2p host_message(bool is_recv, int rank, void* data, int64_t bytes) {
  return {.is_recv = is_recv ? 1 : 0,
          .peer = rank,
          .tag = 0,  // the route sets the tag and the handle
          .ptr = data,
          .bytes = static_cast<size_t>(bytes),
          .mem_kind = PRUN_MEM_HOST,
          .mem_handle = nullptr};
}

// Returns call number `sequence`, if the header names it.
std::optional<PastCall> call_at(const FrameHeader& header, uint64_t sequence) {
  if (sequence == header.sequence) return PastCall{header.fingerprint, header.count};
  if (sequence > header.sequence || header.sequence - sequence > kNamedCalls) return std::nullopt;
  const PastCall& call = header.past[sequence % kNamedCalls];
  return call == PastCall{} ? std::nullopt : std::optional(call);
}

// Returns the number of the first call that both headers name and that differs between them.
std::optional<uint64_t> first_difference(const FrameHeader& a, const FrameHeader& b) {
  const uint64_t last = std::min(a.sequence, b.sequence);
  for (uint64_t s = last - std::min(last, kNamedCalls); s <= last; ++s) {
    const std::optional<PastCall> one = call_at(a, s), other = call_at(b, s);
    if (one && other && !(*one == *other)) return s;
  }
  return std::nullopt;
}

}  // namespace

void Wire::check_start(const FrameHeader& header, int member) const {
  if (header.magic == kMagic && header.version == kFrameVersion) return;
  throw Error(Exit::mismatch,
              fmt::format("{}: rank {} sent something that is not the start of a call", doing(), ranks_[member]));
}

Wire::Wire(Route route, std::vector<int> ranks, int index, uint64_t group, bool far)
    : route_(std::move(route)),
      ranks_(std::move(ranks)),
      index_(index),
      far_(far),
      batches_(far ? kInFlight + 2 * kFarAhead : kInFlight) {
  const size_t n = ranks_.size();
  header_.magic = kMagic;
  header_.version = kFrameVersion;
  header_.group = group;
  header_.sender = static_cast<uint32_t>(index);
  out_.resize(n);
  in_.resize(n);
  framed_out_.resize(n);
  framed_in_.resize(n);
  sends_.reserve(2 * n);
  for (std::vector<prun_p2p>& receives : receives_) receives.reserve(4 * n);
  for (Batch& batch : batches_) {
    for (Part& part : batch.parts) {
      part.arrivals.reserve(n);
      part.sources.reserve(2 * n);
      part.targets.reserve(2 * n);
    }
  }
}

void Wire::Part::clear() {
  request = {};
  arrivals.clear();
  sources.clear();
  targets.clear();
  bytes = 0;
}

// The steps of one call of a group over hosts share its sequence.
void Wire::remember(const PastCall& call, uint64_t sequence, Ring ring) {
  if (sequence != last_sequence_) {
    if (sequence != last_sequence_ + 1)
      std::fill(header_.past, header_.past + kNamedCalls, PastCall{});
    else if (sequence > 0)
      header_.past[last_sequence_ % kNamedCalls] = last_;
  }
  last_ = call;
  last_sequence_ = sequence;
  header_.uncompared = uncompared_hash_;
  uncompared_hash_ = ring == Ring::later ? hash_with(uncompared_hash_ + 1, call) : 0;
  uncompared_ = ring == Ring::later ? uncompared_ + 1 : 0;
}

void Wire::begin(const PreparedCall& call, uint64_t sequence, Ring ring) {
  // In a device's queue, a receive of a later hint would block the work after it.
  if (ring == Ring::later && (uncompared_ + 1 >= kRingEvery || route_.queue_ordered())) ring = Ring::apart;
  header_.uncompared = 0;
  if (ring != Ring::none) remember({call.fingerprint, call.agreed_count}, sequence, ring);
  header_.fingerprint = call.fingerprint;
  header_.count = call.agreed_count;
  header_.counts_hash = call.counts_hash;
  header_.sequence = sequence;
  ring_ = ring;
  std::fill(framed_out_.begin(), framed_out_.end(), 0);
  std::fill(framed_in_.begin(), framed_in_.end(), 0);
  hints_.told = false;
  if (ring == Ring::within || ring == Ring::apart) end_hints(true, true);
  if (ring == Ring::apart) {
    send(next(), nullptr, 0);
    recv(previous(), nullptr, 0);
  }
}

Wire::Batch& Wire::open_batch() {
  Batch& batch = batches_[next_ticket_ % std::ssize(batches_)];
  PRUN_CHECK(batch.ticket < 0, fmt::format("more than {} batches in flight", batches_.size()));
  return batch;
}

void Wire::add(Stage stage, bool is_recv, int member, void* data, int64_t bytes) {
  Part& part = open_batch().parts[stage];
  (is_recv ? receives_[stage] : sends_).push_back(host_message(is_recv, ranks_[member], data, bytes));
  (is_recv ? part.sources : part.targets).push_back(member);
  part.bytes += bytes;
}

void Wire::send(int to, const void* data, int64_t bytes) {
  PRUN_CHECK(to >= 0 && to < size() && to != index_, fmt::format("send to {} of {}", to, size()));
  bytes_sent_ += bytes;
  if (framed_out_[to] == 0) {
    framed_out_[to] = 1;
    CallFrame& frame = out_[to];
    frame.header = header_;
    frame.header.bytes = static_cast<uint64_t>(bytes);
    const bool rides = bytes <= static_cast<int64_t>(kInlineBytes);
    frame.header.inline_bytes = rides ? static_cast<uint16_t>(bytes) : 0;
    if (rides && bytes > 0) std::memcpy(frame.payload, data, bytes);
    add(kPayload, false, to, &frame, kFrameBytes);
    if (rides) return;
  }
  if (bytes > 0) add(kPayload, false, to, const_cast<void*>(data), bytes);
}

void Wire::recv(int from, void* data, int64_t bytes) {
  PRUN_CHECK(from >= 0 && from < size() && from != index_, fmt::format("receive from {} of {}", from, size()));
  if (framed_in_[from] == 0) {
    framed_in_[from] = 1;
    if (ring_ == Ring::none && hints_.from_previous && from == previous()) {
      behind_hints_.push_back({from, data, bytes});
      return;
    }
    in_[from].header.magic = 0;
    // In a device's queue a separate receive would block the sends after it.
    const Stage stage = route_.queue_ordered() ? kPayload : from == previous() ? kRing : kFrames;
    open_batch().parts[stage].arrivals.push_back({from, data, bytes});
    add(stage, true, from, &in_[from], kFrameBytes);
    if (bytes <= static_cast<int64_t>(kInlineBytes)) return;
  }
  if (bytes > 0) add(kPayload, true, from, data, bytes);
}

int64_t Wire::post() {
  Batch& batch = open_batch();
  batch.ticket = next_ticket_++;
  // Receives first, so that their buffers are posted when data arrive.
  receives_[kPayload].insert(receives_[kPayload].end(), sends_.begin(), sends_.end());
  sends_.clear();
  for (int stage = 0; stage < kStages; ++stage) {
    std::vector<prun_p2p>& ops = receives_[stage];
    if (ops.empty()) continue;
    prun_result result = empty_result();
    const prun_status status = route_.batch(ops, batch.parts[stage].request, result);
    ops.clear();
    if (status != PRUN_OK) failed(batch.parts[stage], status, result);
  }
  return batch.ticket;
}

void Wire::wait(int64_t ticket) {
  Batch& batch = batches_[ticket % std::ssize(batches_)];
  if (ticket < 0 || batch.ticket != ticket) return;
  for (Part& part : batch.parts) wait_part(part);
  batch.ticket = -1;
}

prun_status Wire::wait_for(Part& part, bool looks_around, prun_result& result) {
  struct Others final : Awaited {
    Others(Wire& w, const Part& p, bool l) : wire(w), part(p), looks(l) {}
    std::vector<int> ranks() const override {
      std::vector<int> all = wire.missing(part);
      if (!all.empty()) return all;
      for (const auto* members : {&part.sources, &part.targets})
        for (int member : *members)
          if (std::find(all.begin(), all.end(), wire.ranks_[member]) == all.end()) all.push_back(wire.ranks_[member]);
      return all;
    }
    void look_around() const override {
      if (looks) wire.look_around();
    }
    Wire& wire;
    const Part& part;
    const bool looks;
  } const others(*this, part, looks_around);
  return route_.wait(part.request, part.bytes, result);
}

void Wire::wait_part(Part& part) {
  if (part.request) {
    prun_result result = empty_result();
    const prun_status status = wait_for(part, ring_ == Ring::later, result);
    if (status != PRUN_OK) failed(part, status, result);
  }
  for (const Arrival& arrival : part.arrivals) check_frame(arrival);
  part.clear();
}

void Wire::transfer(Part& part, bool is_recv, int member, void* data, int64_t bytes) {
  part.clear();
  (is_recv ? part.sources : part.targets).push_back(member);
  part.bytes = bytes;
  std::vector<prun_p2p> ops = {host_message(is_recv, ranks_[member], data, bytes)};
  prun_result result = empty_result();
  const prun_status status = route_.batch(ops, part.request, result);
  if (status != PRUN_OK) failed(part, status, result);
}

void Wire::finish() {
  const bool queued = !sends_.empty() || std::any_of(receives_, receives_ + kStages,
                                                     [](const std::vector<prun_p2p>& ops) { return !ops.empty(); });
  if (queued) post();
  for (const Arrival& arrival : std::exchange(behind_hints_, {})) recv_behind_hints(arrival);
  for (int64_t ticket = std::max<int64_t>(0, next_ticket_ - std::ssize(batches_)); ticket < next_ticket_; ++ticket)
    wait(ticket);
  if (ring_ == Ring::within || ring_ == Ring::apart)
    PRUN_CHECK(framed_out_[next()] != 0 && framed_in_[previous()] != 0, doing() + " compared no frames");
}

void Wire::give_up() {
  std::vector<Route::Request> left;
  for (Part* part : {&hints_.telling, &hints_.hearing, &hints_.payload}) {
    if (part->request) left.push_back(part->request);
    part->clear();
  }
  hints_.to_next = hints_.from_previous = false;
  behind_hints_.clear();
  for (Batch& batch : batches_) {
    for (Part& part : batch.parts) {
      if (part.request) left.push_back(part.request);
      part.clear();
    }
    batch.ticket = -1;
  }
  for (std::vector<prun_p2p>& receives : receives_) receives.clear();
  sends_.clear();
  route_.drain(left);
}

void Wire::check_frame(const Arrival& arrival) {
  const CallFrame& frame = in_[arrival.from];
  const FrameHeader& theirs = frame.header;
  check_start(theirs, arrival.from);
  const uint64_t bytes = static_cast<uint64_t>(arrival.bytes);
  if (theirs.sequence != header_.sequence || theirs.bytes != bytes || !same_calls(theirs)) {
    std::string extra;
    if (theirs.group != header_.group)
      extra = "; it is in another group";
    else if (theirs.fingerprint == header_.fingerprint && theirs.count == header_.count) {
      if (theirs.counts_hash != header_.counts_hash)
        extra = "; the counts per member differ";
      else if (theirs.bytes != bytes && theirs.bytes < kRunEnd)
        extra = fmt::format("; it sends {} bytes, {} are expected", theirs.bytes, bytes);
      else if (theirs.sequence == header_.sequence)
        extra = "; an earlier call of theirs differed";
    }
    throw_difference(arrival.from, theirs, extra);
  }
  if (bytes == 0 || bytes > kInlineBytes) return;
  if (theirs.inline_bytes > 0) {
    std::memcpy(arrival.data, frame.payload, bytes);
    return;
  }
  // The frame was sent before its payload was available.
  transfer(hints_.payload, true, arrival.from, arrival.data, arrival.bytes);
  wait_part(hints_.payload);
}

bool Wire::same_calls(const FrameHeader& theirs) const {
  if (theirs.group != header_.group) return false;
  if (theirs.sequence == header_.sequence)
    return theirs.fingerprint == header_.fingerprint && theirs.count == header_.count &&
           theirs.counts_hash == header_.counts_hash && theirs.uncompared == header_.uncompared;
  return !first_difference(theirs, header_);
}

std::string Wire::doing() const {
  return fmt::format("{} of ranks {}", describe_packed(header_.fingerprint, header_.count), fmt::join(ranks_, ", "));
}

// If one rank is ahead of the other, or compares late, the first differing call is more informative than the current.
void Wire::throw_difference(int member, const FrameHeader& theirs, const std::string& extra) const {
  const bool comparable = theirs.group == header_.group && ring_ != Ring::none && theirs.fingerprint != kSendRecvKind;
  const std::optional<uint64_t> first = comparable ? first_difference(theirs, header_) : std::nullopt;
  if (!first || (*first == theirs.sequence && *first == header_.sequence))
    throw_mismatch(member, theirs.fingerprint, theirs.count, theirs.sequence, extra);
  const PastCall there = *call_at(theirs, *first), here = *call_at(header_, *first);
  throw Error(Exit::mismatch,
              fmt::format("ranks disagree: rank {} called {}, rank {} called {}; that was call {} of the group (group "
                          "of ranks {})",
                          ranks_[member], describe_packed(there.fingerprint, there.count), ranks_[index_],
                          describe_packed(here.fingerprint, here.count), *first + 1, fmt::join(ranks_, ", ")));
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

std::vector<int> Wire::missing(const Part& part) const {
  std::vector<int> missing;
  for (int from : part.sources) {
    const bool framed =
        std::any_of(part.arrivals.begin(), part.arrivals.end(), [&](const Arrival& a) { return a.from == from; });
    if (!framed || in_[from].header.magic != kMagic) missing.push_back(ranks_[from]);
  }
  return missing;
}

std::string Wire::awaited(const Part& part, const prun_result& result) const {
  if (result.culprit >= 0) return fmt::format("rank {}", result.culprit);
  const std::vector<int> missing = this->missing(part);
  if (missing.empty()) return "a peer to take what was sent";
  return fmt::format("rank{} {}", missing.size() == 1 ? "" : "s", fmt::join(missing, ", "));
}

void Wire::failed(const Part& part, prun_status status, const prun_result& result) {
  if (status == PRUN_EMISMATCH) {
    // Sizes differ because calls do, and the frame that shows it has arrived earlier. A plugin may end all requests at
    // once.
    for (const Batch& batch : batches_) {
      for (const Part& posted : batch.parts) {
        for (const Arrival& arrival : posted.arrivals) {
          const bool blamed = ranks_[arrival.from] == result.culprit;
          if (blamed && in_[arrival.from].header.magic == kMagic) check_frame(arrival);
        }
      }
    }
  }
  if (status == PRUN_AGAIN) route_.failed().fail_late(doing(), awaited(part, result));
  route_.failed().fail(status, result, doing());
}

}  // namespace prun
