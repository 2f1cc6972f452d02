// One thread polls pidfds, control sockets, other launchers and signals (a signalfd), and ticks the observer. A job
// ends in this order, so that the message is the last output on the screen:
//
//     verdict -> abort flag -> kGrace for ranks to exit -> SIGKILL -> message
#include "launch/supervisor.h"

#include <fmt/format.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>

#include "base/text.h"
#include "launch/launcher_process.h"
#include "launch/preflight.h"
#include "launch/rank_process.h"

namespace prun {
namespace {

constexpr auto kTick = std::chrono::milliseconds(50);
constexpr auto kGrace = std::chrono::milliseconds(200);
constexpr auto kLook = std::chrono::seconds(1);  // interval of checks of process states
constexpr auto kLookForLauncher = std::chrono::milliseconds(200);
constexpr auto kAsleep = std::chrono::seconds(1);
// timeout(1) signals the process and then its group, and foreign launchers forward Ctrl-C as SIGTERM. A second signal
// within this time is therefore the same request. A person presses Ctrl-C again later than kSameCtrlC.
constexpr auto kSameRequest = std::chrono::milliseconds(500), kSameCtrlC = std::chrono::milliseconds(100);
constexpr auto kLastWords = std::chrono::seconds(1);  // for node 0
// Limit for ranks in an uninterruptible wait and launchers that do not answer.
constexpr auto kGiveUp = std::chrono::seconds(3);

// Signals that end the job, as a descriptor; the destructor restores the former handlers.
class JobSignals {
 public:
  JobSignals() {
    sigemptyset(&ours_);
    for (int number : {SIGINT, SIGTERM, SIGHUP, SIGTSTP}) {
      struct sigaction action;
      sigaction(number, nullptr, &action);
      // Ignored under nohup, or in a shell's background job.
      if (action.sa_handler != SIG_IGN) sigaddset(&ours_, number);
    }
    sigprocmask(SIG_BLOCK, &ours_, &before_);
    struct sigaction keep {};
    keep.sa_handler = SIG_DFL;  // if SIGCHLD is ignored, the kernel discards exit statuses
    sigaction(SIGCHLD, &keep, &child_before_);
    fd_ = Fd(signalfd(-1, &ours_, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~JobSignals() {
    sigaction(SIGCHLD, &child_before_, nullptr);
    sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  int fd() const { return fd_.get(); }
  const sigset_t& before() const { return before_; }
  int take() {  // 0: none
    signalfd_siginfo info;
    return read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t ours_, before_;
  struct sigaction child_before_;
  Fd fd_;
};

// Returns the cause of an early end: a person's Ctrl-C or a scheduler's SIGTERM.
const char* stop_words(int number) { return number == SIGINT ? "Ctrl-C" : "SIGTERM"; }

class Supervisor {
 public:
  Supervisor(const LaunchOptions& options, const Topology& topology, Coordination& coordination,
             LaunchObserver& observer)
      : options_(options),
        topology_(topology),
        coordination_(coordination),
        observer_(observer),
        processes_(topology.here().ranks, options.recorder_bytes, launcher_fds(), signals_of_ranks(),
                   options.capture_output) {}

  int run(RankStart start, const std::function<int(const RankStart&)>& rank_main);

 private:
  std::vector<int> launcher_fds();
  sigset_t signals_of_ranks() const;
  void start_ranks(RankStart start, const std::function<int(const RankStart&)>& rank_main);
  bool finished() { return ending_ && ((processes_.running() == 0 && coordination_.others_ended()) || gave_up_); }
  void wait_for_events();
  Clock::time_point next_deadline() const;
  void take_signal();
  void read_rank(RankProcess& rank);
  void read_output(RankProcess& rank);
  void mirror(bool last);
  void reap(RankProcess& rank);
  void deliver_gathered();
  std::vector<RankWaits> local_waits();
  void follow_stop(Clock::time_point now);
  void follow_pause();
  void look_for_stopped(Clock::time_point now);
  void look_for_launcher(Clock::time_point now);
  void stop_here();
  std::string node_words() const;
  void tick();
  void begin_end();
  void continue_end(Clock::time_point now);
  int tell_verdict();
  RankName name_of(const RankProcess& rank) const;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - started_).count(); }

  const LaunchOptions& options_;
  const Topology& topology_;
  Coordination& coordination_;
  LaunchObserver& observer_;
  JobSignals signals_;
  OomWatch oom_;
  RankProcesses processes_;
  std::vector<bool> reported_;  // by local rank: it has sent failed or bystander
  Clock::time_point started_ = Clock::now(), next_tick_ = Clock::now(), kill_at_, give_up_at_;
  bool ending_ = false, killed_ = false, gave_up_ = false;
  Clock::time_point next_look_for_launcher_ = Clock::now();
  Clock::time_point next_look_ = Clock::now() + kLook, all_stopped_since_ = Clock::now();
  bool paused_ = false;     // ranks are stopped, because of Ctrl-Z on some node
  bool asked_ = false;      // this launcher received a signal that requests an early end
  bool in_grace_ = false;   // grace_ends_ was set
  bool stopping_ = false;   // ranks wait for the number of steps, or have it
  int64_t kept_ = 0;        // Coordination::kept
  bool preempted_ = false;  // a rank ended early
  Clock::time_point grace_ends_ = Clock::time_point::max(), asked_at_;
};

std::vector<int> Supervisor::launcher_fds() {
  std::vector<int> fds{signals_.fd()};
  for (Channel* channel : coordination_.channels()) fds.push_back(channel->fd());
  for (const int fd : coordination_.descriptors()) fds.push_back(fd);
  return fds;
}

// Schedulers send SIGTERM to all processes of a job, and some launchers send SIGINT. If these signals request an early
// end, ranks block them and only the launcher handles them.
sigset_t Supervisor::signals_of_ranks() const {
  sigset_t signals = signals_.before();
  if (options_.grace_s > 0)
    for (const int number : {SIGTERM, SIGINT}) sigaddset(&signals, number);
  return signals;
}

RankName Supervisor::name_of(const RankProcess& rank) const {
  return {rank.rank, topology_.node, topology_.node_count(), rank.pid, topology_.here().host};
}

void Supervisor::start_ranks(RankStart start, const std::function<int(const RankStart&)>& rank_main) {
  const NodePlace& here = topology_.here();
  start.ranks = topology_.ranks();
  start.local_ranks = here.ranks;
  start.node = topology_.node;
  reported_.resize(here.ranks);
  std::vector<int> ranks, pids;
  std::vector<void*> recorders;
  for (int local = 0; local < here.ranks; ++local) {
    start.rank = here.first_rank + local;
    start.local_rank = local;
    start.host_rank = options_.host_first_rank + local;
    processes_.fork_rank(start, rank_main);
    const RankProcess& forked = processes_.all().back();
    ranks.push_back(forked.rank);
    pids.push_back(forked.pid);
    recorders.push_back(forked.recorder);
  }
  observer_.started(ranks, pids, recorders);
}

int Supervisor::run(RankStart start, const std::function<int(const RankStart&)>& rank_main) {
  try {
    start_ranks(start, rank_main);
  } catch (const Error& error) {
    coordination_.failed(job_failed(static_cast<int>(error.code()), error.what(), "", options_.command));
  }
  while (!finished()) {
    wait_for_events();
    deliver_gathered();
    if (coordination_.take_waits_asked()) coordination_.waits(local_waits());
    Clock::time_point now = Clock::now();
    follow_stop(now);
    follow_pause();
    look_for_stopped(now);
    look_for_launcher(now);
    if (now >= coordination_.deadline()) coordination_.expire(now);
    if (coordination_.verdict() && !ending_) begin_end();
    if (ending_) continue_end(now);
    if (now >= next_tick_) {
      tick();
      next_tick_ = now + kTick;
    }
  }
  processes_.kill_orphans();
  for (RankProcess& rank : processes_.all()) read_output(rank);
  mirror(true);
  observer_.tick();  // the last records of the ranks
  int code = tell_verdict();
  observer_.ended(code, coordination_.verdict()->begins_again);
  return code;
}

Clock::time_point Supervisor::next_deadline() const {
  Clock::time_point next = std::min({next_tick_, coordination_.deadline(), grace_ends_});
  if (ending_) next = std::min(next, killed_ ? give_up_at_ : kill_at_);
  return next;
}

void Supervisor::wait_for_events() {
  std::vector<RankProcess>& ranks = processes_.all();
  std::vector<Channel*> peers = coordination_.channels();
  std::vector<pollfd> polls;
  auto watch = [&polls](int fd, bool write) {
    polls.push_back({fd, static_cast<short>(write ? POLLIN | POLLOUT : POLLIN), 0});
  };
  watch(signals_.fd(), false);
  for (RankProcess& rank : ranks) {  // poll skips negative descriptors
    watch(rank.running ? rank.pidfd.get() : -1, false);
    watch(rank.control.open() ? rank.control.fd() : -1, rank.control.wants_write());
    for (const Fd& fd : rank.output) watch(fd.get(), false);
  }
  for (Channel* peer : peers) watch(peer->fd(), peer->wants_write());

  auto left = std::chrono::ceil<std::chrono::milliseconds>(next_deadline() - Clock::now()).count();
  const Clock::time_point looked = Clock::now();
  const int events = poll(polls.data(), polls.size(), static_cast<int>(std::max<long>(left, 0)));
  // No deadline is longer than a tick, so this process was suspended; that time counts against no rank.
  if (const Clock::duration asleep = Clock::now() - looked; asleep > kAsleep) {
    coordination_.slept(asleep);
    all_stopped_since_ = Clock::now();
  }
  for (RankProcess& rank : ranks)
    if (!rank.pidfd) reap(rank);  // the container refuses pidfds: a tick at most passes until a death is noticed
  if (events <= 0) return;

  size_t at = 0;
  if (polls[at++].revents) take_signal();
  // Deaths before reports: a death explains more.
  for (RankProcess& rank : ranks) {
    if (polls[at].revents) reap(rank);
    at += 4;
  }
  at = 2;
  for (RankProcess& rank : ranks) {
    if (polls[at].revents & POLLOUT) rank.control.flush();
    if (polls[at].revents & ~POLLOUT) read_rank(rank);
    if (polls[at + 1].revents != 0 || polls[at + 2].revents != 0) read_output(rank);
    at += 4;
  }
  --at;
  for (Channel* peer : peers) {
    if (polls[at].revents & POLLOUT) peer->flush();
    if (polls[at].revents & ~POLLOUT) coordination_.receive(*peer);
    ++at;
  }
}

void Supervisor::take_signal() {
  int number = signals_.take();
  if (number == 0) return;
  if (number == SIGTSTP) return stop_here();
  if (ending_) {  // the second signal: no grace
    kill_at_ = Clock::now();
    return;
  }
  const bool asks = number == SIGTERM || number == SIGINT;
  if (asks && asked_ && Clock::now() - asked_at_ < (number == SIGINT ? kSameCtrlC : kSameRequest)) return;
  if (asks && options_.grace_s > 0 && !asked_) {
    asked_ = true;
    asked_at_ = Clock::now();
    if (!options_.silent)
      observer_.message(
          fmt::format("prun: {}{}: a checkpoint, then the end, within {:g} s; a second one ends the job at once\n",
                      stop_words(number), node_words(), options_.grace_s));
    return coordination_.stop(number);
  }
  Failure failure;
  failure.code = 128 + number;
  failure.weight = Weight::killed;
  failure.what = fmt::format("ended by {}{}", signal_name(number), node_words());
  coordination_.failed(std::move(failure));
}

// Ctrl-Z: ranks have their own process groups, so the terminal stops only the launcher. The ranks of all nodes stop and
// continue with it.
void Supervisor::stop_here() {
  if (ending_) return;
  coordination_.pause(true);
  processes_.signal_all(SIGSTOP);
  const Clock::time_point stopped = Clock::now();
  raise(SIGSTOP);  // SIGTSTP is blocked; the shell handles both alike
  coordination_.slept(Clock::now() - stopped);
  all_stopped_since_ = Clock::now();
  processes_.signal_all(SIGCONT);
  coordination_.pause(false);
}

void Supervisor::follow_pause() {
  if (paused_ == coordination_.paused() || ending_) return;
  paused_ = coordination_.paused();
  processes_.signal_all(paused_ ? SIGSTOP : SIGCONT);
}

// Fails the job if every rank of this node is stopped for join_timeout_s, because no waiting rank would report it. The
// observer has already named the stopped ranks.
void Supervisor::look_for_stopped(Clock::time_point now) {
  if (now < next_look_ || ending_) return;
  next_look_ = now + kLook;
  const RankProcess* first = nullptr;
  for (const RankProcess& rank : processes_.all()) {
    if (!rank.running) continue;
    if (paused_ || process_state(rank.pid) != 'T') {
      all_stopped_since_ = now;
      return;
    }
    if (first == nullptr) first = &rank;
  }
  if (first == nullptr || now < after(all_stopped_since_, options_.join_timeout_s)) return;
  Failure failure =
      job_failed(static_cast<int>(Exit::hang), fmt::format("rank {} is stopped (SIGSTOP or Ctrl-Z)", first->rank),
                 fmt::format("each rank that still runs{} has been stopped for {}", node_words(),
                             human_seconds(options_.join_timeout_s)),
                 options_.command);
  set_who(failure, name_of(*first));
  failure.op = observer_.where(first->rank);
  coordination_.failed(std::move(failure));
}

// A foreign launcher that was killed, such as mpirun, would otherwise leave ranks that train without end.
void Supervisor::look_for_launcher(Clock::time_point now) {
  if (now < next_look_for_launcher_ || ending_) return;
  next_look_for_launcher_ = now + kLookForLauncher;
  const std::string lost = lost_launcher();
  if (lost.empty()) return;
  Failure failure;
  failure.code = 128 + SIGKILL;
  failure.weight = Weight::killed;
  failure.what = lost + node_words();
  coordination_.failed(std::move(failure));
}

std::string Supervisor::node_words() const {
  return topology_.node_count() > 1 ? fmt::format(" on node {} ({})", topology_.node, topology_.here().host) : "";
}

void Supervisor::follow_stop(Clock::time_point now) {
  if (coordination_.stop_asked() && !stopping_) {
    stopping_ = true;
    coordination_.begun(processes_.ask_to_stop());
  }
  if (coordination_.preempted() && options_.grace_s > 0 && !std::exchange(in_grace_, true)) {
    grace_ends_ = after(now, options_.grace_s);
    observer_.stopping(coordination_.stop_signal());
  }
  if (coordination_.committed() > 0) processes_.set_committed(coordination_.committed());
  for (const int64_t step : coordination_.take_abandoned()) processes_.add_abandoned(step);
  if (coordination_.steps() > 0) processes_.set_steps(coordination_.steps());
  if (now < grace_ends_) return;
  grace_ends_ = Clock::time_point::max();
  if (coordination_.verdict()) return;
  Failure failure;
  failure.code = 128 + coordination_.stop_signal();
  failure.weight = Weight::killed;
  failure.what = fmt::format("ended by {}{}: no checkpoint was whole within --grace {:g}; those before it are",
                             stop_words(coordination_.stop_signal()), node_words(), options_.grace_s);
  coordination_.failed(std::move(failure));
}

void Supervisor::read_rank(RankProcess& rank) {
  std::vector<Frame> frames;
  bool alive = rank.control.receive(frames);
  for (Frame& frame : frames) {
    if (frame.kind == FrameKind::gather) coordination_.gather(rank.rank, std::move(frame.payload));
    if (frame.kind == FrameKind::bystander) {
      reported_[rank.rank - topology_.here().first_rank] = true;
      coordination_.failed(rank_aborted(name_of(rank), observer_.where(rank.rank), options_.command));
    }
    if (frame.kind == FrameKind::line) coordination_.line(rank.rank, frame.payload);
    if (frame.kind == FrameKind::abandon) coordination_.abandon(rank.rank, frame.payload);
    if (frame.kind == FrameKind::failed) {
      Unpacker unpacker(frame.payload);
      int code = static_cast<int>(unpacker.number());
      bool effect = unpacker.number() != 0;
      int peer = static_cast<int>(unpacker.number());
      const int64_t step = unpacker.number();
      std::string what = unpacker.text(), op = unpacker.text();
      reported_[rank.rank - topology_.here().first_rank] = true;
      if (op.empty()) op = observer_.where(rank.rank);
      Failure failure = rank_failed(name_of(rank), code, std::move(what), std::move(op), options_.command);
      if (effect) failure.weight = Weight::symptom;
      failure.peer = peer;
      failure.step = step;
      coordination_.failed(std::move(failure));
    }
  }
  if (!alive) rank.control.close();
}

void Supervisor::reap(RankProcess& rank) {
  std::optional<ExitStatus> status = processes_.reap(rank);
  if (!status) return;
  read_rank(rank);  // frames from before its end
  read_output(rank);
  rank.control.close();
  const bool stopped = stopping_ && status->status == static_cast<int>(Exit::preempted);
  preempted_ = preempted_ || (!status->killed && stopped);
  if (!status->killed && (status->status == 0 || stopped)) return coordination_.ended(rank.rank, stopped);
  if (coordination_.verdict()) return;  // an effect of ending the job
  if (!status->killed && reported_[rank.rank - topology_.here().first_rank]) return;
  RankEnd end{status->killed, status->status, status->core_dumped, false, seconds()};
  if (end.killed && end.status == SIGKILL) end.out_of_memory = oom_.killed_since();
  coordination_.failed(rank_ended(name_of(rank), end, observer_.where(rank.rank), options_.command));
}

// Reads at most the capacity of a pipe, so that a rank that never stops writing does not starve the others.
void Supervisor::read_output(RankProcess& rank) {
  constexpr size_t kPipe = 1 << 16;
  for (const int stream : {0, 1}) {
    Fd& fd = rank.output[stream];
    char text[kPipe];
    const ssize_t count = fd ? ::read(fd.get(), text, sizeof text) : -1;
    if (count > 0) {
      observer_.output(rank.rank, stream == 1, {text, static_cast<size_t>(count)}, true);
      coordination_.output(rank.rank, {text, static_cast<size_t>(count)});
    }
    if (count == 0) fd.reset();
  }
}

void Supervisor::tick() {
  if (paused_ && !ending_) return;  // ranks are stopped on purpose; observers detect the gap and restart their timers
  observer_.tick();
  mirror(false);
  if (ending_) return;
  if (const int64_t kept = processes_.kept(); processes_.running() > 0 && kept > kept_)
    coordination_.kept(kept_ = kept);
  if (std::optional<Failure> hang = observer_.hung()) coordination_.failed(std::move(*hang));
}

// After the job node 0 reads until this launcher has closed the connection, so the last mirror is flushed here.
void Supervisor::mirror(bool last) {
  if (coordination_.behind() && !last) return;
  for (const auto& [rank, bytes] : observer_.mirror(last)) coordination_.mirror(rank, bytes);
  if (!last) return;
  const Clock::time_point end = Clock::now() + kLastWords;
  for (Channel* peer : coordination_.channels())
    for (pollfd poll_fd{peer->fd(), POLLOUT, 0}; peer->wants_write() && Clock::now() < end; peer->flush())
      poll(&poll_fd, 1, 50);
}

void Supervisor::deliver_gathered() {
  for (const std::string& all : coordination_.take_gathered())
    for (RankProcess& rank : processes_.all()) rank.control.send(FrameKind::gathered, -1, all);
}

std::vector<RankWaits> Supervisor::local_waits() {
  std::vector<RankWaits> all;
  for (const RankProcess& rank : processes_.all())
    all.push_back({rank.rank, processes_.awaited_by(rank), rank.running ? process_state(rank.pid) : 'X', name_of(rank),
                   observer_.where(rank.rank)});
  return all;
}

void Supervisor::begin_end() {
  ending_ = true;
  observer_.ending();
  processes_.set_aborted();
  kill_at_ = Clock::now() + kGrace;
}

void Supervisor::continue_end(Clock::time_point now) {
  if (!killed_ && now >= kill_at_) {
    processes_.kill_running();
    killed_ = true;
    give_up_at_ = now + kGiveUp;
  }
  if (killed_ && now >= give_up_at_) gave_up_ = true;
}

int Supervisor::tell_verdict() {
  const std::optional<Failure>& failure = coordination_.verdict()->failure;
  if (!failure) return preempted_ ? static_cast<int>(Exit::preempted) : 0;
  observer_.failed(*failure);
  if (!coordination_.verdict()->told) observer_.message(render(*failure));
  for (const RankProcess& rank : processes_.all())
    if (rank.running)
      observer_.message(fmt::format("prun: rank {}, pid {}, does not end after SIGKILL\n", rank.rank, rank.pid));
  return failure->code;
}

}  // namespace

int supervise(const LaunchOptions& options, const Topology& topology, const RankStart& start,
              const std::function<int(const RankStart&)>& rank_main, Coordination& coordination,
              LaunchObserver& observer) {
  try {
    return Supervisor(options, topology, coordination, observer).run(start, rank_main);
    // No rank has started: the caller reports it here, the verdict does on the other nodes.
  } catch (const Error& error) {
    coordination.failed(job_failed(static_cast<int>(error.code()), error.what(), "", options.command));
    throw;
  }
}

}  // namespace prun
