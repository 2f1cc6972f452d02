// A member forwards everything to the head and follows its verdict; without a head it ends its ranks itself.
#include <fmt/format.h>

#include "launch/coordination.h"
#include "launch/pulse.h"

namespace prun {
namespace {

constexpr auto kHeadAnswers = std::chrono::seconds(4);  // longer than the head's settling times (blame.cc)

class Member : public Coordination {
 public:
  Member(Channel head, const LaunchOptions& options, bool begins_again)
      : head_(std::move(head)), options_(options), begins_again_(begins_again) {}

  void gather(int rank, std::string blob) override { head_.send(FrameKind::gather, rank, blob); }
  void line(int rank, const std::string& text) override { head_.send(FrameKind::line, rank, text); }
  void abandon(int rank, const std::string& payload) override { head_.send(FrameKind::abandon, rank, payload); }
  void ended(int rank, bool early) override { head_.send(FrameKind::ended, rank, early ? "early" : ""); }

  void mirror(int rank, const std::string& bytes) override {
    if (head_.open()) head_.send(FrameKind::mirror, rank, bytes);
  }
  void output(int rank, const std::string& text) override {
    if (head_.open() && !behind()) head_.send(FrameKind::output, rank, text);
  }
  bool behind() override { return head_.wants_write(); }

  void pause(bool on) override { head_.send(FrameKind::pause, on ? 1 : 0, ""); }
  void slept(Clock::duration time) override { pulse_.slept(time); }
  void stop(int signal) override { head_.send(FrameKind::stop, -1, Packer().number(signal).take()); }
  void waits(std::vector<RankWaits> ranks) override { head_.send(FrameKind::waits, -1, pack(ranks)); }
  void begun(int64_t step) override { head_.send(FrameKind::begun, -1, Packer().number(step).take()); }

  void kept(int64_t step) override { head_.send(FrameKind::kept, -1, Packer().number(step).take()); }

  void failed(Failure failure) override {
    if (verdict_) return;
    head_.send(FrameKind::failure, -1, pack(failure));
    if (unanswered_) {
      if (failure.weight > unanswered_->weight) unanswered_ = std::move(failure);
      return;
    }
    unanswered_ = std::move(failure);
    answer_due_ = Clock::now() + kHeadAnswers;
  }

  std::vector<Channel*> channels() override {
    return head_.open() ? std::vector<Channel*>{&head_} : std::vector<Channel*>{};
  }

  void receive(Channel&) override {
    std::vector<Frame> frames;
    const bool alive = head_.receive(frames);
    pulse_.heard(Clock::now());
    for (Frame& frame : frames) {
      if (frame.kind == FrameKind::gathered) gathered_.push_back(std::move(frame.payload));
      if (frame.kind == FrameKind::stop) follow_stop(frame);
      if (frame.kind == FrameKind::ask_waits) waits_asked_ = true;
      if (frame.kind == FrameKind::pause) pulse_.pause(paused_ = frame.rank != 0, Clock::now());
      if (frame.kind == FrameKind::steps) steps_ = Unpacker(frame.payload).number();
      if (frame.kind == FrameKind::committed) committed_ = Unpacker(frame.payload).number();
      if (frame.kind == FrameKind::abandoned) abandoned_.push_back(Unpacker(frame.payload).number());
      if (frame.kind == FrameKind::verdict) follow(frame.payload);
    }
    if (!alive) lose_head(Exit::corrupt_link, "is lost", head_.trouble());
  }

  bool others_ended() override { return true; }
  void leave() override {
    if (head_.open()) wait_for_end(head_.fd(), kHeadLeaves);
  }
  Clock::time_point deadline() const override {
    if (verdict_) return Clock::time_point::max();
    return unanswered_ ? std::min(answer_due_, pulse_.due()) : pulse_.due();
  }
  void expire(Clock::time_point now) override {
    if (verdict_) return;
    pulse_.beat(head_, now);
    if (pulse_.silent(now)) lose_head(Exit::hang, "is silent", kSilentLauncher);
    if (unanswered_ && !verdict_ && now >= answer_due_) verdict_ = Verdict{std::move(unanswered_)};
  }

 private:
  void lose_head(Exit code, const char* how, const std::string& why) {
    head_.close();
    if (verdict_) return;
    verdict_ = Verdict{
        job_failed(static_cast<int>(code), fmt::format("the connection to node 0 ({}) {}", options_.rendezvous, how),
                   why.empty() ? "its launcher ended, or the network did" : why, options_.command),
        begins_again_};
    // One launcher per host prints it.
    verdict_->told = options_.silent && options_.host_first_rank > 0 && options_.node_rank > 1;
  }

  // Shortens the failure, because node 0's screen has the whole message.
  void follow(const std::string& payload) {
    verdict_ = Verdict{};
    Unpacker unpacker(payload);
    verdict_->begins_again = unpacker.number() != 0;
    const std::string packed = unpacker.text();
    if (packed.empty()) return;
    Failure told = unpack<Failure>(packed), brief;
    brief.code = told.code;
    brief.what = "node 0 has ended the job: " + told.what;
    brief.who = told.who;
    verdict_->failure = std::move(brief);
    verdict_->told = options_.silent;
  }

  Channel head_;
  const LaunchOptions& options_;
  Pulse pulse_{options_.link_timeout_s};
  bool begins_again_;
  std::optional<Failure> unanswered_;
  Clock::time_point answer_due_;
};

}  // namespace

std::unique_ptr<Coordination> make_member(Channel head, const LaunchOptions& options, bool begins_again) {
  return std::make_unique<Member>(std::move(head), options, begins_again);
}

}  // namespace prun
