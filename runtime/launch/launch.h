// Starts, watches and ends the ranks of a job; joins several nodes into one job.
//
// A local rank is a fork of the launcher without an exec: program and recorder are already mapped, so eight ranks start
// in milliseconds. Therefore the launcher must be single-threaded until the fork.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/rank_place.h"
#include "launch/failure.h"
#include "launch/topology.h"

namespace prun {

// A rank's interface to the launcher. all_gather passes through the launchers of all nodes.
class LauncherClient {
 public:
  virtual ~LauncherClient() = default;
  virtual std::vector<std::string> all_gather(const std::string& blob) = 0;  // by rank; throws Error(join)
  // Call before each step. Reports the step that begins and returns the number of steps in the job: no limit unless an
  // early end was requested (LaunchOptions::grace_s). In that case it blocks until all ranks have the same number, at
  // least step + 1.
  virtual int64_t begin_step(int64_t step) = 0;
  // Commits of which each rank keeps its own part. `kept` reports that this rank's part after `step` steps is safe;
  // `committed` returns the newest commit that is safe on every rank, 0 = none. Any thread.
  virtual void kept(int64_t /*step*/) {}
  virtual int64_t committed() const { return 0; }
  // `abandon` reports that the checkpoint after `step` steps failed here, for the reasons in `words`
  // (LaunchObserver::abandoned), so that all ranks drop it; `abandoned` returns whether any rank has done so. Any
  // thread.
  virtual void abandon(int64_t /*step*/, const std::string& /*words*/) {}
  virtual bool abandoned(int64_t /*step*/) const { return false; }
  virtual bool aborted() const = 0;  // any thread: the job is ending
  // Reports this rank as the cause; `where` names the op. Only the first call counts.
  virtual void fail(const Error& error, const std::string& where) = 0;
  virtual void end_with_others() = 0;  // this rank ends because another one has aborted: it is not the cause
  // Stores the ranks that the calling thread waits for; empty: it makes progress. The launcher reads it when progress
  // stops.
  virtual void waits_for(const std::vector<int>& ranks) = 0;
  // Prints a line for the user; lines of a rank remain whole and in order.
  virtual void print(const std::string& line) = 0;
};

struct RankStart : RankPlace {
  int host_rank = 0;     // local_rank across the launchers on this host
  std::string_view job;  // serialized program, the same bytes on all ranks (the caller checks the hash)
  std::string job_hash;
  int node = 0;
  std::string note;          // as passed to Launch::run on node 0
  void* recorder = nullptr;  // mapped, shared with the launcher, zeroed; recorder_bytes long
  LauncherClient* launcher = nullptr;
};

// An option of a node, for comparison with node 0's.
struct NodeSetting {
  std::string name;      // "--device"
  std::string text;      // for messages; empty: not given
  std::string compared;  // must be the same on all nodes

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(name, text, compared);
  }
};

// Returns "" if two nodes' settings are equal, otherwise the difference; `who` names the node that has `theirs`.
std::string difference(const std::vector<NodeSetting>& ours, const std::vector<NodeSetting>& theirs,
                       const std::string& who);

struct LaunchOptions {
  int nproc = 1;
  int nnodes = 1, node_rank = 0;
  std::string rendezvous;   // "host:port", or "unix:name" on one host; required if nnodes > 1
  std::string secret;       // required for hosts other than loopback
  bool encrypt = false;     // encrypts traffic between nodes, except over Unix sockets
  std::string secret_file;  // the file from which the caller reads `secret`
  std::vector<NodeSetting> settings;
  std::string inventory;  // this node's resources, for node 0 (Launch::inventories)
  // Node 0: returns why a node with this inventory cannot take part, to be appended to its name; "": it can. Null: all
  // can.
  std::function<std::string(const std::string& inventory)> lacks;
  // Place among the ranks of this host, if each node is one process of a foreign launcher; host_ranks 0: this node has
  // all of them.
  int host_first_rank = 0, host_ranks = 0;
  // The variables that make this process a node although no launcher has set them, for hints: {"RANK", "WORLD_SIZE"}.
  std::vector<std::string> stray_variables;
  // Suppresses messages that node 0 prints on a screen that both share.
  bool silent = false;
  double join_timeout_s = 60;  // limit for a node to join, and for the last rank in an all_gather
  int link_timeout_s = 5;      // a lost host ends the job within this time; outages of at least half of it are survived
  double join_report_s = 5;    // between two reports of missing nodes or ranks
  // Seconds that ranks may continue after SIGTERM or SIGINT. They end after a step that all have begun, with
  // Exit::preempted. 0 = the signal ends the job at once.
  double grace_s = 0;
  // Node 0: the caller begins again after a failure that may pass (failure.h), so the other nodes are asked to join
  // again.
  bool begins_again = false;
  bool rolls_back = false;  // node 0: also begins again after a number that is not finite
  // Node 0: the number of ranks with which it runs without nodes that have not joined within `patience_s`; 0: needs all
  // nodes.
  int min_ranks = 0;
  double patience_s = 60;
  // Node 0: seconds after which a returning node is admitted, if ranks commit when they are stopped early; negative:
  // only the next failure admits it.
  double takes_nodes_after_s = -1;
  size_t recorder_bytes = 0;
  JobCommand command;  // from which failures derive the next command
  // Ranks' standard output and error go through their launcher (LaunchObserver::output); false: they inherit the
  // launcher's.
  bool capture_output = false;
  bool mirror_all = false;  // node 0: the other nodes mirror all data that they have, for a trace
};

