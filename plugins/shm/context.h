// One rank's side of the transport: its memory, its peers on this host, and their communication.
//
// The world may include ranks of other hosts, which have no Peer here. `mutex` guards members that test() of any thread
// accesses; collectives need no lock, because each communicator has its own flags.
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
  size_t small = 0;  // largest input, in bytes, posted with its flag; 0 = by cores per rank
  size_t chunk = 0;  // chunk of staged collectives, in bytes; 0 = by cores per rank
  bool huge = true;  // request huge pages for arenas
};

struct Arena {
  SharedMemory memory;
  std::byte* start = nullptr;  // the pointer returned to the caller
  size_t bytes = 0;
  bool shared = false;  // mapped by peers
};

// Memory as mapped in this process.
struct View {
  std::byte* base = nullptr;
  size_t bytes = 0;
};

struct Peer {
  int rank = -1;           // global rank
  sdk::Descriptor socket;  // open while the peer lives; its end reports the peer's death
  std::vector<sdk::Mapping> mappings;
  View segment;  // control segment, without its blocks
  sdk::Descriptor segment_fd;
  std::map<int, sdk::Mapping> blocks;  // mapped blocks by slot
  std::vector<View> arenas;
  SegmentLayout layout;
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(segment.base); }
  Inbox& inbox(int from) const { return *reinterpret_cast<Inbox*>(segment.base + layout.inbox(from)); }
  CommBlock& block(int slot);  // maps the block on first use, under the context's lock; throws Failure
};

// A block of a freed comm, reused once all peers have completed its last call.
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

  // The functions of the transport table: messages in p2p.cc, groups in comm.cc and collectives.cc, windows and signals
  // in onesided.cc.
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
  // Returns the shared arena that holds all of [ptr, ptr + bytes) and the offset in it; arena -1 = none.
  Place place_of(const void* ptr, size_t bytes) const;
  std::byte* address_of(const Peer& peer, const Place& place) const;
  // Returns the local index of a rank of this host; throws Failure for others.
  int local_index(int rank) const;
  // Returns the first of these local indices whose rank has ended, closed or aborted; -1 = none.
  int lost_peer(const std::vector<int>& among, RankState& how);
  // Returns the cause of a wait for this local index that ended with Wait::lost.
  Failure loss(int local, RankState how) const;

  Options options;
  WaitPolicy wait;
  size_t ring = 0;        // bytes through which staged chunks rotate, at least four chunks
  size_t last_cache = 0;  // bytes of the last-level cache

  std::vector<Arena> arenas;  // fixed from `address` on, except arenas that are not shared
  SharedMemory segment;       // this rank's control segment
  std::unique_ptr<Connector> connector;

  std::vector<Peer> peers;    // all ranks of this host, including this one, by local index
  std::vector<int> local_of;  // global rank -> local index; -1 = other host
  int me = 0;                 // local index of this rank

  std::mutex mutex;  // guards p2p, slots, resting
  P2p p2p;
  int slots_used = 0;
  std::vector<int> free_slots;
  std::vector<Resting> resting;
};

inline Failure aborted_failure() { return {PRUN_EABORTED, "aborted"}; }

}  // namespace prun::shm
