// Each rank leads its own process group, so that Ctrl-C reaches only the launcher, and one kill reaches a rank with its
// descendants.
#include "launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>

#include "base/text.h"

namespace prun {
namespace {

// A container may refuse calls by seccomp, with EPERM or ENOSYS.
bool is_refused(int error) { return error == EPERM || error == EACCES || error == ENOSYS; }

Error cannot_start(const RankStart& start, const char* call, int error) {
  if (is_refused(error))
    return Error(Exit::usage,
                 fmt::format("cannot start local rank {} of {}: {}: {}; a container's seccomp profile refuses it",
                             start.local_rank, start.local_ranks, call, std::strerror(error)));
  Exit code = error == ENOMEM ? Exit::out_of_memory : Exit::usage;
  const char* hint = error == ENOMEM                      ? "not enough memory"
                     : error == EMFILE || error == ENFILE ? "limit on open files, see ulimit -n"
                     : error == EAGAIN ? "limit on processes, see ulimit -u and the cgroup's pids.max"
                                       : "";
  return Error(
      code, fmt::format("cannot start local rank {} of {}: {}: {}{}{}{}; use fewer ranks (--nproc)", start.local_rank,
                        start.local_ranks, call, std::strerror(error), *hint ? " (" : "", hint, *hint ? ")" : ""));
}

// Waits for a child; `flags`: 0 or WNOHANG. Returns false if it has not exited, or no longer exists. With waitid its
// process group is killed while the zombie still holds the group's id. Only the fallback, wait4, reaps before that.
bool wait_for_child(pid_t pid, int flags, ExitStatus* status) {
  siginfo_t info{};
  int failed;
  while ((failed = waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT | flags)) != 0 && errno == EINTR) {
  }
  if (failed == 0 && info.si_pid == 0) return false;
  if (failed == 0) {
    kill(-pid, SIGKILL);  // processes that it left in its group
    waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED);
    *status = {info.si_code != CLD_EXITED, info.si_status, info.si_code == CLD_DUMPED};
    return true;
  }
  if (!is_refused(errno)) return false;
  int word = 0;
  pid_t ended;
  while ((ended = waitpid(pid, &word, flags)) < 0 && errno == EINTR) {
  }
  if (ended != pid) return false;
  kill(-pid, SIGKILL);
  *status = {WIFSIGNALED(word), WIFSIGNALED(word) ? WTERMSIG(word) : WEXITSTATUS(word),
             WIFSIGNALED(word) && WCOREDUMP(word)};
  return true;
}

// Without these calls the end of a rank would never be noticed.
void require_wait_calls() {
  siginfo_t info{};
  if (waitid(P_PID, static_cast<id_t>(getpid()), &info, WEXITED | WNOHANG) == 0 || !is_refused(errno)) return;
  if (waitpid(getpid(), nullptr, WNOHANG) >= 0 || !is_refused(errno)) return;
  throw Error(Exit::usage, fmt::format("this container refuses waitid and wait4 ({}), by which prun notices the end of "
                                       "its ranks; allow one of them in the seccomp profile",
                                       std::strerror(errno)));
}

