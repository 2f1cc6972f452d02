// Local ranks as processes: fork, watch by pidfd, kill with all their descendants.
//
// A rank whose launcher is gone is ended by the first of: end of file on the lifeline pipe, upon which the kernel kills
// the rank's process group; the parent-death signal; the end of its control socket.
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
  Fd pidfd;  // closed if the container refuses pidfd_open
  Channel control;
  Fd output[2];  // pipes of its standard output and error; closed: it inherits the launcher's
  void* recorder = nullptr;
  bool running = true;
};

// Returns 'R', 'S', 'D', 'T' (stopped) ... as in ps; 'X': there is no such process.
char process_state(pid_t pid);

// The end of a process.
struct ExitStatus {
  bool killed = false;
  int status = 0;  // signal number or exit status
  bool core_dumped = false;
};

// The processes of this node; the destructor kills and reaps the running ones.
class RankProcesses {
 public:
  // `closed_in_ranks`: the launcher's descriptors, which ranks close. `signals`: the signal mask of ranks.
  // `capture_output`: pipes ranks' output to RankProcess::output.
  RankProcesses(int local_ranks, size_t recorder_bytes, std::vector<int> closed_in_ranks, const sigset_t& signals,
                bool capture_output);
  ~RankProcesses();

  // Forks one rank. Fills in `start`'s recorder and launcher. Throws Error if the machine cannot start it.
  void fork_rank(RankStart start, const std::function<int(const RankStart&)>& rank_main);

  std::vector<RankProcess>& all() { return ranks_; }
  int running() const;
  std::vector<int> awaited_by(const RankProcess& rank);  // LauncherClient::waits_for of all its threads
  std::optional<ExitStatus> reap(RankProcess& rank);     // nullopt while it runs; never blocks
  void set_aborted();                                    // sets LauncherClient::aborted and ends every all_gather
  int64_t ask_to_stop();  // ranks block before their next step; returns the last step begun here
  int64_t kept();         // newest commit that all ranks here hold (LauncherClient::kept)
  void set_committed(int64_t step);
  void add_abandoned(int64_t step);
  void set_steps(int64_t steps);  // number of steps in the job, after ask_to_stop
  void kill_running() { signal_all(SIGKILL); }
  void signal_all(int number);  // sends the signal to each rank's process group
  // Kills and reaps processes that ranks left behind; this process is a subreaper, so they became its children.
  void kill_orphans();

 private:
  [[noreturn]] void run_rank(RankStart start, const std::function<int(const RankStart&)>& rank_main, Fd control,
                             Fd (&output)[2], pid_t launcher);
  JobPage* page() const { return reinterpret_cast<JobPage*>(page_.base()); }

  int local_ranks_;
  std::vector<int> closed_in_ranks_;
  sigset_t signals_;
  bool capture_output_;
  size_t abandoned_ = 0;  // number of calls of add_abandoned
  sdk::Mapping page_;     // shared with the ranks, like the recorders
  std::vector<sdk::Mapping> recorders_;
  Fd lifeline_read_, lifeline_write_;
  std::vector<RankProcess> ranks_;
  std::vector<pid_t> children_before_;
  int subreaper_before_ = 0;
};

}  // namespace prun