// Callbacks about the running job, in the launcher's single thread.
struct LaunchObserver {
  virtual ~LaunchObserver() = default;
  virtual void job_received(std::string_view /*job*/) {}  // on nodes other than 0, before `started`; for `where`
  virtual void placed(const Topology& /*topology*/, bool /*mirror_all*/) {}  // before `started`
  virtual void started(const std::vector<int>& ranks, const std::vector<int>& pids,
                       const std::vector<void*>& recorders) = 0;
  virtual void stopping(int /*signal*/) {}  // a signal requests an early end of the job on all nodes
  // All local ranks have ended; the recorders are unmapped afterwards.
  virtual void ended(int /*exit_code*/, bool /*begins_again*/) {}
  virtual void tick() = 0;                                   // about every 50 ms
  virtual void line(int rank, const std::string& text) = 0;  // LauncherClient::print; on node 0, of all nodes' ranks
  // Returns the rank's current op from its recorder, for the message of its death or failure.
  virtual std::string where(int rank) = 0;
  // Called on nodes other than 0, about every 50 ms. Returns the bytes for node 0 about local ranks, by rank; `last`:
  // the job has ended.
  virtual std::vector<std::pair<int, std::string>> mirror(bool /*last*/) { return {}; }
  virtual void mirrored(int /*rank*/, std::string_view /*bytes*/) {}  // on node 0
  // Receives, on node 0, the first rank that has abandoned the checkpoint after `step` steps, with its text.
  virtual void abandoned(int /*rank*/, int64_t /*step*/, std::string_view /*words*/) {}
  // A rank wrote to its standard output or error; node 0 also gets the output of other nodes' ranks, with `here` false.
  virtual void output(int /*rank*/, bool /*error*/, std::string_view /*text*/, bool /*here*/) {}
  // Called on node 0 after each tick. Returns a rank that has held up the others longer than the timeout.
  virtual std::optional<Failure> hung() { return std::nullopt; }
  virtual void ending() {}                            // the end is decided; ranks are not notified yet
  virtual void failed(const Failure& /*failure*/) {}  // the failure that ended the job, before its message
  // The launcher's messages to the user, whole lines: missing nodes, the failure. Default: writes them to stderr.
  virtual void message(const std::string& text);
};

// Throws usage_error for options that do not go together, in terms of the command line.
void check_options(const LaunchOptions& options);

// This node's launcher:
//
//     Launch()   the nodes join node 0                 rendezvous.h
//     run()      node 0 sends the job to all nodes     JobOffer
//                the ranks run until a verdict         supervisor.h, coordination.h
class Launch {
 public:
  using RankMain = std::function<int(const RankStart&)>;  // returns the exit code of the rank's process

  // Joins the nodes: node 0 waits for the others. Throws Error: usage, transport, join (rendezvous.h), or out_of_memory
  // if this machine cannot hold the ranks. `options` and `observer` outlive this.
  Launch(const LaunchOptions& options, LaunchObserver& observer);
  ~Launch();
  bool gives_job() const;                               // node 0
  int ranks() const;                                    // node 0: of all nodes that have joined
  const std::vector<std::string>& inventories() const;  // node 0: by node, "" for a missing node
  void use_ranks(int most);                             // node 0: limits the job to the first `most` ranks
  void refuse(const Error& error);                      // node 0: reports to the waiting nodes why there is no job
  // `job` and `note` are node 0's; it sends them to the other nodes. `rank_main` runs in each rank's process. Returns
  // the exit code of the job after every local process has ended and the message of a failure is printed.
  int run(const std::string& job, const RankMain& rank_main, const std::string& note = "");
  bool begins_again() const { return begins_again_; }  // after run: this node has to join again

 private:
  struct Nodes;
  int end_without_job(const std::string& error, int code, bool over);
  const LaunchOptions& options_;
  LaunchObserver& observer_;
  std::unique_ptr<Nodes> nodes_;
  bool begins_again_ = false;
};

}  // namespace prun