// Raises the soft limit to the hard one: each rank needs two descriptors.
void raise_open_files() {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Returns the direct children; empty if the kernel does not list them.
std::vector<pid_t> children() {
  std::ifstream list(fmt::format("/proc/self/task/{}/children", getpid()));
  std::vector<pid_t> pids;
  for (pid_t pid; list >> pid;) pids.push_back(pid);
  return pids;
}

// Kills this rank and its descendants.
void end_process_group() { kill(0, SIGKILL); }

bool launcher_is_gone(int lifeline) {
  pollfd end{lifeline, POLLIN, 0};
  return poll(&end, 1, 0) > 0;
}

// Makes the kernel kill this rank's process group once the launcher, the only writer of the lifeline, is gone. That
// ends even stopped processes, which no thread or handler of this rank could do. Signal ownership belongs to the open
// file description, which the ranks share, so each rank opens the lifeline again and keeps it open.
void die_with_lifeline(int lifeline) {
  int mine = open(fmt::format("/proc/self/fd/{}", lifeline).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  fcntl(mine, F_SETOWN, -getpgrp());
  fcntl(mine, F_SETSIG, SIGKILL);
  fcntl(mine, F_SETFL, O_ASYNC | O_NONBLOCK);
  if (launcher_is_gone(lifeline)) end_process_group();
}

int guarded(const RankStart& start, const std::function<int(const RankStart&)>& rank_main) {
  try {
    return rank_main(start);
  } catch (const std::exception& caught) {
    const Error error = error_of(caught);
    start.launcher->fail(error, "");
    return static_cast<int>(error.code());
  }
}

sdk::Mapping shared_memory(size_t bytes) {
  sdk::Mapping pages = bytes > 0 ? sdk::Mapping::pages(bytes, MAP_SHARED) : sdk::Mapping();
  if (bytes > 0 && !pages)
    throw Error(Exit::out_of_memory, fmt::format("cannot map {} for a rank's recorder: {}; use fewer ranks (--nproc)",
                                                 human_bytes(static_cast<int64_t>(bytes)), std::strerror(errno)));
  return pages;
}

}  // namespace

char process_state(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const size_t name_ends = line.rfind(") ");  // the name may contain any character
  const char state = name_ends == std::string::npos ? 'X' : line[name_ends + 2];
  return state == 'Z' ? 'X' : state;
}

RankProcesses::RankProcesses(int local_ranks, size_t recorder_bytes, std::vector<int> closed_in_ranks,
                             const sigset_t& signals, bool capture_output)
    : local_ranks_(local_ranks),
      closed_in_ranks_(std::move(closed_in_ranks)),
      signals_(signals),
      capture_output_(capture_output),
      page_(shared_memory(JobPage::bytes(local_ranks))),
      children_before_(children()) {
  require_wait_calls();
  raise_open_files();
  for (int i = 0; i < local_ranks; ++i) recorders_.push_back(shared_memory(recorder_bytes));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error(Exit::usage, fmt::format("pipe: {}", std::strerror(errno)));
  lifeline_read_ = Fd(ends[0]);
  lifeline_write_ = Fd(ends[1]);
  ranks_.reserve(local_ranks);
  prctl(PR_GET_CHILD_SUBREAPER, &subreaper_before_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

RankProcesses::~RankProcesses() {
  kill_running();
  ExitStatus ignored;
  for (RankProcess& rank : ranks_)
    if (rank.running) wait_for_child(rank.pid, 0, &ignored);
  kill_orphans();
  prctl(PR_SET_CHILD_SUBREAPER, subreaper_before_);
}

void RankProcesses::fork_rank(RankStart start, const std::function<int(const RankStart&)>& rank_main) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw cannot_start(start, "socketpair", errno);
  Fd mine(ends[0]), theirs(ends[1]), written[2];
  RankProcess rank;
  for (int i = 0; capture_output_ && i < 2; ++i) {
    if (pipe2(ends, O_CLOEXEC) != 0) throw cannot_start(start, "pipe", errno);
    rank.output[i] = Fd(ends[0]);
    written[i] = Fd(ends[1]);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
  }
  rank.rank = start.rank;
  rank.recorder = start.recorder = recorders_[start.local_rank].base();
  std::fflush(nullptr);  // otherwise both processes write the buffered text
  pid_t launcher = getpid();
  rank.pid = fork();
  if (rank.pid < 0) throw cannot_start(start, "fork", errno);
  if (rank.pid == 0) {
    mine.reset();
    run_rank(start, rank_main, std::move(theirs), written, launcher);
  }
  setpgid(rank.pid, rank.pid);  // here too, because a kill of the group may precede the child's own call
  rank.pidfd = Fd(static_cast<int>(syscall(SYS_pidfd_open, rank.pid, 0)));
  int error = errno;
  const bool watched = rank.pidfd || is_refused(error);  // without pidfds the supervisor calls `reap` in each round
  rank.control = Channel(std::move(mine));
  ranks_.push_back(std::move(rank));
  if (!watched) throw cannot_start(start, "pidfd_open", error);
}

void RankProcesses::run_rank(RankStart start, const std::function<int(const RankStart&)>& rank_main, Fd control,
                             Fd (&output)[2], pid_t launcher) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != launcher) _exit(128 + SIGKILL);  // it ended before prctl
  prctl(PR_SET_NAME, fmt::format("prun-rank{}", start.rank).substr(0, 15).c_str());
  // Makes the OOM killer prefer ranks to the launcher, which reports it.
  std::ofstream("/proc/self/oom_score_adj") << 200;
  lifeline_write_.reset();
  for (RankProcess& other : ranks_) {
    other.pidfd.reset();
    other.control.close();
    for (Fd& fd : other.output) fd.reset();
  }
  if (output[0]) {  // the launcher flushed stdout before the fork; the rank is line-buffered
    dup2(output[0].get(), STDOUT_FILENO);
    dup2(output[1].get(), STDERR_FILENO);
    setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  }
  for (int fd : closed_in_ranks_) ::close(fd);
  die_with_lifeline(lifeline_read_.get());
  sigprocmask(SIG_SETMASK, &signals_, nullptr);
  std::unique_ptr<LauncherClient> client = make_launcher_client(start, std::move(control), page());
  start.launcher = client.get();
  int code = guarded(start, rank_main);
  std::fflush(nullptr);
  // Otherwise the launcher kills the group when it reaps this rank.
  if (launcher_is_gone(lifeline_read_.get())) end_process_group();
  _exit(code);  // exit() would also run the launcher's destructors
}

