// The failure that ended a job, and the five lines that report it: problem; rank, host and pid; op; evidence; next
// command.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace prun {

// Explanatory weight of a failure for the end of the job, in ascending order; blame.h has the rules.
enum class Weight : int {
  bystander,    // its wait ended because another rank aborted
  silent_exit,  // it exited and gave no reason
  symptom,      // it lost a peer, or has an error that mostly follows from a lost peer
  waited,       // no progress within the deadline
  observed,     // it detected the error itself
  killed,       // killed by a signal, or ended by the user
};

struct Failure {
  int code = 0;  // exit code of the job; 128 + n for a signal to the launcher
  Weight weight = Weight::observed;
  int peer = -1;                              // the rank that it has lost
  std::string what, who, op, evidence, next;  // one line each; empty ones are omitted
  int rank = -1, node = -1, pid = 0;          // `who` for programs; -1: no rank
  std::string host;
  int64_t step = -1;  // step in which a number was not finite, counted from 0; -1: none

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(code, weight, rank, peer, step, what, who, op, evidence, next, node, pid, host);
  }
};

// A rank and its location, as messages name them.
struct RankName {
  int rank = 0, node = 0, nnodes = 1, pid = 0;
  std::string host;

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(rank, node, nnodes, pid, host);
  }
};

// The end of a process, from waitid.
struct RankEnd {
  bool killed = false;  // by a signal; false: it exited
  int status = 0;       // signal number or exit status
  bool core_dumped = false;
  bool out_of_memory = false;  // the kernel killed a process of this job for memory
  double after_s = 0;          // seconds since the start
};

// The command line after "prun" that runs the job again, and the one after "prun check" that checks its plan: the same
// without options that only a run has.
struct JobCommand {
  JobCommand() = default;
  JobCommand(std::string both) : run(both), check(std::move(both)) {}  // NOLINT: a command without such options
  JobCommand(const char* both) : JobCommand(std::string(both)) {}      // NOLINT
  JobCommand(std::string run_, std::string check_) : run(std::move(run_)), check(std::move(check_)) {}
  std::string run, check;
};

// Sets `who` and the fields about the rank.
void set_who(Failure& failure, const RankName& name);
// Return the failure of a rank that ended or reported an error. `op`: from LaunchObserver::where.
Failure rank_ended(const RankName& name, const RankEnd& end, std::string op, const JobCommand& command);
Failure rank_failed(const RankName& name, int code, std::string what, std::string op, const JobCommand& command);
// Returns the failure of a rank whose wait ended because another rank aborted, which has not reported itself.
Failure rank_aborted(const RankName& name, std::string op, const JobCommand& command);
// Returns a failure without a rank: of a node, the launcher or the user.
Failure job_failed(int code, std::string what, std::string evidence, const JobCommand& command);

// Returns whether the same job may succeed if begun again: true for a lost process, host, link or memory. A wrong plan,
// number or checkpoint remains wrong, and a signal is the user's request.
bool may_pass(int code);
// Returns the command that helps after this exit code; "": none.
std::string next_command(int code, const JobCommand& command);
std::string who(const RankName& name);  // "rank 3 on host-a (node 1), pid 77"

std::string render(const Failure& failure);  // at most five lines, each ends with a newline

std::string signal_name(int number);  // "SIGSEGV"

}  // namespace prun
