#include "draw/ideal_timeline.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>

#include "draw/ideal_costs.h"
#include "draw/op_times.h"
#include "ir/walk.h"

namespace prun::draw {
namespace {

uint64_t nanoseconds(double units) { return static_cast<uint64_t>(std::llround(units * kIdealUnitNs)); }

// Gives ops their times as the walk comes to them; any legal order yields the same times.
class IdealClock : public WalkPolicy {
 public:
  explicit IdealClock(const Job& job) : job_(job) {
    for (const Program& program : job.classes) costs_.push_back(ideal_costs(program));
  }

  bool run(Walk& walk) {
    walk_ = &walk;
    return walk.run();
  }

  std::vector<StreamTimes> times() const {
    std::vector<StreamTimes> list;
    for (const auto& [rank, actor] : actors_)
      for (size_t s = 0; s < actor.streams.size(); ++s) list.push_back({rank, static_cast<int>(s), actor.streams[s]});
    return list;
  }

  void run(StreamCursor at) override {
    const double begin = ready(at), end = begin + cost(at);
    if (walk_->op(at).offers()) offers_[walk_->channel(at)].push_back(end);
    add(at, begin, end);
  }

  void meet(const std::vector<StreamCursor>& members) override {
    double last = 0, most = 0;
    for (const StreamCursor at : members) {
      last = std::max(last, ready(at));
      most = std::max(most, cost(at));
    }
    for (const StreamCursor at : members) add(at, ready(at), last + most);
  }

  void send(StreamCursor at) override {
    double begin = ready(at);
    const int channel = walk_->channel(at);
    if (std::deque<double>& offers = offers_[channel]; walk_->op(at).one_sided() && !offers.empty()) {
      begin = std::max(begin, offers.front());
      offers.pop_front();
    }
    const double end = begin + cost(at);
    under_way_[channel].push_back(end);
    add(at, begin, end);
  }

  void receive(StreamCursor at) override {
    double end = ready(at);
    std::deque<double>& sent = under_way_[walk_->channel(at)];
    if (!sent.empty()) {
      end = std::max(end, sent.front());
      sent.pop_front();
    }
    add(at, ready(at), end);
  }

  bool buffers(int) const override { return true; }

 private:
  struct Actor {
    Table<StreamId, std::vector<OpEvent>> streams;
    Table<StreamId, std::vector<double>> ends;
  };

  Actor& actor(StreamCursor at) {
    Actor& actor = actors_[walk_->rank(at)];
    const size_t streams = job_.program(walk_->rank(at)).step().streams.size();
    actor.streams.resize(streams);
    actor.ends.resize(streams);
    return actor;
  }

  double cost(StreamCursor at) {
    const int which = job_.class_of_rank[walk_->rank(at)];
    return costs_[which][at.stream.index()][walk_->ref(at).index];
  }

  // When the op before it on its stream has ended, and when its edges are satisfied, too.
  double stream_end(StreamCursor at) {
    const std::vector<double>& ends = actor(at).ends[at.stream];
    return ends.empty() ? 0 : ends.back();
  }
  double ready(StreamCursor at) {
    double time = stream_end(at);
    for (const Edge& edge : walk_->op(at).waits)
      if (edge.back == 0) time = std::max(time, actor(at).ends[edge.stream][edge.index]);
    return time;
  }

  void add(StreamCursor at, double begin, double end) {
    const auto index = static_cast<uint32_t>(walk_->ref(at).index);
    actor(at).streams[at.stream].push_back(
        {0, index, nanoseconds(stream_end(at)), nanoseconds(begin), nanoseconds(end)});
    actor(at).ends[at.stream].push_back(end);
  }

  const Job& job_;
  Walk* walk_ = nullptr;
  std::vector<OpCosts> costs_;  // by class
  std::map<int, Actor> actors_;
  std::map<int, std::deque<double>> under_way_, offers_;  // by channel: when sent, when offered
};

}  // namespace

Timeline ideal_timeline(const Job& job) {
  std::vector<const Body*> bodies;
  for (const Program& program : job.classes) bodies.push_back(&program.step());
  IdealClock clock(job);
  Walk walk(job, bodies, Walk::By::class_if_alike, clock);
  PRUN_CHECK(clock.run(walk), "a verified job ends");
  Timeline timeline = timeline_of(job, clock.times());
  timeline.name = "schedule";
  timeline.source = job.classes.front().name;
  timeline.unit_ns = kIdealUnitNs;
  return timeline;
}

}  // namespace prun::draw