int RankProcesses::running() const {
  return std::count_if(ranks_.begin(), ranks_.end(), [](const RankProcess& r) { return r.running; });
}

std::vector<int> RankProcesses::awaited_by(const RankProcess& rank) {
  std::vector<int> awaited;
  for (const auto& thread : page()->waits(local_ranks_)[&rank - ranks_.data()].rank)
    for (const std::atomic<int32_t>& each : thread)
      if (const int one = each.load(std::memory_order_relaxed) - 1;
          one >= 0 && std::find(awaited.begin(), awaited.end(), one) == awaited.end())
        awaited.push_back(one);
  return awaited;
}

std::optional<ExitStatus> RankProcesses::reap(RankProcess& rank) {
  ExitStatus status;
  if (!rank.running || !wait_for_child(rank.pid, WNOHANG, &status)) return std::nullopt;
  rank.running = false;
  return status;
}

void RankProcesses::set_aborted() {
  page()->aborted.store(1, std::memory_order_release);
  for (RankProcess& rank : ranks_) rank.control.end_sending();
}

int64_t RankProcesses::ask_to_stop() {
  page()->stopping.store(1, std::memory_order_seq_cst);
  int64_t most = 0;
  for (int local = 0; local < local_ranks_; ++local)
    most = std::max(most, page()->begun()[local].load(std::memory_order_seq_cst));
  return most;
}

void RankProcesses::set_steps(int64_t steps) { page()->steps.store(steps, std::memory_order_release); }

int64_t RankProcesses::kept() {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int local = 0; local < local_ranks_; ++local)
    least = std::min(least, page()->kept(local_ranks_)[local].load(std::memory_order_acquire));
  return least;
}

void RankProcesses::set_committed(int64_t step) { page()->committed.store(step, std::memory_order_release); }

void RankProcesses::add_abandoned(int64_t step) {
  page()->abandoned[abandoned_++ % JobPage::kAbandoned].store(step, std::memory_order_release);
}

void RankProcesses::signal_all(int number) {
  for (const RankProcess& rank : ranks_)
    if (rank.running && kill(-rank.pid, number) != 0) kill(rank.pid, number);
}

void RankProcesses::kill_orphans() {
  for (int round = 0; round < 100; ++round) {  // an orphan's children are reparented to this process in turn
    bool found = false;
    for (pid_t pid : children()) {
      bool ours =
          std::any_of(ranks_.begin(), ranks_.end(), [&](const RankProcess& r) { return r.running && r.pid == pid; });
      if (ours || std::count(children_before_.begin(), children_before_.end(), pid)) continue;
      found = true;
      kill(pid, SIGKILL);
      ExitStatus ignored;
      wait_for_child(pid, 0, &ignored);
    }
    if (!found) return;
  }
}

}  // namespace prun
