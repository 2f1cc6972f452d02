// A put is complete when the call returns: the bytes are in the peer's window, and the peer's processor sees the
// signal only after them. So only a wait for a signal is a request that lasts.
#include "onesided.h"

#include <cstring>

#include "context.h"

namespace prun::shm {

namespace {

// Throughout: PRUN_OK, or a status whose reason is in `result`.
prun_status find_peer(const Context& c, int rank, uint64_t signal, int& index, prun_result* result) {
  if (!c.connected || rank < 0 || rank >= c.ranks || signal > PRUN_MAX_SIGNAL)
    return fail(result, PRUN_EINVAL, -1, "a one-sided call to rank #%d with signal %llu", rank,
                static_cast<unsigned long long>(signal));
  if (c.stopped()) return report_aborted(result);
  index = c.local_of[static_cast<size_t>(rank)];
  return index >= 0 ? PRUN_OK : fail(result, PRUN_EPEER, rank, "rank #%d is not on this host", rank);
}

// Where [offset, offset + bytes) of a rank's window lies in this process.
prun_status find_place(Context& c, int index, size_t offset, size_t bytes, std::byte*& place, prun_result* result) {
  const Peer& peer = c.peers[static_cast<size_t>(index)];
  const size_t skew = arena_skew(peer.rank, 0), size = peer.arenas.empty() ? 0 : peer.arenas[0].bytes - skew;
  if (offset > size || bytes > size - offset)
    return fail(result, PRUN_EINVAL, peer.rank, "%zu bytes at %zu of the window of rank #%d, which has %zu", bytes,
                offset, peer.rank, size);
  place = peer.arenas[0].base + skew + offset;
  return PRUN_OK;
}

void raise(Context& c, int index, uint64_t signal) {
  const Peer& peer = c.peers[static_cast<size_t>(index)];
  peer.inbox(c.me).signals[signal].fetch_add(1, std::memory_order_seq_cst);
  ring(peer.header().bell);
}

uint64_t raised(Context& c, int index, uint64_t signal) {
  return c.self().inbox(index).signals[signal].load(std::memory_order_seq_cst);
}

// Of calls that are complete when they return: nothing to wait for, nothing to free.
prun_status complete(prun_req** request) {
  static SignalRequest done{{prun_req::Kind::signal}};
  *request = &done;
  return PRUN_OK;
}

}  // namespace

prun_status put(Context& c, int peer, const void* src, size_t offset, size_t bytes, uint64_t signal, prun_req** request,
                prun_result* result) {
  int index = -1;
  std::byte* place = nullptr;
  if (prun_status status = find_peer(c, peer, signal, index, result); status != PRUN_OK) return status;
  if (prun_status status = find_place(c, index, offset, bytes, place, result); status != PRUN_OK) return status;
  if (bytes > 0) std::memcpy(place, src, bytes);
  if (signal != 0) raise(c, index, signal);
  return complete(request);
}

prun_status get(Context& c, int peer, void* dst, size_t offset, size_t bytes, prun_req** request, prun_result* result) {
  int index = -1;
  std::byte* place = nullptr;
  if (prun_status status = find_peer(c, peer, 0, index, result); status != PRUN_OK) return status;
  if (prun_status status = find_place(c, index, offset, bytes, place, result); status != PRUN_OK) return status;
  if (bytes > 0) std::memcpy(dst, place, bytes);
  return complete(request);
}

prun_status raise_signal(Context& c, int peer, uint64_t signal, prun_req** request, prun_result* result) {
  int index = -1;
  if (prun_status status = find_peer(c, peer, signal, index, result); status != PRUN_OK) return status;
  if (signal != 0) raise(c, index, signal);
  return complete(request);
}

prun_status wait_signal(Context& c, int peer, uint64_t signal, uint64_t count, prun_req** request,
                        prun_result* result) {
  int index = -1;
  if (prun_status status = find_peer(c, peer, signal, index, result); status != PRUN_OK) return status;
  if (signal == 0 || raised(c, index, signal) >= count) return complete(request);
  *request = new SignalRequest{{prun_req::Kind::signal}, index, signal, count, {}};
  return PRUN_OK;
}

prun_status test_signal(Context& c, SignalRequest* request, prun_result* result) {
  const int peer = request->peer;
  if (peer < 0) return PRUN_OK;
  RankState how = RankState::running;
  auto ready = [&] { return raised(c, peer, request->signal) >= request->count; };
  auto idle = [&] { return c.lost_peer({peer}, how) >= 0; };
  auto own_bell = [&]() -> Doorbell& { return c.self().header().bell; };
  uint64_t start = 0;
  const Wait wait = wait_until(
      c.wait, own_bell, request->patience, start, ready, [&] { return c.stopped(); }, idle);
  if (wait == Wait::time) {
    if (result) result->culprit = c.peers[static_cast<size_t>(peer)].rank;
    return PRUN_AGAIN;
  }
  delete request;
  if (wait == Wait::aborted) return report_aborted(result);
  return wait == Wait::lost ? report_lost(c, peer, how, result) : PRUN_OK;
}

}  // namespace prun::shm
