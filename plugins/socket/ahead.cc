// Large messages to a far peer. Waiting for `posted` would cost a round trip before a call's first byte moves, so their
// first pieces are sent unrequested. A receiver without a matching receive buffers at most Peer::ahead_limit bytes per
// peer and copies them once when the receive is posted.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "connection.h"
#include "match.h"

namespace prun::socket {
namespace {

std::deque<Early>::iterator find_early(Lane& lane, uint32_t sequence) {
  return std::find_if(lane.early.begin(), lane.early.end(), [&](const Early& e) { return e.sequence == sequence; });
}

// Copies a piece into its receive and releases its bytes.
void copy_out(Peer& peer, const Early::Piece& piece, Message& message) {
  std::memcpy(message.data + piece.offset, piece.data.get(), piece.length);
  message.moved += piece.length;
  peer.ahead_kept -= piece.length;
}

}  // namespace

// ---- sending ----

void Matcher::may_go_ahead(Peer& peer, Lane& lane) {
  if (peer.ahead_limit == 0) return;
  if (!std::exchange(lane.goes_ahead, true)) peer.ahead.push_back(&lane);
  mark_dirty(peer);
}

bool Matcher::next_ahead(Peer& peer, OutFrame* out) {
  while (!peer.ahead.empty() && peer.ahead_sent < peer.ahead_limit) {
    Lane& lane = *peer.ahead.front();
    peer.ahead.pop_front();
    lane.goes_ahead = !lane.waiting_post.empty();
    if (!lane.goes_ahead) continue;
    peer.ahead.push_back(&lane);
    Message& message = *lane.waiting_post.front();
    *out = next_piece(lane, message, std::min<uint64_t>(chunk_, peer.ahead_limit - peer.ahead_sent));
    peer.ahead_sent += out->header.length;
    if (lane.sent_ahead.empty() || lane.sent_ahead.back().sequence != message.sequence)
      lane.sent_ahead.push_back({message.sequence, 0});
    lane.sent_ahead.back().bytes += out->header.length;
    if (message.staged == message.bytes) {
      lane.waiting_post.pop_front();
      --waiting_posts_;
    }
    return true;
  }
  return false;
}

// A posted receive claims the pieces of its message that were sent unrequested, so further ones may be sent.
void Matcher::asked_after_all(Peer& peer, Lane& lane, uint32_t sequence) {
  const auto sent = std::find_if(lane.sent_ahead.begin(), lane.sent_ahead.end(),
                                 [&](const Posted& each) { return each.sequence == sequence; });
  if (sent == lane.sent_ahead.end()) return;
  peer.ahead_sent -= sent->bytes;
  lane.sent_ahead.erase(sent);
  if (!peer.ahead.empty()) mark_dirty(peer);
}

// ---- receiving ----

Matcher::Landing Matcher::arrive_early(Peer& peer, Lane& lane, const FrameHeader& header) {
  const auto wrong = [&](const char* what) {
    return Failure{
        PRUN_ECORRUPT, peer.rank,
        fmt::format("rank #{} sent a piece of a large message without a request, and {} (lane {}, "
                    "sequence {}, {} bytes at {} of {})",
                    peer.rank, what, header.lane, header.sequence, header.length, header.offset, header.total)};
  };
  if (header.total <= eager_ || header.offset > header.total || header.length > header.total - header.offset)
    throw wrong("its place makes no sense");
  if (peer.ahead_kept + header.length > most_kept_) throw wrong("more than may come ahead");
  auto early = find_early(lane, header.sequence);
  if (early == lane.early.end()) early = lane.early.insert(early, {header.sequence, header.total, {}});
  if (early->bytes != header.total) throw wrong("its size has changed");
  peer.ahead_kept += header.length;
  early->pieces.push_back({header.offset, header.length, std::make_unique_for_overwrite<char[]>(header.length)});
  return {early->pieces.back().data.get(), nullptr};
}

void Matcher::landed_early(Peer& peer, Lane& lane, const FrameHeader& header) {
  const auto early = find_early(lane, header.sequence);
  if (early == lane.early.end()) return;
  const auto piece = std::find_if(early->pieces.begin(), early->pieces.end(), [&](const Early::Piece& each) {
    return each.offset == header.offset && !each.arrived;
  });
  if (piece == early->pieces.end()) return;
  piece->arrived = true;
  if (!sequence_before(header.sequence, lane.next_receive())) return;  // the receive is not posted yet: keep the piece
  Message* const message = early->claimed;
  if (message != nullptr)
    copy_out(peer, *piece, *message);
  else
    peer.ahead_kept -= piece->length;  // its receive was dropped
  early->pieces.erase(piece);
  if (early->pieces.empty()) lane.early.erase(early);
  if (message != nullptr && message->moved == message->bytes) complete(*message);
}

// Moves buffered pieces into a receive that has just been posted. Returns whether any piece was buffered.
bool Matcher::take_early(Message& message) {
  Peer& peer = *message.peer;
  Lane& lane = *message.lane;
  const auto early = find_early(lane, message.sequence);
  if (early == lane.early.end()) return false;
  if (!lane.announced.empty() && lane.announced.front().sequence == message.sequence) lane.announced.pop_front();
  control(peer, lane, FrameKind::posted, message.sequence, message.bytes);
  const uint64_t theirs = early->bytes;
  const bool fits = theirs == message.bytes;
  std::erase_if(early->pieces, [&](const Early::Piece& piece) {
    if (!piece.arrived) return false;
    if (fits)
      copy_out(peer, piece, message);
    else
      peer.ahead_kept -= piece.length;
    return true;
  });
  if (early->pieces.empty())
    lane.early.erase(early);
  else if (fits)
    early->claimed = &message;
  if (!fits)
    mismatch(message, theirs);
  else if (message.moved == message.bytes)
    complete(message);
  else if (peer.gone)
    fail(&message, peer.gone);
  return true;
}

// Drops pieces that a lost peer will not complete.
void Matcher::forget_arriving(Peer& peer, Lane& lane) {
  for (Early& early : lane.early) {
    early.claimed = nullptr;
    std::erase_if(early.pieces, [&](const Early::Piece& piece) {
      if (!piece.arrived) peer.ahead_kept -= piece.length;
      return !piece.arrived;
    });
  }
  std::erase_if(lane.early, [](const Early& early) { return early.pieces.empty(); });
}

}  // namespace prun::socket
