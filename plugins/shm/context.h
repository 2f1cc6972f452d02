// One rank's side of the transport: its memory, its peers on this host, and what they exchange.
//
// Ranks of other hosts may be in the world; they have no Peer here. Everything under `mutex` is touched by test()
// of any thread; collectives need no lock, each communicator has flags of its own.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "p2p.h"
#include "prun/sdk/transport.h"
#include "segment.h"

namespace prun::shm {

struct Options {
  size_t small = 0;  // collectives up to this many bytes are posted beside their flags; 0: by the cores
  size_t chunk = 0;  // bytes of a chunk of the staged collectives; 0: by the cores
  bool huge = true;  // ask for huge pages for arenas
};

struct Arena {
  SharedMemory memory;
  std::byte* start = nullptr;  // what the caller got
  size_t bytes = 0;
  bool shared = false;  // peers map it
};

// Memory as this process has it mapped.
struct View {
  std::byte* base = nullptr;
  size_t bytes = 0;
};

struct Peer {
  int rank = -1;           // global
  sdk::Descriptor socket;  // open as long as the peer lives: how its death is noticed
  std::vector<sdk::Mapping> mappings;
  View segment;  // without its blocks
  sdk::Descriptor segment_fd;
  std::map<int, sdk::Mapping> blocks;  // by slot
  std::vector<View> arenas;
  SegmentLayout layout;
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(segment.base); }
  Inbox& inbox(int from) const { return *reinterpret_cast<Inbox*>(segment.base + layout.inbox(from)); }
  CommBlock& block(int slot);  // mapped on first use, under the context's lock; throws Failure
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
struct Comm;

struct Context : sdk::Transport {
  using Request = shm::Request;
  using Comm = shm::Comm;

  // The functions of the table. Those of messages are in p2p.cc, of groups in comm.cc and collectives.cc, of windows
  // and signals in onesided.cc.
  explicit Context(const prun_open_params& params);
  ~Context();
  std::string address();
  Failure connect(const sdk::Blobs& blobs);
  Request* batch(std::span<const prun_p2p> ops, prun_queue);
  Failure test(Request* request);
  void abort();
  void* mem_alloc(size_t bytes, int kind, void*& handle);
  void mem_free(void* ptr, void* handle);
  Comm* comm_create(std::span<const int> ranks, int lane);
  Failure comm_test(Comm& comm);
  void comm_free(Comm* comm);
  Request* coll(Comm& comm, const prun_coll_params& params, prun_queue);
  Request* put(int peer, const void* src, size_t offset, size_t bytes, uint64_t number);
  Request* get(int peer, void* dst, size_t offset, size_t bytes);
  Request* signal(int peer, uint64_t number);
  Request* wait_signal(int peer, uint64_t number, uint64_t count);
  static int score(const prun_open_params& params, std::span<const int> ranks);
  static const void* ext(std::string_view id);
  static void check_options(const char* text);

  Peer& self() { return peers[me]; }
  // The arena that holds all of [ptr, ptr + bytes), as peers know it; arena -1 when none.
  Place place_of(const void* ptr, size_t bytes) const;
  std::byte* address_of(const Peer& peer, const Place& place) const;
  // The local index of a rank of this host; throws Failure for others.
  int local_index(int rank) const;
  // The first of these local indices whose rank has ended, closed or aborted; -1 none.
  int lost_peer(const std::vector<int>& among, RankState& how);
  // Why a wait for this local index has ended with Wait::lost.
  Failure loss(int local, RankState how) const;

  Options options;
  WaitPolicy wait;
  size_t ring = 0;        // bytes through which staged chunks rotate, four of them at least
  size_t last_cache = 0;  // bytes

  std::vector<Arena> arenas;  // fixed from `address` on, but for those that are not shared
  SharedMemory segment;       // what this rank shares of its own
  std::unique_ptr<Connector> connector;

  std::vector<Peer> peers;    // of this host, by local index; this rank among them
  std::vector<int> local_of;  // global rank -> local index, -1 elsewhere
  int me = 0;                 // local index

  std::mutex mutex;  // p2p, slots, resting
  P2p p2p;
  int slots_used = 0;
  std::vector<int> free_slots;
  std::vector<Resting> resting;
};

inline Failure aborted_failure() { return {PRUN_EABORTED, "aborted"}; }

}  // namespace prun::shm
