// The head of a job: gathers blobs, waits for late ranks, and decides how the job ends; blame.cc selects the root
// cause.
#include <fmt/format.h>
#include <prun/sdk/tcp_path.h>

#include <algorithm>
#include <csignal>
#include <limits>
#include <set>

#include "base/text.h"
#include "launch/coordination.h"
#include "launch/meeting.h"
#include "launch/pulse.h"
#include "launch/rendezvous.h"
#include "launch/supervisor.h"

namespace prun {
namespace {

class Head : public Coordination {
 public:
  Head(JoinedNodes joined, const LaunchOptions& options, LaunchObserver& observer)
      : topology_(std::move(joined.topology)),
        members_(std::move(joined.members)),
        late_(std::move(joined.late), options, observer),
        pulses_(members_.size(), Pulse(options.link_timeout_s)),
        options_(options),
        observer_(observer),
        blobs_(topology_.ranks()),
        has_ended_(topology_.ranks()),
        kept_(topology_.nodes.size()) {
    for (const NodePlace& place : topology_.nodes) nodes_with_ranks_ += place.ranks > 0 ? 1 : 0;
  }

  void gather(int rank, std::string blob) override;
  void line(int rank, const std::string& text) override { observer_.line(rank, text); }
  void abandon(int rank, const std::string& payload) override;
  void ended(int rank, bool early) override;
  void failed(Failure failure) override;
  void stop(int signal) override;
  void pause(bool on) override;
  void slept(Clock::duration time) override {
    for (Pulse& pulse : pulses_) pulse.slept(time);
    if (gathering()) waiting_since_ += time;
  }
  void begun(int64_t step) override;
  void waits(std::vector<RankWaits> ranks) override;
  void kept(int64_t step) override { kept(0, step); }
  std::vector<Channel*> channels() override;
  std::vector<int> descriptors() override { return late_.descriptors(); }
  void receive(Channel& channel) override;
  Clock::time_point deadline() const override;
  void expire(Clock::time_point now) override;
  // A member closes after its ranks have ended. Closing first could reset the connection before it has read the
  // verdict.
  bool others_ended() override { return channels().empty(); }

 private:
  void make_room();
  void kept(size_t node, int64_t step);
  bool gathering() const { return arrived_ > 0; }
  void take(Frame& frame, size_t node);
  void lose(size_t node, Exit code, const char* how, const std::string& why);
  void decide(std::optional<Failure> failure);
  Failure judge();
  void check_gathering();
  // Returns the ranks that have not joined the all-gather: "3, 7 on host-a; 9 on host-b".
  std::string missing() const;
  Clock::time_point join_deadline() const { return after(waiting_since_, options_.join_timeout_s); }

