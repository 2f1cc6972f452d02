// Discrete-event simulation of a job under a virtual clock: which ops overlap, and when each ends.
//
// An op begins when its stream and its edges permit it, a collective when its last member has arrived. Rates change
// only at events: compute slows down while transfers run, and transfers that share a rank's link divide its bandwidth.
#pragma once
#include <array>
#include <deque>
#include <map>
#include <optional>
#include <queue>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "ir/per_kind.h"
#include "ir/walk.h"
#include "simulate/op_cost.h"
#include "simulate/rank_colours.h"

namespace prun::simulate {

inline constexpr int kLevels = 4;  // the bus and up to three levels of network

// Seconds of a step by activity, for one colour of ranks.
struct Usage {
  std::array<double, 4> computing = {};           // by Bound: time in compute, with or without overlapped transfers
  std::array<double, kLevels> exposed = {};       // a transfer of this level ran without compute
  double copying = 0;                             // only copies between host and device
  double idle = 0;                                // nothing ran
  std::array<double, kLevels> transferring = {};  // a transfer of this level ran
  std::array<double, kLevels> sent_bytes = {};
  std::map<int, double> waited_for;  // seconds, by the colour whose arrival ended the wait
  double flops = 0;                  // FLOPs of executed GEMMs
  double model_flops = 0;            // FLOPs of the model
  double replicated_flops = 0;       // FLOPs of the model that other ranks compute, too, and that count there
  std::map<std::string_view, double> op_seconds;  // by op kind: undisturbed duration
};

// The execution of an op, for timelines.
struct OpSpan {
  OpRef op;
  double ready = 0, begin = 0, end = 0;
  bool of_step_before = false;  // remainder of an op carried over from the previous step
};

// The remainder of an op that is carried over the end of a step (ir/carried.h).
struct LeftOver {
  std::vector<StreamCursor> at;  // streams of its members
  std::vector<OpRef> ops;        // the op of each member
  bool computes = false;
  Bound bound = Bound::nothing;  // bound of a compute op
  int level = 0;                 // level of a collective
  double seconds = 0;
};

class Clock : private WalkPolicy {
 public:
  // All arguments outlive the clock.
  Clock(const Job& job, const Cluster& cluster, const std::vector<RankPlace>& places, const RankColours& colours,
        bool keep_spans = false, std::vector<double> slowness = {});
  // Sets the carried-over ops of the previous step. Call before run().
  void begin_with(const std::vector<LeftOver>& left);
  double run();  // Returns the seconds of one step, up to the end of all ops except carried-over ones.
  // Returns the carried-over ops, in the order in which they continue. Call after run().
  std::vector<LeftOver> left_over() const;
  const std::vector<Usage>& usage() const { return usage_; }
  const std::vector<std::vector<OpSpan>>& spans() const { return spans_; }  // by colour, in the order of their ends

 private:
  enum class Kind : uint8_t { compute, copy, collective, message };
  using Members = std::span<const StreamCursor>;
  struct Task {
    std::vector<StreamCursor> at;
    Kind kind = Kind::compute;
    Bound bound = Bound::nothing;
    int level = 0;
    double begin = 0, left = 0, rate = 1, since = 0, end = 0;
    int version = 0;
    bool ended = false;
    std::vector<OpRef> ops;  // ops of its members
    bool of_step_before = false;
    double left_at_end = 0;  // seconds left at the end of the step, for carried-over tasks
    int occupied = 0;        // multiprocessors of a transfer
    int64_t traffic = 0;     // bytes/s of device memory of a transfer
  };
  struct Event {
    double end;
    int task, version;
    bool operator>(const Event& other) const { return std::tie(end, task) > std::tie(other.end, other.task); }
  };
  struct ComputeCost {
    OpTime time;
    double* sum = nullptr;  // Usage::op_seconds of the op
  };
  struct Actor {
    explicit Actor(const Program& program) : costs(program) {}
    PerKind<ComputeCost> costs;
    std::vector<int> running;  // tasks
    std::array<int, kLevels> out = {}, in = {};
    int computing = 0, copying = 0;
    int occupied = 0;     // multiprocessors of its transfers
    int64_t traffic = 0;  // bytes/s of device memory of its transfers
    double accounted = 0;
    bool touched = false;
    Table<StreamId, std::vector<double>> ends;  // by op
    Table<StreamId, int> ended;                 // number of ops that end within the step
    std::map<OpRef, double> before;             // carried-over ops of the previous step: their end; -1 = running
  };

  bool takes_time() const override { return true; }
  void run(StreamCursor at) override;
  void meet(const std::vector<StreamCursor>& members) override;
  void send(StreamCursor at) override;
  void receive(StreamCursor at) override;

  const Program& program(StreamCursor at) const;
  const DeviceModel& device(StreamCursor at) const;
  // Begins the task on the streams of `members`.
  void begin(Task task, Members members, double seconds);
  void join_task(int task, StreamCursor at);
  void leave(int task);
  void account(Actor& actor, Usage& usage) const;
  void touch(int actor);
  double rate_of(const Task& task) const;
  double share_of_cores(StreamCursor at) const;
  double slowdown_of(const Task& task) const;
  void settle();
  double ready_time(StreamCursor at) const;
  bool awaits_left_over(const LeftOver& over) const;
  void begin_left_over();
  bool awaits_step_before(StreamCursor at) const;
  bool put_off(Members members);
  void take_up();
  void end_step();
  double wake_time(StreamCursor at) const;
  void collective(Members members);
  void finish(StreamCursor at, double began);

  const Job& job_;
  const Cluster& cluster_;
  const std::vector<RankPlace>& places_;
  const RankColours& colours_;
  const bool keep_spans_;
  const std::vector<double> slowness_;  // by colour; empty = 1
  Job walked_;                          // classes are colours
  std::vector<const Body*> bodies_;
  std::vector<Actor> actors_;
  std::vector<Usage> usage_;
  std::vector<std::vector<OpSpan>> spans_;
  std::vector<Task> tasks_;
  std::vector<std::pair<StreamCursor, double>> instant_;  // ops that ended at the instant of their begin
  std::vector<int> touched_;                              // actors
  std::vector<int> settling_;                             // scratch of settle
  std::map<int, std::deque<int>> messages_;               // by channel: tasks without a receiver yet
  std::map<std::pair<int, std::string>, GroupShape> shapes_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<LeftOver> left_before_;               // carried over from the previous step, not yet begun
  std::vector<std::vector<StreamCursor>> put_off_;  // ops that wait for carried-over ops of the previous step
  int64_t left_ = 0;                                // ops that must end before the step ends
  double now_ = 0, step_s_ = -1;                    // -1 = the step is running
  std::optional<Walk> walk_;
};

}  // namespace prun::simulate
