// Communication as the executor and the benches use it: worlds, communicators, blocking collectives.
//
// Everything that a plugin does not implement is built here over its point-to-point messages: collectives, headers with
// fingerprints, deadlines, abort, and the name of a missing rank.
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

// One collective call; counts are elements, as in prun_coll_params. all_gather_v: counts[i] is member i's block; blocks
// are packed in order in `recv`. all_to_all_v: `counts` are sent to the members, `recv_counts` come from them; both
// packed.
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
  bool rank_order = false;  // sums are ((x0 + x1) + x2) + ..., bitwise identical over all transports
  // A CUDA stream: the call runs on device memory after earlier work of that stream. Queue-ordered transports only, and
  // of the calls with a count per member only all_to_all_v.
  prun_queue queue{PRUN_MEM_HOST, nullptr};
};
std::string describe(const CollCall& call);  // "all_reduce f32[1024] sum"

struct Algorithm;
// A call with the values that each run needs, computed once by Communicator::prepare. It may run on that communicator
// any number of times while its pointers and the values behind its counts are unchanged.
struct PreparedCall : CollCall {
  uint64_t fingerprint = 0;              // kind, dtype, redop, root and rank_order (collectives/call.h)
  uint64_t agreed_count = 0;             // equal on all members
  uint64_t counts_hash = 0;              // hash of the counts that must be equal on all members
  int64_t bytes = 0;                     // size of the largest buffer that the call names on any rank
  const Algorithm* algorithm = nullptr;  // the core's algorithm; null while the transport's own may run the call
};

// Thrown when a wait ends because the job is ending. Another rank is the cause, so a handler reports nothing. The
// message is the reason, if the bootstrap has one.
class Aborted : public Error {
 public:
  explicit Aborted(std::string reason) : Error(Exit::transport, std::move(reason)) {}
};

// The exchange between ranks before they are connected. runtime/launch implements it; tests implement it with threads.
class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  // Returns every rank's blob, by rank. Collective: all ranks make the same calls in the same order. Throws
  // Error(join).
  virtual std::vector<std::string> all_gather(const std::string& blob) = 0;
  virtual bool aborted() const = 0;  // any thread
  // After an abort, returns its cause ("rank 3 was killed by SIGKILL"), "" if unknown. Any thread.
  virtual std::string abort_reason() const { return ""; }
  // Records this rank's activity until it has connected ("opening transport ucx"), to be reported if it dies there.
  virtual void doing(const std::string& /*what*/) {}
  // Records that the calling thread has waited long for these ranks (none = the wait has ended), to be reported if the
  // job makes no progress.
  virtual void waits_for(const std::vector<int>& /*ranks*/) {}
  // Reports the error and ends the process, because a plugin's function does not return and this rank therefore cannot
  // throw. Called by another thread.
  [[noreturn]] virtual void fatal(const Error& error);
};

struct WorldOptions : RankPlace {
  std::string transport = "auto";  // "auto", a plugin's name, or two: INSIDE+BETWEEN hosts
  std::string transport_options;   // "key=value,..."; NAME.key=value applies to the plugin NAME only
  std::vector<std::string> plugin_dirs;
  std::string network_interface;
  std::string network_address;  // the interface's address at which other hosts reach this one; "" = any
  bool encrypt = false;         // encrypt traffic between hosts
  int64_t arena_bytes = 0;      // largest arena of a rank; shared memory maps it for each rank; 0 = unknown
  std::string algorithm;        // comm.algorithm: a name in algorithm.cc; "" = chosen by size and ranks
  std::string algorithm_costs;  // measured on this host (algorithm_costs.h), for groups inside it; "" = fixed limits
  prun_mem_kind memory = PRUN_MEM_HOST;      // memory that the ranks compute on; `auto` prefers a transport for it
  int device = -1;                           // index among the host's devices
  double deadline_s = 60;                    // limit in seconds of a collective without progress, and of connecting
  std::string host;                          // "" = measured (host_map.h); tests name hosts to simulate several
  void (*adapt)(prun_transport&) = nullptr;  // lets tests insert themselves between the core and the plugin
};

// The execution of a call, for `prun bench`.
struct CollPath {
  std::string algorithm;  // "native" = the plugin's own; otherwise the core's, by name; "" = unknown
  std::string why;        // "the plugin leaves it to the core; more than 64 KiB"
};

