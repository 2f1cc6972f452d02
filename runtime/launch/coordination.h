// Agreement among the launchers of all nodes: exchanged blobs, and how the job ends. Node 0's launcher is the
// head and decides; the others are members: they pass everything on to the head and follow its verdict.
//
// Nothing here calls back: the supervisor feeds events in and asks for results after each round of its poll loop, so
// that no event is handled in the middle of another.
#pragma once
#include <poll.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launch/blame.h"
#include "launch/control.h"
#include "launch/failure.h"
#include "launch/launch.h"
#include "launch/topology.h"

namespace prun {

inline Clock::time_point after(Clock::time_point start, double seconds) {
  return start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

inline constexpr double kHeadLeaves = 5;  // seconds that a silent node waits for node 0 to end

inline constexpr int kForNodes = 1;  // FrameKind::stop: its rank where nodes that have come are the reason

struct JoinedNodes;

struct Verdict {
  std::optional<Failure> failure;  // none: all ranks returned 0
  bool begins_again = false;       // the nodes join once more
  bool told = false;               // another launcher says it on the screen that all share
};

class Coordination {
 public:
  virtual ~Coordination() = default;

  // Events of local ranks.
  virtual void gather(int rank, std::string blob) = 0;
  virtual void line(int rank, const std::string& text) = 0;
  virtual void abandon(int rank, const std::string& payload) = 0;  // of FrameKind::abandon
  virtual void ended(int rank, bool early) = 0;                    // returned 0, or stopped early as it was asked
  virtual void failed(Failure failure) = 0;
  virtual void stop(int signal) = 0;  // SIGTERM or SIGINT here asks for an early end
  virtual void pause(bool on) = 0;    // SIGTSTP and SIGCONT here stop the ranks of all nodes, and let them go on
  virtual void slept(Clock::duration time) = 0;  // this process did not run for so long
  // To node 0, for its observer; dropped while the connection is behind.
  virtual void mirror(int /*rank*/, const std::string& /*bytes*/) {}
  virtual void output(int /*rank*/, const std::string& /*text*/) {}
  virtual bool behind() { return false; }                // what was sent before has not left yet
  virtual void waits(std::vector<RankWaits> ranks) = 0;  // the answer to waits_asked
  virtual void begun(int64_t step) = 0;  // the answer to stop_asked: the last step that local ranks have begun

  virtual void kept(int64_t step) = 0;  // by all local ranks (LauncherClient::kept); grows

  // The channels to other launchers, for the poll loop.
  virtual std::vector<Channel*> channels() = 0;
  virtual void receive(Channel& channel) = 0;
  virtual Clock::time_point deadline() const = 0;  // when `expire` is due
  virtual void expire(Clock::time_point now) = 0;
  virtual std::vector<int> descriptors() { return {}; }  // of what else is open, which no rank may keep
  virtual void leave() {}           // after all else: waits until node 0 has said what there is to say
  virtual bool others_ended() = 0;  // after the verdict: no other launcher is waited for

  // Results: payloads of FrameKind::gathered that local ranks wait for; the end of the job, once it is decided.
  std::vector<std::string> take_gathered() { return std::exchange(gathered_, {}); }
  std::vector<int64_t> take_abandoned() { return std::exchange(abandoned_, {}); }  // steps (LauncherClient::abandoned)
  const std::optional<Verdict>& verdict() const { return verdict_; }
  bool stop_asked() const { return stop_asked_; }
  bool preempted() const { return stop_signal_ != 0; }  // SIGTERM or SIGINT has asked the job to end early
  int stop_signal() const { return stop_signal_; }      // SIGTERM or SIGINT; 0 = none
  bool paused() const { return paused_; }
  bool take_waits_asked() { return std::exchange(waits_asked_, false); }
  int64_t committed() const { return committed_; }  // LauncherClient::committed
  int64_t steps() const { return steps_; }          // that the job does, once all launchers have answered; 0: not known

 protected:
  // Handles FrameKind::stop from node 0.
  void follow_stop(const Frame& frame) {
    stop_asked_ = true;
    if (frame.rank != kForNodes && stop_signal_ == 0) stop_signal_ = static_cast<int>(Unpacker(frame.payload).number());
  }

  std::vector<std::string> gathered_;
  std::vector<int64_t> abandoned_;
  std::optional<Verdict> verdict_;
  bool stop_asked_ = false;
  int stop_signal_ = 0;
  bool waits_asked_ = false;
  bool paused_ = false;
  int64_t steps_ = 0;
  int64_t committed_ = 0;
};

// `options` and `observer` outlive the result.
std::unique_ptr<Coordination> make_head(JoinedNodes joined, const LaunchOptions& options, LaunchObserver& observer);

// `begins_again`: as node 0 has said, a job whose node 0 is lost may begin again.
std::unique_ptr<Coordination> make_member(Channel head, const LaunchOptions& options, bool begins_again);

}  // namespace prun
