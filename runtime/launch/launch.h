// Starts the ranks of a job, watches them, ends them; joins several nodes into one job.
//
// Surprising fact: a local rank is a fork of the launcher, not an exec. Program and recorder are mapped already, and
// eight ranks are up in milliseconds; but the launcher must be single-threaded until then.
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

// The launcher as a rank calls it. all_gather passes through the launchers of all nodes.
class LauncherClient {
 public:
  virtual ~LauncherClient() = default;
  virtual std::vector<std::string> all_gather(const std::string& blob) = 0;  // by rank; throws Error(join)
  // Before each step: tells which one begins, and returns how many steps the job does in all, no limit unless it was
  // asked to stop early (LaunchOptions::grace_s). Then every rank gets the same number, at least step + 1, and waits
  // for it.
  virtual int64_t begin_step(int64_t step) = 0;
  // A commit of which each rank keeps its own part: this rank's, after `step` steps, is safe; and the newest of which
  // every rank's is, 0 for none. Any thread.
  virtual void kept(int64_t /*step*/) {}
  virtual int64_t committed() const { return 0; }
  // The checkpoint after `step` steps cannot be made here, for reasons in `words` (LaunchObserver::abandoned), so that
  // no rank shall make it; and whether any rank has said so. Any thread.
  virtual void abandon(int64_t /*step*/, const std::string& /*words*/) {}
  virtual bool abandoned(int64_t /*step*/) const { return false; }
  virtual bool aborted() const = 0;                                     // any thread: the job is ending
  virtual void fail(const Error& error, const std::string& where) = 0;  // this rank is the cause; `where` names the op.
                                                                        // The first call counts
  virtual void end_with_others() = 0;  // this rank ends because another one has aborted: not the cause
  // Which ranks the calling thread waits for; none: it goes on. For the launcher, when nothing moves any more.
  virtual void waits_for(const std::vector<int>& ranks) = 0;
  virtual void print(const std::string& line) = 0;  // a line for the user, whole and in order per rank
};

struct RankStart : RankPlace {
  int host_rank = 0;     // as local_rank, where several launchers share the host
  std::string_view job;  // serialized program, the same bytes on all ranks (hash checked by the caller)
  std::string job_hash;
  int node = 0;
  std::string note;          // as given to Launch::run on node 0
  void* recorder = nullptr;  // mapped, shared with the launcher, zeroed; recorder_bytes long
  LauncherClient* launcher = nullptr;
};

// What a node was told about the job, as node 0 compares it.
struct NodeSetting {
  std::string name;      // "--device"
  std::string text;      // for people; empty: it was not given
  std::string compared;  // must be the same on all nodes

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(name, text, compared);
  }
};

// "" where two nodes' settings are the same, else what differs; `who` names the node that has `theirs`.
std::string difference(const std::vector<NodeSetting>& ours, const std::vector<NodeSetting>& theirs,
                       const std::string& who);

struct LaunchOptions {
  int nproc = 1;
  int nnodes = 1, node_rank = 0;
  std::string rendezvous;   // "host:port", or "unix:name" on one host; needed when nnodes > 1
  std::string secret;       // for other hosts than loopback
  bool encrypt = false;     // what goes between nodes, but over Unix sockets
  std::string secret_file;  // the caller reads `secret` from it
  std::vector<NodeSetting> settings;
  std::string inventory;  // what this node brings along, for node 0 (Launch::inventories)
  // Node 0: why a node that brings this along cannot take part, to follow its name; "": it can. Empty: all can.
  std::function<std::string(const std::string& inventory)> lacks;
  // Among the ranks of this host, where each node is one process of a foreign launcher; host_ranks 0: this node is all.
  int host_first_rank = 0, host_ranks = 0;
  // This node stays silent about what node 0 says on a screen that both share.
  bool silent = false;
  double join_timeout_s = 60;  // of a node, and of the last rank in an all_gather
  int link_timeout_s = 5;      // a lost host ends the job within it; outages of half of it or more are survived
  double join_report_s = 5;    // between two reports of who is missing
  // Seconds that ranks may continue after SIGTERM or SIGINT. They end after a step that all have begun, with
  // Exit::preempted. 0 = the signal ends the job at once.
  double grace_s = 0;
  // Node 0: after a failure that may pass (failure.h) the caller begins again, so the other nodes are told to join
  // again.
  bool begins_again = false;
  bool rolls_back = false;  // node 0: it also begins again where a number was not finite
  // Node 0: with so many ranks it goes on without nodes that have not joined within `patience_s`; 0: it needs all.
  int min_ranks = 0;
  double patience_s = 60;
  // Node 0: ranks commit when they are stopped early, so a node that comes back is taken in after so many seconds;
  // negative: the next failure lets it in.
  double takes_nodes_after_s = -1;
  size_t recorder_bytes = 0;
  std::string command;  // as typed after "prun"; failures advise a next command with it
  // Ranks' standard output and error come through their launcher (LaunchObserver::output); else they are the
  // launcher's own.
  bool capture_output = false;
  bool mirror_all = false;  // node 0: the others shall mirror all that they know, for a trace
};

