// The walk of a job under a virtual clock: what runs beside what, and until when.
//
// An op begins when its stream and its edges let it, a collective when its last member has come. Between two events
// nothing changes its rate: compute is slower beside transfers, transfers that share a rank's link divide it.
#pragma once
#include <array>
#include <deque>
#include <map>
#include <optional>
#include <queue>
#include <string_view>
#include <tuple>
#include <vector>

#include "ir/walk.h"
#include "simulate/op_cost.h"
#include "simulate/rank_colours.h"

namespace prun::simulate {

inline constexpr int kLevels = 4;  // the bus and up to three levels of network

// How one colour of ranks spends a step, in seconds.
struct Usage {
  std::array<double, 4> computing = {};           // by Bound: of these ops that computed alone or beside transfers
  std::array<double, kLevels> exposed = {};       // a transfer of this level ran, and nothing computed
  double copying = 0;                             // between host and device, and nothing else
  double idle = 0;                                // waited
  std::array<double, kLevels> transferring = {};  // a transfer of this level ran
  std::array<double, kLevels> sent_bytes = {};
  std::map<int, double> waited_for;               // colour whose arrival ended a wait, seconds
  double flops = 0;                               // of products that ran
  double model_flops = 0;                         // of the model's
  std::map<std::string_view, double> op_seconds;  // by kind of op: of each by itself
};

// An op as it ran, for timelines.
struct OpSpan {
  OpRef op;
  double ready = 0, begin = 0, end = 0;
  bool of_step_before = false;  // what was left of it when the step began
};

// What is left of an op that goes on over the end of a step (ir/carried.h): seconds by itself.
struct LeftOver {
  std::vector<StreamCursor> at;  // of its members
  std::vector<OpRef> ops;        // what it is to each of them
  bool computes = false;
  Bound bound = Bound::nothing;  // of one that computes
  int level = 0;                 // of a collective
  double seconds = 0;
};

class Clock : private WalkPolicy {
 public:
  // All arguments outlive the clock.
  Clock(const Job& job, const Cluster& cluster, const std::vector<RankPlace>& places, const RankColours& colours,
        bool keep_spans = false, std::vector<double> slowness = {});
  // Before run(): what the step before has left.
  void begin_with(const std::vector<LeftOver>& left);
  double run();  // seconds of one step: until all has ended but for what goes on
  // After run(): what is left then, in the order in which it goes on.
  std::vector<LeftOver> left_over() const;
  const std::vector<Usage>& usage() const { return usage_; }
  const std::vector<std::vector<OpSpan>>& spans() const { return spans_; }  // by colour, in the order of their ends

 private:
  enum class Kind : uint8_t { compute, copy, collective, message };
  struct Task {
    std::vector<StreamCursor> at;
    Kind kind = Kind::compute;
    Bound bound = Bound::nothing;
    int level = 0;
    double begin = 0, left = 0, rate = 1, since = 0, end = 0;
    int version = 0;
    bool ended = false;
    std::vector<OpRef> ops;  // of its members
    bool of_step_before = false;
    double left_at_end = 0;  // of the step; of what goes on
  };
  struct Event {
    double end;
    int task, version;
    bool operator>(const Event& other) const { return std::tie(end, task) > std::tie(other.end, other.task); }
  };
  struct Actor {
    std::vector<int> running;  // tasks
    std::array<int, kLevels> out = {}, in = {};
    int computing = 0, copying = 0;
    double accounted = 0;
    bool touched = false;
    Table<StreamId, std::vector<double>> ends;  // by op
    Table<StreamId, int> ended;                 // ops that have ended when a step has
    std::map<OpRef, double> before;             // what of the step before had not: when it ends; -1: not yet
  };

  bool takes_time() const override { return true; }
  void run(StreamCursor at) override;
  void meet(const std::vector<StreamCursor>& members) override;
  void send(StreamCursor at) override;
  void receive(StreamCursor at) override;

  const Program& program(StreamCursor at) const;
  const DeviceModel& device(StreamCursor at) const;
  void begin(Task task, double seconds);
  void join_task(int task, StreamCursor at);
  void leave(int task);
  void account(Actor& actor, Usage& usage) const;
  void touch(int actor);
  double rate_of(const Task& task) const;
  double share_of_cores(StreamCursor at) const;
  void settle();
  double ready_time(StreamCursor at) const;
  bool awaits_left_over(const LeftOver& over) const;
  void begin_left_over();
  bool awaits_step_before(StreamCursor at) const;
  bool put_off(const std::vector<StreamCursor>& members);
  void take_up();
  void end_step();
  double wake_time(StreamCursor at) const;
  void collective(const std::vector<StreamCursor>& members);
  void finish(StreamCursor at, double began);

  const Job& job_;
  const Cluster& cluster_;
  const std::vector<RankPlace>& places_;
  const RankColours& colours_;
  const bool keep_spans_;
  const std::vector<double> slowness_;  // by colour; empty: 1
  Job walked_;                          // classes are colours
  std::vector<const Body*> bodies_;
  std::vector<Actor> actors_;
  std::vector<Usage> usage_;
  std::vector<std::vector<OpSpan>> spans_;
  std::vector<Task> tasks_;
  std::vector<std::pair<StreamCursor, double>> instant_;  // have ended as soon as they began
  std::vector<int> touched_;
  std::map<int, std::deque<int>> messages_;  // by channel: tasks whose receiver has not come
  std::map<std::pair<int, std::string>, GroupShape> shapes_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<LeftOver> left_before_;               // of the step before, not yet begun
  std::vector<std::vector<StreamCursor>> put_off_;  // begin as soon as what the step before has left lets them
  int64_t left_ = 0;                                // ops without which a step does not end
  double now_ = 0, step_s_ = -1;                    // -1: it has not ended
  std::optional<Walk> walk_;
};

}  // namespace prun::simulate
