// A member passes everything on to the head and follows its verdict; without a head it ends its ranks by itself.
#include <fmt/format.h>

#include "launch/coordination.h"

namespace prun {
namespace {

constexpr auto kHeadAnswers = std::chrono::seconds(2);

class Member : public Coordination {
 public:
  Member(Channel head, const LaunchOptions& options, bool begins_again)
      : head_(std::move(head)), options_(options), begins_again_(begins_again) {}

  void gather(int rank, std::string blob) override { head_.send(FrameKind::gather, rank, blob); }
  void line(int rank, const std::string& text) override { head_.send(FrameKind::line, rank, text); }
  void ended(int rank) override { head_.send(FrameKind::ended, rank, ""); }

  void mirror(int rank, const std::string& bytes) override {
    if (head_.open()) head_.send(FrameKind::mirror, rank, bytes);
  }
  void output(int rank, const std::string& text) override {
    if (head_.open() && !behind()) head_.send(FrameKind::output, rank, text);
  }
  bool behind() override { return head_.wants_write(); }

  void stop() override { head_.send(FrameKind::stop, -1, ""); }
  void begun(int64_t step) override { head_.send(FrameKind::begun, -1, Packer().number(step).take()); }

  void failed(Failure failure) override {
    if (verdict_) return;
    head_.send(FrameKind::failure, -1, pack(failure));
    if (unanswered_) return;
    unanswered_ = std::move(failure);
    answer_due_ = Clock::now() + kHeadAnswers;
  }

  std::vector<Channel*> channels() override {
    return head_.open() ? std::vector<Channel*>{&head_} : std::vector<Channel*>{};
  }

  void receive(Channel&) override {
    std::vector<Frame> frames;
    bool alive = head_.receive(frames);
    for (Frame& frame : frames) {
      if (frame.kind == FrameKind::gathered) gathered_.push_back(std::move(frame.payload));
      if (frame.kind == FrameKind::stop) stop_asked_ = true;
      if (frame.kind == FrameKind::steps) steps_ = Unpacker(frame.payload).number();
      if (frame.kind == FrameKind::verdict) follow(frame.payload);
    }
    if (alive) return;
    head_.close();
    if (verdict_) return;
    verdict_ = Verdict{job_failed(static_cast<int>(Exit::corrupt_link),
                                  fmt::format("the connection to node 0 ({}) is lost", options_.rendezvous),
                                  "its launcher ended, or the network did", options_.command),
                       begins_again_};
    verdict_->told = options_.silent && options_.host_first_rank > 0 && options_.node_rank > 1;  // one a host says it
  }

  bool others_ended() override { return true; }
  void leave() override {
    if (head_.open()) wait_for_end(head_.fd(), kHeadLeaves);
  }
  Clock::time_point deadline() const override {
    return unanswered_ && !verdict_ ? answer_due_ : Clock::time_point::max();
  }
  void expire(Clock::time_point now) override {
    if (unanswered_ && !verdict_ && now >= answer_due_) verdict_ = Verdict{std::move(unanswered_)};
  }

 private:
  // The whole message stands on node 0's screen.
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
  bool begins_again_;
  std::optional<Failure> unanswered_;
  Clock::time_point answer_due_;
};

}  // namespace

std::unique_ptr<Coordination> make_member(Channel head, const LaunchOptions& options, bool begins_again) {
  return std::make_unique<Member>(std::move(head), options, begins_again);
}

}  // namespace prun
