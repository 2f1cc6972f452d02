// The failure that ended a job, and its five lines: what happened; which rank, host, pid; the op; the evidence; the
// next command to type.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"

namespace prun {

// What a failure is worth as an explanation of why the job ended, least first; blame.h has the rules.
enum class Weight : int {
  bystander,    // its wait ended because another rank aborted
  silent_exit,  // it exited and gave no reason
  symptom,      // it lost a peer, or has what mostly comes from one
  waited,       // nothing has moved for the deadline
  observed,     // it has seen for itself what is wrong
  killed,       // by a signal; or the user ended the job
};

struct Failure {
  int code = 0;  // of the job; 128 + n for a signal to the launcher
  Weight weight = Weight::observed;
  int peer = -1;                              // the rank that it has lost
  std::string what, who, op, evidence, next;  // one line each; empty ones are left out
  int rank = -1, node = -1, pid = 0;          // `who`, for programs; -1: no rank is meant
  std::string host;
  int64_t step = -1;  // from 0: in which a number was not finite

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(code, weight, rank, peer, step, what, who, op, evidence, next, node, pid, host);
  }
};

// A rank and where it runs, as messages name it.
struct RankName {
  int rank = 0, node = 0, nnodes = 1, pid = 0;
  std::string host;

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(rank, node, nnodes, pid, host);
  }
};

// How a process ended, from waitid.
struct RankEnd {
  bool killed = false;  // by a signal; else it exited
  int status = 0;       // the signal's number, or the exit status
  bool core_dumped = false;
  bool out_of_memory = false;  // the kernel killed a process of this job for memory
  double after_s = 0;          // since the start
};

// Fills in who it is.
void set_who(Failure& failure, const RankName& name);
// `op` is LaunchObserver::where; `command` is what the user typed after "prun".
Failure rank_ended(const RankName& name, const RankEnd& end, std::string op, std::string_view command);
Failure rank_failed(const RankName& name, int code, std::string what, std::string op, std::string_view command);
// Its wait ended because another rank aborted, which has said nothing itself.
Failure rank_aborted(const RankName& name, std::string op, std::string_view command);
// Without a rank: a node, the launcher, the user.
Failure job_failed(int code, std::string what, std::string evidence, std::string_view command);

// Whether the same job, begun again, may do better: a process, a host, a link or memory was lost. A plan, a number or a
// checkpoint that is wrong stays wrong, and a signal is the user's wish.
bool may_pass(int code);
// Which command helps with a job that ended with this code; "": none.
std::string next_command(int code, std::string_view command);
std::string who(const RankName& name);  // "rank 3 on host-a (node 1), pid 77"

std::string render(const Failure& failure);  // at most five lines, each ends with a newline

std::string signal_name(int number);  // "SIGSEGV"

}  // namespace prun