// A group of ranks. `lane` distinguishes communicators of the same ranks. One thread at a time uses it; different
// communicators may run concurrently. Calls throw Error: mismatch (names both calls and the rank), transport (names the
// lost or late rank), hang (no progress within the deadline); or Aborted.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int index() const = 0;  // index of this rank in the group
  virtual int size() const = 0;
  virtual PreparedCall prepare(const CollCall& call) const = 0;
  // Blocks until the collective is complete on this rank; with a queue, until it is enqueued (World::check reports
  // later failures).
  virtual void run(const PreparedCall& call) = 0;
  void run(const CollCall& call) { run(prepare(call)); }
  // Exchanges messages inside the group, blocking; peers are indices of the group, -1 = no message on that side.
  virtual void send_recv(int to, const void* send, int64_t send_bytes, int from, void* recv, int64_t recv_bytes) = 0;
  // Throws the transport's error of calls in replayed graphs, because these start without run(). Returns the rank that
  // the transport seems to wait for, or -1; `waited_s` is the time since the device completed any work. Called by the
  // thread that made the communicator.
  virtual int check(double /*waited_s*/) { return -1; }
  // Returns whether a call on part of the elements gives them bitwise identical results to the whole call; the same on
  // every member. The order of a sum may depend on a call's size, or on an element's offset in it.
  virtual bool divides(const CollCall& /*whole*/, const CollCall& /*part*/) const { return false; }
  // Returns how a call like this one runs; it must be like the last run, because only a run shows whether the plugin
  // takes it.
  virtual CollPath path_of(const CollCall& /*call*/) const { return {}; }
  virtual int64_t bytes_sent() const = 0;  // sent by this rank to others, headers not counted
};

// Performs one-sided transfers between this rank and another, in order. `put` in one direction, and `offer` and
// `arrive` in the other, may run concurrently, on one thread each. All block, and throw as Communicator::run does.
class PutChannel {
 public:
  virtual ~PutChannel() = default;
  virtual void offer() = 0;  // allows the peer's next put to overwrite its destination
  // Waits for the peer's offer, then writes `bytes` at `offset` of its window, the first memory of World::allocate.
  virtual void put(const void* src, int64_t bytes, int64_t offset) = 0;
  virtual void arrive(int64_t bytes) = 0;  // waits until the put of the oldest offer has arrived
  virtual int64_t bytes_sent() const = 0;
};

// A rank's connection to the others. One thread opens it, allocates from it, connects and destroys it.
class World {
 public:
  // Loads and opens the transports; then allocate memory, then connect. `bootstrap` must outlive the world. Throws
  // Error: usage (options, names), transport, join.
  static std::unique_ptr<World> open(const WorldOptions& options, Bootstrap& bootstrap);
  virtual ~World() = default;
  // Returns zeroed memory for an arena: the transport's own if it provides some, so that peers read it directly;
  // otherwise anonymous pages. Freed with the world.
  virtual void* allocate(int64_t bytes) = 0;
  // Returns whether this world runs on a device's memory in stream order (CollCall::queue).
  virtual bool enqueues(prun_mem_kind /*kind*/) const { return false; }
  // Returns device memory of the transport, or null. Call before connect.
  virtual void* allocate_device(int64_t /*bytes*/, prun_mem_kind /*kind*/) { return nullptr; }
  // Registers device memory that is not the transport's own. Call before connect.
  virtual void adopt_device(void* /*ptr*/, int64_t /*bytes*/, prun_mem_kind /*kind*/) {}
  // Throws Error(join) naming ranks that differ, Error(transport) naming the rank missing at the deadline, or Aborted.
  virtual void connect() = 0;
  // Returns the communicator of these global ranks (this rank among them) on this lane, owned by the world. The first
  // use makes it, and the members then agree on a tag of the transport. So one thread makes all communicators, and all
  // ranks make them in one global order (for example sorted), otherwise they wait for each other.
  virtual Communicator& communicator(const std::vector<int>& ranks, int lane) = 0;
  // Returns the channel to one peer on a lane (0 .. 126), owned by the world. Null: the transport has no one-sided
  // calls.
  virtual PutChannel* put_channel(int peer, int lane) = 0;
  // Throws failures of enqueued calls (CollCall::queue) since the last check. A thread that waits for the device may
  // call it at any rate: it polls the transport at most ten times per second. Returns a rank that the device seems to
  // wait for, or -1. Called by the thread that makes communicators.
  virtual int check(double /*waited_s*/) { return -1; }
  // Returns whether the transport to the peer injects faults for tests (prun/chaos.h).
  virtual bool can_disturb(int /*peer*/) const { return false; }
  // Injects one; false: there is no connection to the peer. Any thread.
  virtual bool disturb(int /*fault*/, int /*peer*/, uint64_t /*seed*/) { return false; }
  virtual void abort() = 0;                        // any thread; everything in flight soon throws
  virtual std::string transport_name() const = 0;  // "shm"; "shm+socket" = inside hosts and between them
  virtual bool several_hosts() const { return false; }
  // Returns whether measured costs choose among the core's algorithms (WorldOptions::algorithm_costs).
  virtual bool calibrated() const { return false; }
};

// A plugin found in the plugin directories.
struct PluginInfo {
  std::string name, path, version, summary, error;  // error: why it cannot be loaded; then name is the file's
  std::vector<std::string> capabilities;  // "collectives", "memory", "host", "cuda", "one-sided", "local only"
};
std::vector<PluginInfo> list_plugins(const std::vector<std::string>& dirs);
// Returns the directories in search order: PRUN_PLUGIN_PATH, then <prefix>/lib/prun/plugins of the program.
std::vector<std::string> plugin_directories(const std::string& program_path);

}  // namespace prun
