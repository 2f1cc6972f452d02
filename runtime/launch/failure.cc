// The texts of failures, and the next command for each exit code.
#include "launch/failure.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <iterator>

#include "base/text.h"

namespace prun {
namespace {

// The end of a peer appears as a broken connection or a failed join on every other rank.
Weight weight_of(int code) {
  switch (static_cast<Exit>(code)) {
    case Exit::join:
    case Exit::transport:
      return Weight::symptom;
    case Exit::hang:
      return Weight::waited;
    default:
      return Weight::observed;
  }
}

// `prun bench` runs no plan, so its errors come from the transport.
bool is_bench(const JobCommand& command) { return command.run.starts_with("bench "); }

std::string run_command(const JobCommand& command) {
  return fmt::format("prun {}", command.run.empty() ? "PLAN" : command.run);
}

std::string check_command(const JobCommand& command) {
  if (is_bench(command)) return "prun conform TRANSPORT   # what it gets wrong";
  return fmt::format("prun check {}", command.check.empty() ? "PLAN" : command.check);
}

}  // namespace

std::string next_command(int code, const JobCommand& command) {
  switch (static_cast<Exit>(code)) {
    case Exit::plan:
    case Exit::mismatch:
      return check_command(command);
    case Exit::hang:
      return is_bench(command) ? check_command(command) : run_command(command) + " --trace hang.json";
    case Exit::transport:
      return "prun plugins";
    case Exit::out_of_memory:
      return is_bench(command) ? "" : check_command(command) + "   # predicted memory per rank";
    case Exit::non_finite:
      return run_command(command) + " --metrics metrics.jsonl   # the loss of each step";
    case Exit::join:
    case Exit::corrupt_link:
      return run_command(command);
    default:
      return "";
  }
}

std::string who(const RankName& name) {
  std::string node = name.nnodes > 1 ? fmt::format(" (node {})", name.node) : "";
  return fmt::format("rank {} on {}{}, pid {}", name.rank, name.host, node, name.pid);
}

std::string signal_name(int number) {
  const char* abbreviation = sigabbrev_np(number);
  return abbreviation ? std::string("SIG") + abbreviation : fmt::format("signal {}", number);
}

void set_who(Failure& failure, const RankName& name) {
  failure.who = who(name);
  failure.rank = name.rank;
  failure.node = name.node;
  failure.pid = name.pid;
  failure.host = name.host;
}

Failure rank_ended(const RankName& name, const RankEnd& end, std::string op, const JobCommand& command) {
  Failure failure;
  failure.code = static_cast<int>(Exit::rank_crash);
  set_who(failure, name);
  failure.weight = end.killed ? Weight::killed : Weight::silent_exit;
  failure.op = std::move(op);
  std::string when = fmt::format("{} after the start", human_seconds(end.after_s));
  if (end.killed && end.out_of_memory) {
    failure.code = static_cast<int>(Exit::out_of_memory);
    failure.what = fmt::format("rank {} was killed because memory ran out", name.rank);
    failure.evidence = fmt::format("SIGKILL {}, and the kernel counted a kill for memory (oom_kill)", when);
    failure.next = next_command(failure.code, command);
  } else if (end.killed) {
    const char* description = sigdescr_np(end.status);
    failure.what = fmt::format("rank {} was killed by {}", name.rank, signal_name(end.status));
    failure.evidence = fmt::format("{} {}{}", description ? description : "ended by a signal", when,
                                   end.core_dumped ? ", core dumped" : "");
    if (end.status == SIGKILL)
      failure.next = "dmesg | tail   # nothing there: somebody's kill -9";
    else if (end.core_dumped)
      failure.next = fmt::format("coredumpctl gdb {}", name.pid);
    else
      failure.next = fmt::format("ulimit -c unlimited; {}   # leaves a core file for gdb", run_command(command));
  } else {
    failure.what = fmt::format("rank {} ended with exit status {}", name.rank, end.status);
    failure.evidence = fmt::format("it reported no reason, {}; its own output is above", when);
    failure.next = check_command(command);
  }
  return failure;
}

Failure rank_failed(const RankName& name, int code, std::string what, std::string op, const JobCommand& command) {
  Failure failure;
  failure.code = code;
  failure.weight = weight_of(code);
  failure.what = fmt::format("rank {}: {}", name.rank, what);
  set_who(failure, name);
  failure.op = std::move(op);
  failure.next = next_command(code, command);
  return failure;
}

Failure rank_aborted(const RankName& name, std::string op, const JobCommand& command) {
  Failure failure = rank_failed(name, static_cast<int>(Exit::transport),
                                "another rank aborted, and no rank reported a reason", std::move(op), command);
  failure.weight = Weight::bystander;
  return failure;
}

Failure job_failed(int code, std::string what, std::string evidence, const JobCommand& command) {
  Failure failure;
  failure.code = code;
  failure.what = std::move(what);
  failure.evidence = std::move(evidence);
  failure.next = next_command(code, command);
  return failure;
}

bool may_pass(int code) {
  constexpr Exit kPassing[] = {Exit::rank_crash, Exit::hang,         Exit::join,
                               Exit::transport,  Exit::corrupt_link, Exit::out_of_memory};
  return std::any_of(std::begin(kPassing), std::end(kPassing), [&](Exit e) { return static_cast<int>(e) == code; });
}

std::string render(const Failure& failure) {
  std::string text = fmt::format("prun: {}\n", failure.what);
  if (!failure.who.empty()) text += fmt::format("  where:    {}\n", failure.who);
  if (!failure.op.empty()) text += fmt::format("  op:       {}\n", failure.op);
  if (!failure.evidence.empty()) text += fmt::format("  evidence: {}\n", failure.evidence);
  if (!failure.next.empty()) text += fmt::format("  next:     {}\n", failure.next);
  return text;
}

}  // namespace prun
