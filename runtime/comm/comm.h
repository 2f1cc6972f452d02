// Communication as the executor and the benches see it: worlds, communicators, blocking collectives.
//
// Everything a plugin does not do itself is done here over its point-to-point messages: collectives, headers with
// fingerprints, deadlines, abort, the naming of the rank that is missing.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/rank_place.h"
#include "ir/coll_kind.h"
#include "ir/types.h"
#include "prun/transport.h"

namespace prun {

// One collective call; counts are elements, as in prun_coll_params. all_gather_v: counts[i] is member i's share, packed
// in order in `recv`. all_to_all_v: `counts` go to the members, `recv_counts` come from them; both packed.
struct CollCall {
  CollKind kind = CollKind::barrier;
  Dtype dtype = Dtype::f32;
  RedOp redop = RedOp::sum;
  int root = 0;  // index in the group
  const void* send = nullptr;
  void* recv = nullptr;
  int64_t count = 0;
  const int64_t* counts = nullptr;
  const int64_t* recv_counts = nullptr;
  bool rank_order = false;  // sums are ((x0 + x1) + x2) + ..., the same bits over every transport
  // A CUDA stream: the call runs on device memory behind what is in that stream. Queue-ordered transports only.
  prun_queue queue{PRUN_MEM_HOST, nullptr};
};
std::string describe(const CollCall& call);  // "all_reduce f32[1024] sum"

struct Algorithm;
// A call and what each run of it needs, computed once by Communicator::prepare. It may be run on that communicator as
// often as wanted, while its pointers and the values of its counts stay.
struct PreparedCall : CollCall {
  uint64_t fingerprint = 0;              // kind, dtype, redop, root and rank_order (collectives/call.h)
  uint64_t agreed_count = 0;             // equal on all members
  uint64_t counts_hash = 0;              // of counts that must be equal on all members
  int64_t bytes = 0;                     // of the largest buffer that the call names on any rank
  const Algorithm* algorithm = nullptr;  // the core's; null while the transport's own may run it
};

// Thrown where a wait ends because the job is ending: some other rank is the cause, and whoever catches this reports
// nothing. The message is the reason, if the bootstrap knows one.
class Aborted : public Error {
 public:
  explicit Aborted(std::string reason) : Error(Exit::transport, std::move(reason)) {}
};

// How ranks find each other before they are connected; launch implements it, tests may do so with threads.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  // Every rank's blob, by rank. Collective; the same order of calls on all ranks. Throws Error(join).
  virtual std::vector<std::string> all_gather(const std::string& blob) = 0;
  virtual bool aborted() const = 0;  // any thread
  // Once aborted: who is the cause ("rank 3 was killed by SIGKILL"), "" if unknown. Any thread.
  virtual std::string abort_reason() const { return ""; }
  // What this rank is at until it has connected ("opening transport ucx"), for whoever finds it dead there.
  virtual void doing(const std::string& /*what*/) {}
  // The calling thread has waited long for these ranks; none: it goes on. For whoever finds that nothing moves.
  virtual void waits_for(const std::vector<int>& /*ranks*/) {}
  // A plugin's function does not return, so this rank cannot throw: tell, and end the process. Called by another
  // thread.
  [[noreturn]] virtual void fatal(const Error& error);
};

struct WorldOptions : RankPlace {
  std::string transport = "auto";  // auto, a plugin's name, or two: INSIDE+BETWEEN hosts
  std::string transport_options;   // "key=value,..."; NAME.key=value is for the plugin NAME only
  std::vector<std::string> plugin_dirs;
  std::string network_interface;
  bool encrypt = false;         // what goes between hosts
  int64_t arena_bytes = 0;      // of the largest rank, which shared memory maps of each rank of the host; 0: not known
  std::string algorithm;        // comm.algorithm: the name of one (algorithm.cc), "": by size and ranks
  std::string algorithm_costs;  // measured on this host (algorithm_costs.h), for groups inside it; "": limits decide
  prun_mem_kind memory = PRUN_MEM_HOST;      // that the ranks compute on: `auto` prefers a transport that works on it
  int device = -1;                           // which of the machine's devices
  double deadline_s = 60;                    // of one collective without progress, and of connecting
  std::string host;                          // "": measured (host_map.h); tests name hosts to simulate several
  void (*adapt)(prun_transport&) = nullptr;  // tests put themselves between the core and the plugin
};

// How a call goes, for `prun bench`.
struct CollPath {
  std::string algorithm;  // "native": the plugin's own; else the core's, by name; "" unknown
  std::string why;        // "the plugin leaves it to the core; more than 64 KiB"
};

