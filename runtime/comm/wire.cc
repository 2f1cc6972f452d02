// Frames, batches and what their failures mean. Steady state allocates nothing: all vectors keep their capacity.
#include "comm/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace prun {
namespace {

constexpr uint32_t kMagic = 0x314d5250;  // "PRM1"
constexpr uint16_t kFrameVersion = 1;

}  // namespace

Wire::Wire(Link& link, std::vector<int> ranks, int index, int lane, uint64_t group)
    : link_(link), ranks_(std::move(ranks)), index_(index), tag_(static_cast<uint64_t>(lane)) {
  size_t n = ranks_.size();
  header_.magic = kMagic;
  header_.version = kFrameVersion;
  header_.group = group;
  header_.sender = static_cast<uint32_t>(index);
  out_.resize(n);
  in_.resize(n);
  framed_out_.resize(n);
  framed_in_.resize(n);
  receives_.reserve(4 * n);
  sends_.reserve(2 * n);
  arrivals_.reserve(n + 1);
  sources_.reserve(2 * n);
  for (Batch& batch : batches_) {
    batch.arrivals.reserve(n + 1);
    batch.sources.reserve(2 * n);
  }
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

void Wire::add(bool is_recv, int member, void* data, int64_t bytes) {
  size_t peer = static_cast<size_t>(member);
  (is_recv ? receives_ : sends_)
      .push_back(prun_p2p{.is_recv = is_recv ? 1 : 0,
                          .peer = ranks_[peer],
                          .tag = tag_,
                          .ptr = data,
                          .bytes = static_cast<size_t>(bytes),
                          .mem_kind = PRUN_MEM_HOST,
                          .mem_handle = bytes > 0 ? link_.handle_of(data) : nullptr});
  op_bytes_ += bytes;
}

void Wire::send(int to, const void* data, int64_t bytes) {
  PRUN_CHECK(to >= 0 && to < size() && to != index_, fmt::format("send to {} of {}", to, size()));
  size_t peer = static_cast<size_t>(to);
  bytes_sent_ += bytes;
  if (framed_out_[peer] == 0) {
    framed_out_[peer] = 1;
    Frame& frame = out_[peer];
    frame.header = header_;
    frame.header.bytes = static_cast<uint64_t>(bytes);
    bool rides = bytes <= static_cast<int64_t>(kInlineBytes);
    frame.header.inline_bytes = rides ? static_cast<uint16_t>(bytes) : 0;
    if (rides && bytes > 0) std::memcpy(frame.payload, data, static_cast<size_t>(bytes));
    add(false, to, &frame, kFrameBytes);
    if (rides) return;
  }
  if (bytes > 0) add(false, to, const_cast<void*>(data), bytes);
}

void Wire::recv(int from, void* data, int64_t bytes) {
  PRUN_CHECK(from >= 0 && from < size() && from != index_, fmt::format("receive from {} of {}", from, size()));
  size_t peer = static_cast<size_t>(from);
  sources_.push_back(from);
  if (framed_in_[peer] == 0) {
    framed_in_[peer] = 1;
    in_[peer].header.magic = 0;
    arrivals_.push_back({from, data, bytes});
    add(true, from, &in_[peer], kFrameBytes);
    if (bytes <= static_cast<int64_t>(kInlineBytes)) return;
  }
  if (bytes > 0) add(true, from, data, bytes);
}

int64_t Wire::post() {
  int64_t ticket = next_ticket_++;
  Batch& batch = batches_[ticket % kInFlight];
  PRUN_CHECK(batch.req == nullptr, fmt::format("more than {} batches in flight", kInFlight));
  batch.ticket = ticket;
  batch.bytes = op_bytes_;
  batch.arrivals.swap(arrivals_);
  batch.sources.swap(sources_);
  arrivals_.clear();
  sources_.clear();
  op_bytes_ = 0;
  // Receives first, as hosts like it.
  receives_.insert(receives_.end(), sends_.begin(), sends_.end());
  sends_.clear();
  if (receives_.empty()) return ticket;
  prun_result result = empty_result();
  prun_status status = link_.table().batch(link_.ctx(), receives_.data(), receives_.size(), {PRUN_MEM_HOST, nullptr},
                                           &batch.req, &result);
  receives_.clear();
  if (status != PRUN_OK) {
    batch.req = nullptr;
    batch_failed(batch, status, result);
  }
  return ticket;
}

void Wire::wait(int64_t ticket) {
  Batch& batch = batches_[ticket % kInFlight];
  if (batch.ticket != ticket) return;
  if (batch.req != nullptr) {
    prun_result result = empty_result();
    prun_status status = link_.wait(batch.req, batch.bytes, result);
    if (status != PRUN_AGAIN) batch.req = nullptr;
    if (status != PRUN_OK) batch_failed(batch, status, result);
  }
  batch.ticket = -1;
  for (const Arrival& arrival : batch.arrivals) check_frame(arrival);
  batch.arrivals.clear();
}

void Wire::finish() {
  if (!receives_.empty() || !sends_.empty()) post();
  for (int64_t ticket = std::max<int64_t>(0, next_ticket_ - kInFlight); ticket < next_ticket_; ++ticket) wait(ticket);
  if (ring_ != Ring::none) {
    bool compared = framed_out_[static_cast<size_t>((index_ + 1) % size())] != 0 &&
                    framed_in_[static_cast<size_t>((index_ + size() - 1) % size())] != 0;
    PRUN_CHECK(compared, doing() + " compared no frames");
  }
}

void Wire::give_up() {
  std::vector<prun_req*> left;
  for (Batch& batch : batches_) {
    if (batch.req != nullptr) left.push_back(batch.req);
    batch.req = nullptr;
    batch.ticket = -1;
    batch.arrivals.clear();
  }
  receives_.clear();
  sends_.clear();
  arrivals_.clear();
  sources_.clear();
  op_bytes_ = 0;
  link_.drain(left);
}

void Wire::check_frame(const Arrival& arrival) {
  const Frame& frame = in_[static_cast<size_t>(arrival.from)];
  const FrameHeader& theirs = frame.header;
  int peer = ranks_[static_cast<size_t>(arrival.from)];
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
                          ranks_[static_cast<size_t>(member)], describe_packed(fingerprint, count),
                          ranks_[static_cast<size_t>(index_)], describe_packed(header_.fingerprint, header_.count),
                          order, extra, fmt::join(ranks_, ", ")));
}

