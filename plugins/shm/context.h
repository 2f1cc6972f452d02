// One rank's side of the transport: its memory, its peers on this host, and what they exchange.
//
// Ranks of other hosts may be in the world; they have no Peer here. Everything under `mutex` is touched by test()
// of any thread; collectives need no lock, each communicator has flags of its own.
#pragma once
#include <array>
#include <atomic>
#include <cstdarg>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "p2p.h"
#include "prun/transport.h"
#include "segment.h"
#include "wait.h"

namespace prun::shm {

struct Options {
  size_t small = 0;  // collectives up to this many bytes are posted beside their flags; 0: by the cores
  size_t chunk = 0;  // bytes of a chunk of the staged collectives; 0: by the cores
  bool huge = true;  // ask for huge pages for arenas
};
// Throws nothing; returns the word that is wrong, or "".
std::string parse_options(const char* text, Options& options);

// Sets a result, if there is one, and returns the status.
prun_status fail(prun_result* result, prun_status status, int culprit, const char* format, ...)
    __attribute__((format(printf, 4, 5)));

struct Arena {
  Mapping mapping;
  std::byte* start = nullptr;  // what the caller got
  size_t bytes = 0;
  bool shared = false;  // peers map it
};

struct Peer {
  int rank = -1;    // global
  int socket = -1;  // open as long as the peer lives: how its death is noticed
  Mapping segment;
  std::vector<Mapping> arenas;
  SegmentLayout layout;
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(segment.base); }
  Inbox& inbox(int from) const { return *reinterpret_cast<Inbox*>(segment.base + layout.inbox(from)); }
  CommBlock& block(int slot) const { return *reinterpret_cast<CommBlock*>(segment.base + layout.block(slot)); }
};

// A block of a freed comm: used again once all peers have completed its last call.
struct Resting {
  int slot;
  struct Need {
    const std::atomic<uint64_t>* done;
    uint64_t value;
  };
  std::vector<Need> needs;
};

class Connector;

struct Context {
  const prun_host* host = nullptr;
  int rank = 0, ranks = 1, local_ranks = 1, local_rank = 0;
  std::string job_id;
  std::array<uint8_t, 32> secret{};
  Options options;
  WaitPolicy wait;
  size_t ring = 0;        // bytes through which staged chunks rotate, four of them at least
  size_t last_cache = 0;  // bytes

  std::vector<Arena> arenas;  // fixed from `address` on, but for those that are not shared
  bool addressed = false;
  std::atomic<bool> connected{false};  // abort may come from any thread while connecting
  std::unique_ptr<Connector> connector;

  std::vector<Peer> peers;    // of this host, by local index; this rank among them
  std::vector<int> local_of;  // global rank -> local index, -1 elsewhere
  int me = 0;                 // local index

  std::mutex mutex;  // p2p, slots, resting
  P2p p2p;
  int slots_used = 0;
  std::vector<int> free_slots;
  std::vector<Resting> resting;

  std::atomic<bool> abort_called{false};

  bool stopped() const { return abort_called.load(std::memory_order_relaxed) || (host->aborted && host->aborted()); }
  Peer& self() { return peers[static_cast<size_t>(me)]; }
  // The arena that holds all of [ptr, ptr + bytes), as peers know it; arena -1 when none.
  Place place_of(const void* ptr, size_t bytes) const;
  std::byte* address_of(const Peer& peer, const Place& place) const;
  // The first of these local indices whose rank has ended, closed or aborted; -1 none.
  int lost_peer(const std::vector<int>& among, RankState& how);
};

// When a wait ended with Wait::lost or aborted. `lost` is a local index.
prun_status report_lost(Context& c, int lost, RankState how, prun_result* result);
prun_status report_aborted(prun_result* result);

}  // namespace prun::shm

struct prun_ctx : prun::shm::Context {};
