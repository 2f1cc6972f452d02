// Local ranks as processes: fork, watch by pidfd, kill with all that they started.
//
// A rank whose launcher is gone ends by whichever comes first: the end of the lifeline pipe, for which the kernel kills
// the rank's process group, the parent-death signal, or the end of its control socket.
#pragma once
#include <sys/types.h>

#include <csignal>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launch/control.h"
#include "launch/launch.h"
#include "launch/launcher_client.h"

namespace prun {

struct RankProcess {
  int rank = 0;
  pid_t pid = 0;
  Fd pidfd;
  Channel control;
  Fd output[2];  // of its standard output and error; closed: they are the launcher's
  void* recorder = nullptr;
  bool running = true;
};

// 'R', 'S', 'D', 'T' (stopped) ... as in ps; 'X': there is no such process.
char process_state(pid_t pid);

// How an ended process ended.
struct ExitStatus {
  bool killed = false;
  int status = 0;  // a signal's number, or an exit status
  bool core_dumped = false;
};

// The processes of this node; the destructor kills and reaps those that run.
class RankProcesses {
 public:
  // `closed_in_ranks`: descriptors of the launcher that no rank may keep. `signals`: the mask that ranks run with.
  // `capture_output`: RankProcess::output has what ranks write.
  RankProcesses(int local_ranks, size_t recorder_bytes, std::vector<int> closed_in_ranks, const sigset_t& signals,
                bool capture_output);
  ~RankProcesses();

  // Forks one rank. `start` lacks recorder and launcher, which are filled in. Throws Error where the
  // machine cannot start it.
  void fork_rank(RankStart start, const std::function<int(const RankStart&)>& rank_main);

  std::vector<RankProcess>& all() { return ranks_; }
  int running() const;
  std::vector<int> awaited_by(const RankProcess& rank);  // LauncherClient::waits_for of all its threads
  std::optional<ExitStatus> reap(RankProcess& rank);     // nothing when it still runs; never blocks
  void set_aborted();                                    // LauncherClient::aborted, and the end of every all_gather
  int64_t ask_to_stop();  // ranks wait before their next step; returns the last one that has been begun here
  int64_t kept();         // what all ranks here have (LauncherClient::kept)
  void set_committed(int64_t step);
  void add_abandoned(int64_t step);
  void set_steps(int64_t steps);  // how many the job does in all, after ask_to_stop
  void kill_running() { signal_all(SIGKILL); }
  void signal_all(int number);  // to each rank's process group
  // Kills and reaps processes that ranks left behind; they became children of this process, a subreaper.
  void kill_orphans();

 private:
  [[noreturn]] void run_rank(RankStart start, const std::function<int(const RankStart&)>& rank_main, Fd control,
                             Fd (&output)[2], pid_t launcher);
  JobPage* page() const { return reinterpret_cast<JobPage*>(page_.base()); }

  int local_ranks_;
  std::vector<int> closed_in_ranks_;
  sigset_t signals_;
  bool capture_output_;
  size_t abandoned_ = 0;  // steps told so far
  sdk::Mapping page_;     // shared with the ranks, as the recorders are
  std::vector<sdk::Mapping> recorders_;
  Fd lifeline_read_, lifeline_write_;
  std::vector<RankProcess> ranks_;
  std::vector<pid_t> children_before_;
  int subreaper_before_ = 0;
};

}  // namespace prun