std::string Wire::awaited(const Batch& batch, const prun_result& result) const {
  if (result.culprit >= 0) return fmt::format("rank {}", result.culprit);
  std::vector<int> missing;
  for (int from : batch.sources) {
    auto frame =
        std::find_if(batch.arrivals.begin(), batch.arrivals.end(), [&](const Arrival& a) { return a.from == from; });
    bool arrived = frame != batch.arrivals.end() && in_[static_cast<size_t>(from)].header.magic == kMagic;
    if (!arrived) missing.push_back(ranks_[static_cast<size_t>(from)]);
  }
  if (missing.empty()) return "a peer to take what was sent";
  if (missing.size() == 1) return fmt::format("rank {}", missing[0]);
  return fmt::format("ranks {}", fmt::join(missing, ", "));
}

void Wire::batch_failed(Batch& batch, prun_status status, prun_result& result) {
  if (status == PRUN_EMISMATCH) {
    // Two sizes differ because two calls do: the frame came before the payload.
    for (const Arrival& arrival : batch.arrivals) {
      if (in_[static_cast<size_t>(arrival.from)].header.magic == kMagic) check_frame(arrival);
    }
  }
  if (status == PRUN_AGAIN) {
    throw Error(Exit::hang, fmt::format("{}: no progress for {}, waiting for {}", doing(),
                                        human_seconds(link_.deadline_s()), awaited(batch, result)));
  }
  link_.fail(status, result, doing());
}

}  // namespace prun