// Told of the running job, in the launcher's single thread.
struct LaunchObserver {
  virtual ~LaunchObserver() = default;
  virtual void job_received(std::string_view /*job*/) {}  // on nodes other than 0, before `started`; for `where`
  virtual void placed(const Topology& /*topology*/, bool /*mirror_all*/) {}  // before `started`
  virtual void started(const std::vector<int>& ranks, const std::vector<int>& pids,
                       const std::vector<void*>& recorders) = 0;
  virtual void stopping(int /*signal*/) {}  // a signal asks the job of all nodes for an early end
  // All local ranks have ended with this code of the job; the recorders are unmapped after it.
  virtual void ended(int /*exit_code*/, bool /*begins_again*/) {}
  virtual void tick() = 0;                                   // about every 50 ms
  virtual void line(int rank, const std::string& text) = 0;  // LauncherClient::print; on node 0, of all nodes' ranks
  // What the rank was doing, from its recorder: for the message when it died or failed.
  virtual std::string where(int rank) = 0;
  // On nodes other than 0, about every 50 ms: what node 0 shall know of local ranks, by rank; `last`: the job has
  // ended.
  virtual std::vector<std::pair<int, std::string>> mirror(bool /*last*/) { return {}; }
  virtual void mirrored(int /*rank*/, std::string_view /*bytes*/) {}  // on node 0
  // On node 0: the first rank that has abandoned the checkpoint after `step` steps, with its words.
  virtual void abandoned(int /*rank*/, int64_t /*step*/, std::string_view /*words*/) {}
  // A rank wrote to its standard output or error; on node 0 also what ranks of other nodes wrote, with `here` false.
  virtual void output(int /*rank*/, bool /*error*/, std::string_view /*text*/, bool /*here*/) {}
  // Asked on node 0 after each tick: a rank that holds the others up for longer than the job waits.
  virtual std::optional<Failure> hung() { return std::nullopt; }
  virtual void ending() {}                            // the end is decided, and no rank knows yet
  virtual void failed(const Failure& /*failure*/) {}  // what ended the job, before its message
  // The launcher's messages to the user, whole lines: who has not joined yet, the failure. Default: to stderr.
  virtual void message(const std::string& text);
};

// Throws usage_error for options that do not go together, in the command line's words.
void check_options(const LaunchOptions& options);

// This node's launcher, in three steps: the nodes join, node 0 gives the job, the ranks run.
class Launch {
 public:
  using RankMain = std::function<int(const RankStart&)>;  // the exit code of the rank's process

  // Node 0 waits for the other nodes, which join it. Throws Error: usage, transport, join (rendezvous.h), or
  // out_of_memory where this machine cannot hold the ranks. `options` and `observer` outlive this.
  Launch(const LaunchOptions& options, LaunchObserver& observer);
  ~Launch();
  bool gives_job() const;                               // node 0
  int ranks() const;                                    // node 0: of all nodes that have joined
  const std::vector<std::string>& inventories() const;  // node 0: by node, "" of one that has stayed away
  void use_ranks(int most);         // node 0: leaves those beyond `most` unused, the last ones first
  void refuse(const Error& error);  // node 0: tells the nodes that wait for the job why there is none
  // `job` and `note` are node 0's; the other nodes get them from there. `rank_main` runs in each rank's process.
  // Returns the exit code of the job, after every local process has ended; the message of a failure is printed.
  int run(const std::string& job, const RankMain& rank_main, const std::string& note = "");
  bool begins_again() const { return begins_again_; }  // after run: this node is to join once more

 private:
  struct Nodes;
  int end_without_job(const std::string& error, int code, bool over);
  const LaunchOptions& options_;
  LaunchObserver& observer_;
  std::unique_ptr<Nodes> nodes_;
  bool begins_again_ = false;
};

}  // namespace prun
