// The failure that ended a job, and its five lines: what happened; which rank, host, pid; the op; the evidence; the
// next command to type.
#pragma once
#include <string>
#include <string_view>

#include "base/error.h"

namespace prun {

struct Failure {
  int code = 0;          // of the job; 128 + n for a signal to the launcher
  bool symptom = false;  // likely the effect of another rank's end: the head waits a moment for the cause
  std::string what, who, op, evidence, next;  // one line each; empty ones are left out
  int rank = -1, node = -1, pid = 0;          // `who`, for programs; -1: no rank is meant
  std::string host;

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(code, symptom, what, who, op, evidence, next, rank, node, pid, host);
  }
};

// A rank and where it runs, as messages name it.
struct RankName {
  int rank = 0, node = 0, nnodes = 1, pid = 0;
  std::string host;
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
// Without a rank: a node, the launcher, the user.
Failure job_failed(int code, std::string what, std::string evidence, std::string_view command);

// Whether the same job, begun again, may do better: a process, a host, a link or memory was lost. A plan, a number or a
// checkpoint that is wrong stays wrong, and a signal is the user's wish.
bool may_pass(int code);

std::string render(const Failure& failure);  // at most five lines, each ends with a newline

std::string signal_name(int number);  // "SIGSEGV"

}  // namespace prun