  Topology topology_;
  std::vector<Channel> members_;
  LateNodes late_;
  std::vector<Pulse> pulses_;  // pulses of members_
  const LaunchOptions& options_;
  LaunchObserver& observer_;
  std::vector<std::optional<std::string>> blobs_;  // by rank, of the current all-gather
  int arrived_ = 0;
  Clock::time_point waiting_since_, next_report_;
  std::vector<bool> has_ended_;
  int ended_count_ = 0;
  bool makes_room_ = false, ended_early_ = false;  // ending early to admit late nodes
  // A node runs no rank if it never joined, or if the job continues with fewer ranks than its nodes could run.
  int nodes_with_ranks_ = 0;
  int stop_answers_ = 0;  // nodes with ranks that have answered FrameKind::stop
  int64_t last_begun_ = 0;
  std::vector<int64_t> kept_;         // by node
  std::set<int64_t> told_abandoned_;  // steps
  Blame blame_;
  bool asked_waits_ = false;
  int waits_answers_ = 0;  // nodes with ranks that have answered FrameKind::ask_waits
};

void Head::gather(int rank, std::string blob) {
  std::optional<std::string>& slot = blobs_.at(rank);
  PRUN_CHECK(!slot, fmt::format("rank {} twice", rank));
  slot = std::move(blob);
  if (arrived_++ == 0) {
    waiting_since_ = Clock::now();
    next_report_ = after(waiting_since_, options_.join_report_s);
  }
  check_gathering();
  if (arrived_ < topology_.ranks()) return;
  std::vector<std::string> gathered;
  for (std::optional<std::string>& each : blobs_) gathered.push_back(*std::exchange(each, std::nullopt));
  arrived_ = 0;
  std::string all = pack(gathered);
  for (Channel& member : members_) member.send(FrameKind::gathered, -1, all);
  gathered_.push_back(std::move(all));
}

// Fails the all-gather if a rank has returned, because that rank will never join it.
void Head::check_gathering() {
  if (!gathering() || ended_count_ == 0) return;
  for (int rank = 0; rank < topology_.ranks(); ++rank) {
    if (!has_ended_[rank] || blobs_[rank]) continue;
    Failure failure =
        job_failed(static_cast<int>(Exit::join),
                   fmt::format("rank {} returned while others wait for it in all_gather", rank), "", options_.command);
    failure.weight = Weight::symptom;
    return failed(std::move(failure));
  }
}

void Head::ended(int rank, bool early) {
  ended_early_ = ended_early_ || early;
  has_ended_.at(rank) = true;
  if (++ended_count_ == topology_.ranks()) {
    if (blame_.empty()) return decide(std::nullopt);
    return decide(judge());  // all returned 0 in spite of a failure
  }
  check_gathering();
}

void Head::stop(int signal) {
  if (preempted()) return;
  stop_asked_ = true;
  stop_signal_ = signal == SIGINT ? SIGINT : SIGTERM;
  makes_room_ = false;
  for (Channel& member : members_) member.send(FrameKind::stop, -1, Packer().number(signal).take());
}

// Ends the job after a step and a commit, as SIGTERM does; then all nodes join again.
void Head::make_room() {
  if (stop_asked_) return;
  stop_asked_ = makes_room_ = true;
  for (Channel& member : members_) member.send(FrameKind::stop, kForNodes, "");
}

// A stream may already be in the step after the last one begun, so that step is completed too.
void Head::begun(int64_t step) {
  last_begun_ = std::max(last_begun_, step);
  if (++stop_answers_ < nodes_with_ranks_) return;
  steps_ = last_begun_ + 2;
  for (Channel& member : members_) member.send(FrameKind::steps, -1, Packer().number(steps_).take());
}

void Head::kept(size_t node, int64_t step) {
  kept_[node] = step;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (size_t i = 0; i < kept_.size(); ++i)
    if (topology_.nodes[i].ranks > 0) least = std::min(least, kept_[i]);
  if (least <= committed_) return;
  committed_ = least;
  for (Channel& member : members_) member.send(FrameKind::committed, -1, Packer().number(committed_).take());
}

// Several ranks may hit the same full disk; only the first report of each save is forwarded.
void Head::abandon(int rank, const std::string& payload) {
  Unpacker unpacker(payload);
  const int64_t step = unpacker.number();
  const std::string words = unpacker.text();
  if (!told_abandoned_.insert(step).second) return;
  observer_.abandoned(rank, step, words);
  abandoned_.push_back(step);
  for (Channel& member : members_) member.send(FrameKind::abandoned, -1, Packer().number(step).take());
}

void Head::failed(Failure failure) {
  if (verdict_) return;  // an effect of the end in progress
  const bool hangs = failure.weight == Weight::waited;
  blame_.add(std::move(failure), Clock::now());
  if (blame_.due() <= Clock::now()) return decide(judge());
  if (!hangs || std::exchange(asked_waits_, true)) return;
  waits_asked_ = true;
  for (Channel& member : members_) member.send(FrameKind::ask_waits, -1, "");
}

void Head::waits(std::vector<RankWaits> ranks) {
  blame_.add(std::move(ranks));
  if (++waits_answers_ == nodes_with_ranks_) blame_.waits_are_known(Clock::now());
}

Failure Head::judge() {
  return blame_.judge([this](int rank) { return has_ended_.at(rank); }, options_.command);
}

void Head::decide(std::optional<Failure> failure) {
  if (verdict_) return;
  verdict_ = Verdict{std::move(failure)};
  if (verdict_->failure)
    verdict_->begins_again = (options_.begins_again && may_pass(verdict_->failure->code)) ||
                             (options_.rolls_back && verdict_->failure->code == static_cast<int>(Exit::non_finite));
  else
    verdict_->begins_again = makes_room_ && ended_early_;
  late_.end(*verdict_);
  const std::string packed = verdict_->failure ? pack(*verdict_->failure) : "";
  for (Channel& member : members_)
    member.send(FrameKind::verdict, -1, Packer().number(verdict_->begins_again ? 1 : 0).text(packed).take());
}

std::vector<Channel*> Head::channels() {
  std::vector<Channel*> open;
  for (Channel& member : members_)
    if (member.open()) open.push_back(&member);
  return open;
}

void Head::pause(bool on) {
  paused_ = on;
  for (size_t i = 0; i < members_.size(); ++i) {
    pulses_[i].pause(on, Clock::now());
    members_[i].send(FrameKind::pause, on ? 1 : 0, "");
  }
}

void Head::receive(Channel& channel) {
  const size_t node = &channel - members_.data() + 1;
  std::vector<Frame> frames;
  const bool alive = channel.receive(frames);
  pulses_[node - 1].heard(Clock::now());
  try {
    for (Frame& frame : frames) take(frame, node);
  } catch (const Error& error) {
    channel.close();
    return lose(node, Exit::corrupt_link, "is broken", error.what());
  }
  if (alive) return;
  if (verdict_) return keep_until_exit(std::move(channel));
  std::string why = channel.trouble();
  if (why.empty() && sdk::TcpPath(channel.fd()).loses_large_packets()) why = sdk::kSmallMtu;
  channel.close();
  lose(node, Exit::corrupt_link, "is lost", why);
}

// Handles a frame of a member. Throws Error for impossible values, because a member with the secret may still be
// faulty.
void Head::take(Frame& frame, size_t node) {
  const NodePlace& from = topology_.nodes[node];
  const bool of_rank = frame.kind == FrameKind::gather || frame.kind == FrameKind::line ||
                       frame.kind == FrameKind::ended || frame.kind == FrameKind::mirror ||
                       frame.kind == FrameKind::output || frame.kind == FrameKind::abandon;
  if (of_rank && (frame.rank < from.first_rank || frame.rank >= from.first_rank + from.ranks))
    throw Error(Exit::corrupt_link, fmt::format("it speaks for rank {}, which is not one of its own", frame.rank));
  switch (frame.kind) {
    case FrameKind::gather:
      if (blobs_[frame.rank]) throw Error(Exit::corrupt_link, fmt::format("rank {} gathers twice at once", frame.rank));
      return gather(frame.rank, std::move(frame.payload));
    case FrameKind::line:
      return line(frame.rank, frame.payload);
    case FrameKind::abandon:
      return abandon(frame.rank, frame.payload);
    case FrameKind::ended:
      if (has_ended_[frame.rank]) throw Error(Exit::corrupt_link, fmt::format("rank {} ends twice", frame.rank));
      return ended(frame.rank, !frame.payload.empty());
    case FrameKind::stop:
      return stop(static_cast<int>(Unpacker(frame.payload).number()));
    case FrameKind::pause:
      return pause(frame.rank != 0);
    case FrameKind::begun:
      if (from.ranks > 0) begun(Unpacker(frame.payload).number());
      return;
    case FrameKind::kept:
      return kept(node, Unpacker(frame.payload).number());
    case FrameKind::waits:
      if (from.ranks > 0) waits(unpack<std::vector<RankWaits>>(frame.payload));
      return;
    case FrameKind::failure: {
      Failure failure = unpack<Failure>(frame.payload);
      if (failure.code <= 0) throw Error(Exit::corrupt_link, fmt::format("a failure with code {}", failure.code));
      return failed(std::move(failure));
    }
    case FrameKind::mirror:
      return observer_.mirrored(frame.rank, frame.payload);
    case FrameKind::output:
      return observer_.output(frame.rank, false, frame.payload, false);
    case FrameKind::alive:
      return;
    default:
      throw Error(Exit::corrupt_link, fmt::format("a frame of kind {}", static_cast<uint32_t>(frame.kind)));
  }
}

void Head::lose(size_t node, Exit code, const char* how, const std::string& why) {
  if (verdict_) return;
  const NodePlace& place = topology_.nodes[node];
  if (place.ranks == 0) {
    members_[node - 1].close();
    return observer_.message(fmt::format(
        "prun: the connection to node {} ({}) {}; no rank runs there, and the job goes on\n", node, place.host, how));
  }
  if (on_one_host(options_) && why.empty())  // no network could have failed
    return failed(job_failed(
        static_cast<int>(Exit::rank_crash),
        fmt::format("the process that started {} was killed",
                    place.ranks == 1
                        ? fmt::format("rank {}", place.first_rank)
                        : fmt::format("ranks {}-{}", place.first_rank, place.first_rank + place.ranks - 1)),
        fmt::format("its connection to node 0 has ended without a word ({})", place.host), options_.command));
  failed(job_failed(static_cast<int>(code),
                    fmt::format("the connection to node {} ({}) {}, with its ranks {}-{}", node, place.host, how,
                                place.first_rank, place.first_rank + place.ranks - 1),
                    why.empty() ? "its launcher ended, or the network did" : why, options_.command));
}

Clock::time_point Head::deadline() const {
  Clock::time_point first = Clock::time_point::max();
  if (verdict_) return first;
  first = std::min({first, blame_.due(), late_.due()});
  for (size_t i = 0; i < members_.size(); ++i)
    if (members_[i].open()) first = std::min(first, pulses_[i].due());
  if (gathering()) first = std::min({first, next_report_, join_deadline()});
  return first;
}

void Head::expire(Clock::time_point now) {
  if (verdict_) return;
  if (now >= blame_.due()) decide(judge());
  if (!verdict_ && late_.look(now)) make_room();
  for (size_t i = 0; i < members_.size() && !verdict_; ++i) {
    if (!members_[i].open()) continue;
    pulses_[i].beat(members_[i], now);
    if (!pulses_[i].silent(now)) continue;
    lose(i + 1, Exit::hang, "is silent", kSilentLauncher);
  }
  if (verdict_ || !gathering()) return;
  if (now >= join_deadline()) {
    decide(job_failed(static_cast<int>(Exit::join),
                      fmt::format("{}/{} joined within {}; missing {}", arrived_, topology_.ranks(),
                                  human_seconds(options_.join_timeout_s), missing()),
                      "the missing ranks run, but did not arrive: stopped, or busy before they connect",
                      options_.command));
  } else if (now >= next_report_) {
    observer_.message(fmt::format("prun: {}/{} joined; missing {}\n", arrived_, topology_.ranks(), missing()));
    next_report_ = after(next_report_, options_.join_report_s);
  }
}

std::string Head::missing() const {
  std::vector<std::string> hosts;
  for (const NodePlace& place : topology_.nodes) {
    std::vector<std::string> ranks;
    for (int rank = place.first_rank; rank < place.first_rank + place.ranks; ++rank)
      if (!blobs_[rank]) ranks.push_back(std::to_string(rank));
    if (!ranks.empty()) hosts.push_back(fmt::format("{} on {}", join(ranks, ", "), place.host));
  }
  return join(hosts, "; ");
}

}  // namespace

std::unique_ptr<Coordination> make_head(JoinedNodes joined, const LaunchOptions& options, LaunchObserver& observer) {
  return std::make_unique<Head>(std::move(joined), options, observer);
}

}  // namespace prun
