// Batches: matching of receives with messages, and the end of requests. ring.cc moves the bytes.
//
// A request that ended with an error or an abort may leave transfers in queues. They live on in `abandoned`, and their
// buffers are no longer accessed.
#include "p2p.h"

#include <algorithm>
#include <cstring>

#include "context.h"

namespace prun::shm {

namespace {

// Starts the path of a message whose receive is known.
void match(Context& c, Transfer* t, const Record& r, const std::byte* body, Transfer* from_self) {
  Link& link = c.p2p.links[t->peer];
  if (r.bytes != t->bytes) {
    refuse(c, t, r, from_self);
    return;
  }
  switch (r.kind) {
    case RecordKind::eager:
      if (t->bytes > 0) std::memcpy(t->ptr, body, t->bytes);
      finish(t);
      return;
    case RecordKind::direct:
      if (from_self) {
        t->other = from_self;
        t->source = from_self->ptr;
      } else {
        t->answer_to = r.id;
        t->source = c.address_of(c.peers[t->peer], Place{r.arena, 0, r.offset});
      }
      link.direct_in.push_back(t);
      return;
    default: {  // bounce
      link.bounce_in.push_back(t);
      Outgoing go{};
      go.record.kind = RecordKind::go;
      go.record.id = r.id;
      post(c, t->peer, go);
      return;
    }
  }
}

void post_receive(Context& c, Transfer* t) {
  Lane& lane = c.p2p.links[t->peer].lanes[t->lane];
  if (lane.unexpected.empty()) {
    lane.posted.push_back(t);
    return;
  }
  Unexpected first = std::move(lane.unexpected.front());
  lane.unexpected.pop_front();
  match(c, t, first.record, first.body.data(), first.from_self);
}

void post_send(Context& c, Transfer* t) {
  Outgoing o{};
  Record& r = o.record;
  r.lane = t->lane;
  r.bytes = t->bytes;
  if (t->bytes <= kEagerBytes) {
    r.kind = RecordKind::eager;
    if (t->peer == c.me) {
      arrived(c, c.me, r, t->ptr, nullptr);
      finish(t);
      return;
    }
    o.body = t->ptr;
    o.transfer = t;
    post(c, t->peer, o);
    return;
  }
  if (t->peer == c.me) {
    r.kind = RecordKind::direct;
    arrived(c, c.me, r, nullptr, t);
    return;
  }
  const Place place = c.place_of(t->ptr, t->bytes);
  r.kind = place.arena >= 0 ? RecordKind::direct : RecordKind::bounce;
  r.arena = place.arena;
  r.offset = place.offset;
  if (c.p2p.free_ids.empty()) {
    t->id = static_cast<uint32_t>(c.p2p.waiting.size());
    c.p2p.waiting.push_back(t);
  } else {
    t->id = c.p2p.free_ids.back();
    c.p2p.free_ids.pop_back();
    c.p2p.waiting[t->id] = t;
  }
  r.id = t->id;
  post(c, t->peer, o);
}

// Removes transfers of an ended request from the queues that would access its buffers.
void abandon(Context& c, P2pRequest* request) {
  request->abandoned = true;
  for (Link& link : c.p2p.links) {
    auto mine = [&](const Transfer* t) { return t && t->request == request; };
    for (auto& [number, lane] : link.lanes) {
      std::erase_if(lane.posted, mine);
      std::erase_if(lane.unexpected, [&](const Unexpected& u) { return mine(u.from_self); });
    }
    std::erase_if(link.out, [&](const Outgoing& o) { return mine(o.transfer); });
    std::erase_if(link.direct_in, [&](const Transfer* t) { return mine(t) || mine(t->other); });
  }
  c.p2p.abandoned.emplace_back(request);
}

}  // namespace

void finish(Transfer* t) {
  if (t->finished) return;
  t->finished = true;
  t->request->left--;
}

void finish_with_mismatch(Context& c, Transfer* t, uint64_t others) {
  const int who = c.peers[t->peer].rank;
  const char* const text = t->recv ? " bytes are to be received here on lane " : " bytes were sent to it on lane ";
  const char* const verb = t->recv ? " sent " : " receives ";
  Failure& failure = t->request->failure;
  if (!failure) failure = {PRUN_EMISMATCH, who, "rank #", who, verb, others, " bytes, but ", t->bytes, text, t->lane};
  finish(t);
}

void arrived(Context& c, int peer, const Record& record, const std::byte* body, Transfer* from_self) {
  Lane& lane = c.p2p.links[peer].lanes[record.lane];
  if (!lane.posted.empty()) {
    Transfer* t = lane.posted.front();
    lane.posted.pop_front();
    match(c, t, record, body, from_self);
    return;
  }
  Unexpected& u = lane.unexpected.emplace_back();
  u.record = record;
  u.from_self = from_self;
  if (record.kind == RecordKind::eager) u.body.assign(body, body + record.bytes);
}

Request* Context::batch(std::span<const prun_p2p> ops, prun_queue) {
  auto made = std::make_unique<P2pRequest>();
  made->kind = Request::Kind::p2p;
  made->transfers.resize(ops.size());
  made->left = ops.size();
  for (size_t i = 0; i < ops.size(); i++) {
    Transfer& t = made->transfers[i];
    t.request = made.get();
    t.ptr = static_cast<std::byte*>(ops[i].ptr);
    t.bytes = ops[i].bytes;
    t.peer = local_index(ops[i].peer);
    t.lane = static_cast<uint16_t>(ops[i].tag);
    t.recv = ops[i].is_recv != 0;
  }
  std::lock_guard lock(mutex);
  for (Transfer& t : made->transfers)
    if (t.recv) post_receive(*this, &t);
  for (Transfer& t : made->transfers)
    if (!t.recv) post_send(*this, &t);
  return made.release();
}

Failure test_batch(Context& c, P2pRequest* request) {
  auto ready = [&] {
    std::lock_guard lock(c.mutex);
    const bool moved = progress(c);
    if (moved) request->patience.progress();
    return request->left == 0 || request->failure;
  };
  std::vector<int> among;
  RankState how = RankState::running;
  int lost = -1;
  auto idle = [&] {
    among.clear();
    std::lock_guard lock(c.mutex);
    for (const Transfer& t : request->transfers)
      if (!t.finished && std::find(among.begin(), among.end(), t.peer) == among.end()) among.push_back(t.peer);
    lost = c.lost_peer(among, how);
    return lost >= 0;
  };
  auto own_bell = [&]() -> Doorbell& { return c.self().header().bell; };
  uint64_t start = 0;
  const Wait wait = wait_until(
      c.wait, own_bell, request->patience, start, ready, [&] { return c.stopped(); }, idle);
  if (wait == Wait::time) return {PRUN_AGAIN, ""};
  if (wait == Wait::ready && !request->failure) {
    delete request;
    return {};
  }
  Failure failure = wait == Wait::aborted ? aborted_failure()
                    : wait == Wait::lost  ? c.loss(lost, how)
                                          : request->failure;
  std::lock_guard lock(c.mutex);
  abandon(c, request);
  return failure;
}

}  // namespace prun::shm
