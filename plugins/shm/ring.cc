// Records and chunks in memory shared with one peer. A record is contiguous: a pad precedes a record that would cross
// the end of the ring.

#include <algorithm>
#include <cstring>

#include "context.h"

namespace prun::shm {
namespace {

constexpr size_t kMoveAtOnce = 1 << 20;  // bytes per peer and call of progress: keeps test under 10 ms

size_t record_bytes(const Outgoing& o) {
  size_t n = sizeof(Record);
  if (o.record.kind == RecordKind::eager) n = kRecordHead + o.record.bytes;
  if (o.record.kind == RecordKind::comm) n = sizeof(Record) + sizeof(CommNote);
  return (n + 63) / 64 * 64;
}

bool push(Context& c, int peer, Outgoing& o) {
  Link& link = c.p2p.links[peer];
  Peer& to = c.peers[peer];
  Inbox& inbox = to.inbox(c.me);
  const size_t need = record_bytes(o);
  size_t at = link.tail % kRingBytes;
  const size_t pad = at + need > kRingBytes ? kRingBytes - at : 0;
  if (link.tail + pad + need - link.head_seen > kRingBytes) {
    link.head_seen = inbox.head.load(std::memory_order_acquire);
    if (link.tail + pad + need - link.head_seen > kRingBytes) return false;
  }
  if (pad > 0) {
    Record filler{};
    filler.kind = RecordKind::pad;
    filler.length = static_cast<uint32_t>(pad);
    std::memcpy(inbox.ring + at, &filler, kRecordHead);
    at = 0;
  }
  o.record.length = static_cast<uint32_t>(need);
  std::byte* p = inbox.ring + at;
  if (o.record.kind == RecordKind::eager) {
    std::memcpy(p, &o.record, kRecordHead);
    if (o.record.bytes > 0) std::memcpy(p + kRecordHead, o.body, o.record.bytes);
  } else {
    std::memcpy(p, &o.record, sizeof(Record));
    if (o.record.kind == RecordKind::comm) std::memcpy(p + sizeof(Record), &o.note, sizeof(CommNote));
  }
  link.tail += pad + need;
  inbox.tail.store(link.tail, std::memory_order_seq_cst);
  ring(to.header().bell);
  if (o.transfer) finish(o.transfer);
  return true;
}

bool flush(Context& c, int peer) {
  Link& link = c.p2p.links[peer];
  bool moved = false;
  while (!link.out.empty() && push(c, peer, link.out.front())) {
    link.out.pop_front();
    moved = true;
  }
  return moved;
}

// Removes a send from the waiting table, because its final answer has arrived.
Transfer* take_waiting(Context& c, uint64_t id) {
  if (id >= c.p2p.waiting.size()) return nullptr;
  Transfer* t = c.p2p.waiting[id];
  if (!t) return nullptr;
  c.p2p.waiting[id] = nullptr;
  c.p2p.free_ids.push_back(static_cast<uint32_t>(id));
  return t;
}

void handle(Context& c, int peer, const Record& r, const std::byte* at) {
  Link& link = c.p2p.links[peer];
  switch (r.kind) {
    case RecordKind::pad:
      return;
    case RecordKind::eager:
    case RecordKind::direct:
    case RecordKind::bounce:
      arrived(c, peer, r, at + kRecordHead, nullptr);
      return;
    case RecordKind::answer:
      if (Transfer* t = take_waiting(c, r.id)) {
        if (r.refused)
          finish_with_mismatch(c, t, r.bytes);
        else
          finish(t);
      }
      return;
    case RecordKind::go:
      if (Transfer* t = take_waiting(c, r.id)) link.bounce_out.push_back(t);
      return;
    case RecordKind::comm: {
      CommNote& note = link.notes.emplace_back();
      std::memcpy(&note, at + sizeof(Record), sizeof note);
      return;
    }
  }
}

bool drain(Context& c, int peer) {
  Link& link = c.p2p.links[peer];
  Inbox& inbox = c.self().inbox(peer);
  const uint64_t tail = inbox.tail.load(std::memory_order_acquire);
  if (tail == link.head) return false;
  while (link.head != tail) {
    const std::byte* at = inbox.ring + link.head % kRingBytes;
    Record r{};
    std::memcpy(&r, at, kRecordHead);
    if (r.kind != RecordKind::eager && r.kind != RecordKind::pad) std::memcpy(&r, at, sizeof r);
    handle(c, peer, r, at);
    link.head += r.length;
  }
  inbox.head.store(link.head, std::memory_order_seq_cst);
  ring(c.peers[peer].header().bell);
  return true;
}

bool read_direct(Context& c, int peer) {
  Link& link = c.p2p.links[peer];
  if (link.direct_in.empty()) return false;
  for (size_t budget = kMoveAtOnce; budget > 0 && !link.direct_in.empty();) {
    Transfer* t = link.direct_in.front();
    const size_t n = std::min(budget, t->bytes - t->moved);
    std::memcpy(t->ptr + t->moved, t->source + t->moved, n);
    t->moved += n;
    budget -= n;
    if (t->moved < t->bytes) break;
    link.direct_in.pop_front();
    if (t->other) {
      finish(t->other);
      finish(t);
      continue;
    }
    Outgoing answer{};
    answer.record.kind = RecordKind::answer;
    answer.record.id = t->answer_to;
    answer.transfer = t;  // the request is complete only once the answer is in the sender's ring
    post(c, peer, answer);
  }
  return true;
}

bool write_bounce(Context& c, int peer) {
  Link& link = c.p2p.links[peer];
  if (link.bounce_out.empty()) return false;
  Peer& to = c.peers[peer];
  Inbox& inbox = to.inbox(c.me);
  bool moved = false;
  while (!link.bounce_out.empty()) {
    Transfer* t = link.bounce_out.front();
    if (t->request->abandoned) return moved;  // its buffer is invalid, because the job has failed
    if (link.filled - inbox.bounce_taken.load(std::memory_order_acquire) >= kBounceChunks) break;
    const size_t n = std::min(kBounceBytes, t->bytes - t->moved);
    std::memcpy(inbox.bounce + link.filled % kBounceChunks * kBounceBytes, t->ptr + t->moved, n);
    t->moved += n;
    inbox.bounce_filled.store(++link.filled, std::memory_order_seq_cst);
    ring(to.header().bell);
    moved = true;
    if (t->moved < t->bytes) continue;
    link.bounce_out.pop_front();
    finish(t);
  }
  return moved;
}

bool read_bounce(Context& c, int peer) {
  Link& link = c.p2p.links[peer];
  if (link.bounce_in.empty()) return false;
  Inbox& inbox = c.self().inbox(peer);
  bool moved = false;
  while (!link.bounce_in.empty() && link.taken != inbox.bounce_filled.load(std::memory_order_acquire)) {
    Transfer* t = link.bounce_in.front();
    const size_t n = std::min(kBounceBytes, t->bytes - t->moved);
    if (!t->request->abandoned)
      std::memcpy(t->ptr + t->moved, inbox.bounce + link.taken % kBounceChunks * kBounceBytes, n);
    t->moved += n;
    inbox.bounce_taken.store(++link.taken, std::memory_order_seq_cst);
    ring(c.peers[peer].header().bell);
    moved = true;
    if (t->moved < t->bytes) continue;
    link.bounce_in.pop_front();
    finish(t);
  }
  return moved;
}

}  // namespace

void post(Context& c, int peer, const Outgoing& outgoing) {
  Link& link = c.p2p.links[peer];
  Outgoing o = outgoing;
  if (!link.out.empty() || !push(c, peer, o)) link.out.push_back(o);
}

void refuse(Context& c, Transfer* t, const Record& record, Transfer* from_self) {
  if (from_self) {
    finish_with_mismatch(c, from_self, t->bytes);
  } else if (record.kind != RecordKind::eager) {
    Outgoing answer{};
    answer.record.kind = RecordKind::answer;
    answer.record.id = record.id;
    answer.record.refused = 1;
    answer.record.bytes = t->bytes;
    post(c, t->peer, answer);
  }
  finish_with_mismatch(c, t, record.bytes);
}

void send_note(Context& c, int peer, const CommNote& note) {
  Outgoing o{};
  o.record.kind = RecordKind::comm;
  o.note = note;
  post(c, peer, o);
}

bool progress(Context& c) {
  bool moved = false;
  for (int peer = 0; peer < static_cast<int>(c.peers.size()); peer++) {
    if (peer == c.me) {
      moved |= read_direct(c, peer);
      continue;
    }
    moved |= drain(c, peer);
    moved |= flush(c, peer);
    moved |= read_direct(c, peer);
    moved |= read_bounce(c, peer);
    moved |= write_bounce(c, peer);
  }
  // This may have completed another thread's request.
  if (moved && !c.peers.empty()) ring(c.self().header().bell);
  return moved;
}

}  // namespace prun::shm
