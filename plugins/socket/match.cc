// Posting of messages and the effects of frames. The protocol is driven by the receiver: its `posted` for a large
// receive usually reaches the sender before the send is posted, so that it adds no round trip.
#include "match.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "connection.h"

namespace prun::socket {
namespace {

constexpr auto kAnnounceAfter = std::chrono::milliseconds(20);
constexpr uint64_t kSelfBudget = 4 << 20;  // bytes per turn

Failure nonsense(const Peer& peer, const char* what, const FrameHeader& header) {
  return {PRUN_ECORRUPT, peer.rank,
          fmt::format(
              "rank #{} sent a frame that makes no sense: {} (kind {}, lane {}, sequence {}, {} of {} bytes at {})",
              peer.rank, what, header.kind, header.lane, header.sequence, header.length, header.total, header.offset)};
}

// Returns the posted receive `sequence`, or null if it is not posted or already closed.
Message* open_receive(const Lane& lane, uint32_t sequence) {
  const uint32_t index = sequence - lane.first_receive;
  return index < lane.receives.size() ? lane.receives[index] : nullptr;
}

void close_receive(Lane& lane, uint32_t sequence) {
  const uint32_t index = sequence - lane.first_receive;
  if (index < lane.receives.size()) lane.receives[index] = nullptr;
  while (!lane.receives.empty() && lane.receives.front() == nullptr) {
    lane.receives.pop_front();
    ++lane.first_receive;
  }
}

std::deque<Unexpected>::iterator find_unexpected(Lane& lane, uint32_t sequence) {
  return std::find_if(lane.unexpected.begin(), lane.unexpected.end(),
                      [&](const Unexpected& u) { return u.sequence == sequence; });
}

}  // namespace

Matcher::Matcher(const Options& options, int rank, int ranks)
    : eager_(options.eager),
      chunk_(options.chunk),
      window_(options.window()),
      most_kept_(std::max(options.ahead, kAhead)),
      rank_(rank),
      peers_(ranks) {
  for (int r = 0; r < ranks; ++r) peers_[r].rank = r;
}

Matcher::~Matcher() = default;

Lane& Matcher::lane(Peer& peer, uint16_t id) {
  std::unique_ptr<Lane>& slot = peer.lanes[id];
  if (!slot) {
    slot = std::make_unique<Lane>();
    slot->id = id;
  }
  return *slot;
}

void Matcher::mark_dirty(Peer& peer) {
  if (!std::exchange(peer.dirty, true)) dirty_.push_back(&peer);
}

std::vector<Peer*> Matcher::take_dirty() {
  for (Peer* peer : dirty_) peer->dirty = false;
  return std::exchange(dirty_, {});
}

// ---- posting ----

void Matcher::start(Request& request) {
  for (Message& message : request.messages) message.lane = &lane(*message.peer, message.lane_id);
  for (Message& message : request.messages)
    if (message.is_recv && !request.failure) post_receive(message);
  for (Message& message : request.messages)
    if (!message.is_recv && !request.failure) post_send(message);
}

void Matcher::post_receive(Message& message) {
  Peer& peer = *message.peer;
  Lane& lane = *message.lane;
  message.sequence = lane.next_receive();
  lane.receives.push_back(&message);

  if (const auto early = find_unexpected(lane, message.sequence); early != lane.unexpected.end()) {
    if (early->bytes != message.bytes) {
      const uint64_t theirs = early->bytes;
      if (early->arrived) {
        consume(peer, lane, theirs);
        lane.unexpected.erase(early);
      }
      return mismatch(message, theirs);
    }
    if (!early->arrived) {
      early->claimed = &message;
      return;
    }
    if (message.bytes > 0) std::memcpy(message.data, early->data.get(), message.bytes);
    lane.unexpected.erase(early);
    consume(peer, lane, message.bytes);
    return complete(message);
  }
  if (take_early(message)) return;
  if (!lane.announced.empty() && lane.announced.front().sequence == message.sequence) {
    const uint64_t theirs = lane.announced.front().bytes;
    lane.announced.pop_front();
    if (theirs != message.bytes) {
      control(peer, lane, FrameKind::posted, message.sequence, message.bytes);  // makes the sender fail as well
      return mismatch(message, theirs);
    }
  }
  if (peer.gone) return fail(&message, peer.gone);
  if (message.bytes > eager_) control(peer, lane, FrameKind::posted, message.sequence, message.bytes);
}

void Matcher::post_send(Message& message) {
  Peer& peer = *message.peer;
  Lane& lane = *message.lane;
  message.sequence = lane.next_send++;
  if (peer.gone) return fail(&message, peer.gone);

  auto& early = lane.early_posts;
  while (!early.empty() && sequence_before(early.front().sequence, message.sequence)) early.pop_front();
  if (message.bytes <= eager_) {  // the receiver detects an early post of another size
    lane.waiting_credit.push_back(&message);
    return release_eager(peer, lane);
  }
  if (!early.empty() && early.front().sequence == message.sequence) {
    const uint64_t theirs = early.front().bytes;
    early.pop_front();
    return asked(message, theirs);
  }
  message.since = Clock::now();
  lane.waiting_post.push_back(&message);
  ++waiting_posts_;
  may_go_ahead(peer, lane);
}

// Queues a large send whose receive is posted with `bytes` bytes.
void Matcher::asked(Message& message, uint64_t bytes) {
  Peer& peer = *message.peer;
  Lane& lane = *message.lane;
  if (bytes != message.bytes) {
    if (!message.announced) control(peer, lane, FrameKind::announce, message.sequence, message.bytes);
    return mismatch(message, bytes);
  }
  lane.asked.push_back(&message);
  if (lane.asked.size() == 1) peer.large.push_back(&lane);
  mark_dirty(peer);
}

void Matcher::release_eager(Peer& peer, Lane& lane) {
  while (!lane.waiting_credit.empty()) {
    Message& message = *lane.waiting_credit.front();
    const uint32_t cost = static_cast<uint32_t>(message.bytes) + kMessageCost;
    if (lane.eager_sent + cost - lane.eager_acknowledged > window_) return;
    lane.eager_sent += cost;
    lane.waiting_credit.pop_front();
    OutFrame frame{.message = &message, .payload = message.data};
    frame.header.kind = static_cast<uint8_t>(FrameKind::eager);
    frame.header.lane = lane.id;
    frame.header.sequence = message.sequence;
    frame.header.total = message.bytes;
    frame.header.length = static_cast<uint32_t>(message.bytes);
    peer.outbox.push_back(std::move(frame));
    mark_dirty(peer);
  }
}

void Matcher::consume(Peer& peer, Lane& lane, uint64_t bytes) {
  lane.eager_consumed += static_cast<uint32_t>(bytes) + kMessageCost;
  if (lane.eager_consumed - lane.eager_told >= window_ / 2) {
    lane.eager_told = lane.eager_consumed;
    control(peer, lane, FrameKind::credit, 0, 0);
  }
}

void Matcher::control(Peer& peer, Lane& lane, FrameKind kind, uint32_t sequence, uint64_t total) {
  if (peer.gone) return;
  OutFrame frame;
  frame.header.kind = static_cast<uint8_t>(kind);
  frame.header.lane = lane.id;
  frame.header.sequence = sequence;
  frame.header.total = total;
  peer.outbox.push_back(std::move(frame));
  mark_dirty(peer);
}

void Matcher::announce_waiting(Clock::time_point now) {
  if (waiting_posts_ == 0) return;
  for (Peer& peer : peers_) {
    for (auto& [id, lane] : peer.lanes) {
      for (Message* message : lane->waiting_post) {
        if (message->announced || now - message->since < kAnnounceAfter) continue;
        message->announced = true;
        control(peer, *lane, FrameKind::announce, message->sequence, message->bytes);
      }
    }
  }
}

// ---- arriving ----

Matcher::Landing Matcher::arrive(Peer& peer, const FrameHeader& header) {
  const FrameKind kind = static_cast<FrameKind>(header.kind);
  if (kind == FrameKind::goodbye) {
    peer.said_goodbye = true;
    peer.goodbye = static_cast<Goodbye>(header.total);
    peer.blamed = header.culprit;
    return {};
  }
  if (kind == FrameKind::filler) return {};
  Lane& lane = this->lane(peer, header.lane);
  if (sequence_before(lane.eager_acknowledged, header.credit)) {
    lane.eager_acknowledged = header.credit;
    release_eager(peer, lane);
  }
  if (kind == FrameKind::eager) return arrive_eager(peer, lane, header);
  if (kind == FrameKind::data) return arrive_data(peer, lane, header);
  if (header.length != 0) throw nonsense(peer, "a payload where there is none", header);
  switch (kind) {
    case FrameKind::posted:
      arrive_posted(peer, lane, header);
      break;
    case FrameKind::announce:
      arrive_announce(peer, lane, header);
      break;
    case FrameKind::credit:
      break;
    default:
      throw nonsense(peer, "an unknown kind", header);
  }
  return {};
}

Matcher::Landing Matcher::arrive_eager(Peer& peer, Lane& lane, const FrameHeader& header) {
  if (header.length != header.total || header.length > eager_) throw nonsense(peer, "its length", header);
  lane.eager_arrived += header.length + kMessageCost;
  if (lane.eager_arrived - lane.eager_consumed > window_) throw nonsense(peer, "more than the window", header);
  if (Message* message = open_receive(lane, header.sequence)) {
    if (message->bytes != header.total) {
      mismatch(*message, header.total);
      return {};
    }
    return {message->data, message};
  }
  if (sequence_before(header.sequence, lane.next_receive())) return {};  // its receive was dropped
  lane.unexpected.push_back({header.sequence, header.total, std::make_unique_for_overwrite<char[]>(header.length)});
  return {lane.unexpected.back().data.get(), nullptr};
}

Matcher::Landing Matcher::arrive_data(Peer& peer, Lane& lane, const FrameHeader& header) {
  Message* message = open_receive(lane, header.sequence);
  if (message == nullptr) {
    if (sequence_before(header.sequence, lane.next_receive())) return {};  // its receive was dropped
    return arrive_early(peer, lane, header);
  }
  if (header.offset > header.total || header.length > header.total - header.offset)
    throw nonsense(peer, "its place", header);
  if (header.total != message->bytes) {  // the message was sent unrequested
    if (message->bytes <= eager_) control(peer, lane, FrameKind::posted, header.sequence, message->bytes);
    mismatch(*message, header.total);
    return {};
  }
  return {message->data + header.offset, message};
}

void Matcher::arrive_posted(Peer& peer, Lane& lane, const FrameHeader& header) {
  if (!sequence_before(header.sequence, lane.next_send)) {
    lane.early_posts.push_back({header.sequence, header.total});
    return;
  }
  asked_after_all(peer, lane, header.sequence);
  const auto found = std::find_if(lane.waiting_post.begin(), lane.waiting_post.end(),
                                  [&](const Message* m) { return m->sequence == header.sequence; });
  if (found == lane.waiting_post.end()) return;  // the send was small and is complete, or was dropped
  Message& message = **found;
  lane.waiting_post.erase(found);
  --waiting_posts_;
  asked(message, header.total);
}

void Matcher::arrive_announce(Peer& peer, Lane& lane, const FrameHeader& header) {
  if (Message* message = open_receive(lane, header.sequence)) {
    if (message->bytes == header.total) return;
    if (message->bytes <= eager_) control(peer, lane, FrameKind::posted, header.sequence, message->bytes);
    return mismatch(*message, header.total);
  }
  if (!sequence_before(header.sequence, lane.next_receive())) lane.announced.push_back({header.sequence, header.total});
}

void Matcher::landed(Peer& peer, const FrameHeader& header, Message* message) {
  if (static_cast<FrameKind>(header.kind) == FrameKind::eager)
    return landed_eager(peer, lane(peer, header.lane), header, message);
  if (message == nullptr) return landed_early(peer, lane(peer, header.lane), header);
  message->moved += header.length;
  if (message->moved == message->bytes) complete(*message);
}

void Matcher::landed_eager(Peer& peer, Lane& lane, const FrameHeader& header, Message* message) {
  const auto early = message ? lane.unexpected.end() : find_unexpected(lane, header.sequence);
  if (early != lane.unexpected.end()) {
    early->arrived = true;
    message = early->claimed;
    const bool dropped = message == nullptr && sequence_before(header.sequence, lane.next_receive());
    if (message == nullptr && !dropped) return;
    if (message != nullptr && message->bytes > 0) std::memcpy(message->data, early->data.get(), message->bytes);
    lane.unexpected.erase(early);
  }
  consume(peer, lane, header.total);
  if (message != nullptr) complete(*message);
}

// ---- leaving ----

OutFrame Matcher::next_piece(Lane& lane, Message& message, uint64_t most) const {
  OutFrame frame{.message = &message, .payload = message.data + message.staged};
  frame.header.kind = static_cast<uint8_t>(FrameKind::data);
  frame.header.lane = lane.id;
  frame.header.sequence = message.sequence;
  frame.header.total = message.bytes;
  frame.header.offset = message.staged;
  frame.header.length = static_cast<uint32_t>(std::min(most, message.bytes - message.staged));
  message.staged += frame.header.length;
  return frame;
}

bool Matcher::next_frame(Peer& peer, bool first_connection, OutFrame* out) {
  if (first_connection && !peer.outbox.empty()) {
    *out = std::move(peer.outbox.front());
    peer.outbox.pop_front();
  } else if (!peer.large.empty()) {
    Lane& lane = *peer.large.front();
    peer.large.pop_front();
    Message& message = *lane.asked.front();
    *out = next_piece(lane, message, chunk_);
    if (message.staged == message.bytes) lane.asked.pop_front();
    if (!lane.asked.empty()) peer.large.push_back(&lane);
  } else if (!next_ahead(peer, out)) {
    return false;
  }
  if (static_cast<FrameKind>(out->header.kind) != FrameKind::goodbye) {
    Lane& lane = this->lane(peer, out->header.lane);
    out->header.credit = lane.eager_told = lane.eager_consumed;
  }
  return true;
}

void Matcher::written(OutFrame& frame) {
  if (frame.message == nullptr) return;
  frame.message->moved += frame.header.length;
  if (frame.message->moved == frame.message->bytes) complete(*frame.message);
}

bool Matcher::exchange_with_itself() {
  Peer& self = peer(rank_);
  OutFrame frame;
  uint64_t copied = 0;
  while (copied < kSelfBudget && next_frame(self, true, &frame)) {
    const Landing landing = arrive(self, frame.header);
    if (landing.to != nullptr && frame.header.length > 0) std::memcpy(landing.to, frame.payload, frame.header.length);
    copied += frame.header.length;
    landed(self, frame.header, landing.message);
    written(frame);
  }
  return self.has_output();
}

// ---- ends ----

void Matcher::complete(Message& message) {
  message.complete = true;
  if (message.is_recv) close_receive(*message.lane, message.sequence);
  if (--message.request->pending == 0) ++ended_;
}

void Matcher::mismatch(Message& message, uint64_t theirs) {
  const char* format = message.is_recv ? "rank #{} sends {} bytes on lane {} where rank #{} receives {} bytes"
                                       : "rank #{} receives {} bytes on lane {} where rank #{} sends {} bytes";
  const Failure failure{
      PRUN_EMISMATCH, message.peer->rank,
      fmt::format(fmt::runtime(format), message.peer->rank, theirs, message.lane->id, rank_, message.bytes)};
  fail(&message, failure);
}

void Matcher::fail(Message* message, const Failure& failure) {
  Request& request = *message->request;
  if (!first_failure_) first_failure_ = failure;
  if (message->is_recv) close_receive(*message->lane, message->sequence);
  if (request.failure) return;
  request.failure = failure;
  ++ended_;
}

void Matcher::lost(Peer& peer, const Failure& failure) {
  if (peer.gone) return;
  peer.gone = failure;
  for (auto& connection : peer.connections)
    if (connection) connection->abandon(failure);
  for (OutFrame& frame : peer.outbox)
    if (frame.message != nullptr) fail(frame.message, failure);
  peer.outbox.clear();
  peer.large.clear();
  peer.ahead.clear();
  for (auto& [id, lane] : peer.lanes) {
    waiting_posts_ -= lane->waiting_post.size();
    for (auto* queue : {&lane->waiting_credit, &lane->waiting_post, &lane->asked})
      for (Message* message : std::exchange(*queue, {})) fail(message, failure);
    for (Message* message : std::deque<Message*>(lane->receives))
      if (message != nullptr) fail(message, failure);
    std::erase_if(lane->unexpected, [](const Unexpected& early) { return !early.arrived; });
    forget_arriving(peer, *lane);
  }
}

void Matcher::drop(Request& request) {
  for (Message& message : request.messages)
    if (!message.complete && message.lane != nullptr) drop(message);
}

void Matcher::drop(Message& message) {
  Peer& peer = *message.peer;
  Lane& lane = *message.lane;
  for (auto& connection : peer.connections)
    if (connection) connection->forget(&message);
  if (message.is_recv) {
    if (open_receive(lane, message.sequence) == &message) close_receive(lane, message.sequence);
    for (Unexpected& early : lane.unexpected)
      if (early.claimed == &message) early.claimed = nullptr;
    for (Early& early : lane.early)
      if (early.claimed == &message) early.claimed = nullptr;
    return;
  }
  std::erase(lane.waiting_credit, &message);
  waiting_posts_ -= std::erase(lane.waiting_post, &message);
  if (std::erase(lane.asked, &message) > 0 && lane.asked.empty()) std::erase(peer.large, &lane);
  std::erase_if(peer.outbox, [&](const OutFrame& frame) { return frame.message == &message; });
}

}  // namespace prun::socket
