// A put is complete when the call returns: the bytes are in the peer's window, and the peer observes the signal only
// after the bytes. Only a wait for a signal is a request that lasts.

#include <cstring>

#include "context.h"

namespace prun::shm {
namespace {

// Returns this process's address of [offset, offset + bytes) of a rank's window. Throws Failure if the range exceeds
// the window.
std::byte* find_place(const Peer& peer, size_t offset, size_t bytes) {
  const size_t skew = arena_skew(peer.rank, 0), size = peer.arenas.empty() ? 0 : peer.arenas[0].bytes - skew;
  if (offset > size || bytes > size - offset)
    throw Failure(PRUN_EINVAL, peer.rank, bytes, " bytes at ", offset, " of the window of rank #", peer.rank,
                  ", which has ", size);
  return peer.arenas[0].base + skew + offset;
}

void raise(Context& c, int index, uint64_t signal) {
  const Peer& peer = c.peers[index];
  peer.inbox(c.me).signals[signal].fetch_add(1, std::memory_order_seq_cst);
  ring(peer.header().bell);
}

uint64_t raised(Context& c, int index, uint64_t signal) {
  return c.self().inbox(index).signals[signal].load(std::memory_order_seq_cst);
}

// Returns the shared request of calls that are complete when they return; it needs neither a wait nor a free.
Request* completed() {
  static SignalRequest done{{Request::Kind::signal}};
  return &done;
}

}  // namespace

Request* Context::put(int peer, const void* src, size_t offset, size_t bytes, uint64_t number) {
  const int index = local_index(peer);
  std::byte* const place = find_place(peers[index], offset, bytes);
  if (bytes > 0) std::memcpy(place, src, bytes);
  if (number != 0) raise(*this, index, number);
  return completed();
}

Request* Context::get(int peer, void* dst, size_t offset, size_t bytes) {
  const std::byte* const place = find_place(peers[local_index(peer)], offset, bytes);
  if (bytes > 0) std::memcpy(dst, place, bytes);
  return completed();
}

Request* Context::signal(int peer, uint64_t number) {
  const int index = local_index(peer);
  if (number != 0) raise(*this, index, number);
  return completed();
}

Request* Context::wait_signal(int peer, uint64_t number, uint64_t count) {
  const int index = local_index(peer);
  if (number == 0 || raised(*this, index, number) >= count) return completed();
  return new SignalRequest{{Request::Kind::signal}, index, number, count, {}};
}

Failure test_signal(Context& c, SignalRequest* request) {
  const int peer = request->peer;
  if (peer < 0) return {};
  RankState how = RankState::running;
  auto ready = [&] { return raised(c, peer, request->signal) >= request->count; };
  auto idle = [&] { return c.lost_peer({peer}, how) >= 0; };
  auto own_bell = [&]() -> Doorbell& { return c.self().header().bell; };
  uint64_t start = 0;
  const Wait wait = wait_until(
      c.wait, own_bell, request->patience, start, ready, [&] { return c.stopped(); }, idle);
  if (wait == Wait::time) return {PRUN_AGAIN, c.peers[peer].rank};
  delete request;
  if (wait == Wait::aborted) return aborted_failure();
  return wait == Wait::lost ? c.loss(peer, how) : Failure();
}

}  // namespace prun::shm