// A group of ranks. `lane` tells communicators of the same ranks apart. One thread at a time; different communicators
// may be used at once. Calls throw Error: mismatch (names both calls and the rank), transport (names the rank that is
// gone or late), hang (no progress within the deadline); or Aborted.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int index() const = 0;  // of this rank in the group
  virtual int size() const = 0;
  virtual PreparedCall prepare(const CollCall& call) const = 0;
  // Blocks until the collective is complete on this rank; with a queue, until it is in the queue (World::check tells
  // what becomes of it).
  virtual void run(const PreparedCall& call) = 0;
  void run(const CollCall& call) { run(prepare(call)); }
  // Point to point inside the group, blocking; peers are indices of the group, -1 for none on that side.
  virtual void send_recv(int to, const void* send, int64_t send_bytes, int from, void* recv, int64_t recv_bytes) = 0;
  // Throws what the transport knows to have gone wrong with calls in replayed graphs, which it is not told of. Returns
  // a rank that it seems to wait for, or -1, where the device has ended nothing for `waited_s`. Called by the thread
  // that made the communicator.
  virtual int check(double /*waited_s*/) { return -1; }
  // Whether a call of part of the elements gives these the same bits as the whole call; the same answer on every
  // member. The order of sums may depend on a call's size, or on an element's place in it.
  virtual bool divides(const CollCall& /*whole*/, const CollCall& /*part*/) const { return false; }
  // How a call like this one goes; the last run was such a call (only trying tells what a plugin does itself).
  virtual CollPath path_of(const CollCall& /*call*/) const { return {}; }
  virtual int64_t bytes_sent() const = 0;  // handed to other ranks by this one, headers not counted
};

// One-sided transfers between this rank and another, in order; `put` in one direction and `offer` and `arrive` in the
// other may be under way at once, on a thread each. All block, and throw as Communicator::run does.
class PutChannel {
 public:
  virtual ~PutChannel() = default;
  virtual void offer() = 0;  // the place that the peer's next put names may be written from now on
  // Waits for the peer's offer, then writes `bytes` at `offset` of its window, the first memory of World::allocate.
  virtual void put(const void* src, int64_t bytes, int64_t offset) = 0;
  virtual void arrive(int64_t bytes) = 0;  // until what the oldest offer was for is there
  virtual int64_t bytes_sent() const = 0;
};

// A rank's connection to the others. Opened, allocated from, connected and destroyed by one thread.
class World {
 public:
  // Loads and opens the transport(s). Then allocate memory, then connect. `bootstrap` outlives the world. Throws Error:
  // usage (options, names), transport, join.
  static std::unique_ptr<World> open(const WorldOptions& options, Bootstrap& bootstrap);
  virtual ~World() = default;
  // Memory for an arena, zeroed: the transport's own where it offers some (then peers read it directly), else
  // anonymous pages. Freed with the world.
  virtual void* allocate(int64_t bytes) = 0;
  // Whether this world works on a device's memory in the order of its streams (CollCall::queue).
  virtual bool enqueues(prun_mem_kind /*kind*/) const { return false; }
  // The transport's own memory on the device, or null. Before connect.
  virtual void* allocate_device(int64_t /*bytes*/, prun_mem_kind /*kind*/) { return nullptr; }
  // Registers memory on the device that is not the transport's own. Before connect.
  virtual void adopt_device(void* /*ptr*/, int64_t /*bytes*/, prun_mem_kind /*kind*/) {}
  // Throws Error(join) naming ranks that differ, Error(transport) naming who is missing at the deadline, or Aborted.
  virtual void connect() = 0;
  // The communicator of these global ranks (this rank among them) on this lane; made on first use, in which the
  // members agree on a tag of the transport. So one thread makes communicators, and all ranks make them in one global
  // order (sorted, say), else they wait for each other. Owned by the world.
  virtual Communicator& communicator(const std::vector<int>& ranks, int lane) = 0;
  // The channel to one peer on a lane (0 .. 126), owned by the world. Null: the transport has no one-sided calls.
  virtual PutChannel* put_channel(int peer, int lane) = 0;
  // Throws what has gone wrong with calls that were enqueued (CollCall::queue) since; for whoever waits for the device,
  // as often as it likes: the transport itself is asked ten times a second. Returns a rank that the device seems to
  // wait for, or -1. Called by the thread that makes communicators.
  virtual int check(double /*waited_s*/) { return -1; }
  // Faults for tests (prun/chaos.h), where the transport has them; false: it has not. Any thread.
  virtual bool disturb(int /*fault*/, int /*peer*/, uint64_t /*seed*/) { return false; }
  virtual void abort() = 0;                        // any thread: everything under way throws soon
  virtual std::string transport_name() const = 0;  // "shm"; "shm+socket": inside hosts and between them
  virtual bool several_hosts() const { return false; }
  // Whether measured costs decide between the core's algorithms (WorldOptions::algorithm_costs).
  virtual bool calibrated() const { return false; }
};

// One plugin found in the plugin directories.
struct PluginInfo {
  std::string name, path, version, summary, error;  // error: why it cannot be loaded; then name is the file's
  std::vector<std::string> capabilities;  // "collectives", "memory", "host", "cuda", "one-sided", "local only"
};
std::vector<PluginInfo> list_plugins(const std::vector<std::string>& dirs);
// Directory order: PRUN_PLUGIN_PATH, then <prefix>/lib/prun/plugins beside the program.
std::vector<std::string> plugin_directories(const std::string& program_path);

}  // namespace prun
