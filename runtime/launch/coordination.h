// Agreement among the launchers of all nodes: the all-gather of blobs, and the end of the job.
//
//     rank <-socketpair-> member (launcher of node i) <-TCP-> head (launcher of node 0)
//             events                 forwards                 decides: gathered, stop, verdict
//
// There are no callbacks: the supervisor feeds in events and collects results after each iteration of its poll loop, so
// that events do not nest.
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

inline constexpr double kHeadLeaves = 5;  // seconds that a silent node waits for node 0 to exit

inline constexpr int kForNodes = 1;  // rank field of FrameKind::stop if late nodes are the reason

struct JoinedNodes;

struct Verdict {
  std::optional<Failure> failure;  // empty: all ranks returned 0
  bool begins_again = false;       // the nodes join again
  bool told = false;               // another launcher prints it on the shared screen
};

class Coordination {
 public:
  virtual ~Coordination() = default;

  // Events of local ranks.
  virtual void gather(int rank, std::string blob) = 0;
  virtual void line(int rank, const std::string& text) = 0;
  virtual void abandon(int rank, const std::string& payload) = 0;  // payload of FrameKind::abandon
  virtual void ended(int rank, bool early) = 0;                    // returned 0, or stopped early as requested
  virtual void failed(Failure failure) = 0;
  virtual void stop(int signal) = 0;             // requests an early end because of SIGTERM or SIGINT here
  virtual void pause(bool on) = 0;               // SIGTSTP here stops the ranks of all nodes, SIGCONT continues them
  virtual void slept(Clock::duration time) = 0;  // this process was suspended for this time
  // Sent to node 0 for its observer; output is dropped while the connection is behind.
  virtual void mirror(int /*rank*/, const std::string& /*bytes*/) {}
  virtual void output(int /*rank*/, const std::string& /*text*/) {}
  virtual bool behind() { return false; }                // sent bytes are still queued
  virtual void waits(std::vector<RankWaits> ranks) = 0;  // the answer to take_waits_asked
  virtual void begun(int64_t step) = 0;  // the answer to stop_asked: the last step that local ranks have begun

  virtual void kept(int64_t step) = 0;  // newest commit held by all local ranks (LauncherClient::kept); grows

  // The channels to other launchers, for the poll loop.
  virtual std::vector<Channel*> channels() = 0;
  virtual void receive(Channel& channel) = 0;
  virtual Clock::time_point deadline() const = 0;  // when `expire` is due
  virtual void expire(Clock::time_point now) = 0;
  virtual std::vector<int> descriptors() { return {}; }  // other open descriptors, which ranks must close
  virtual void leave() {}                                // called last: waits until node 0 has printed its messages
  virtual bool others_ended() = 0;                       // after the verdict: no other launcher remains to wait for

  // Results: payloads of FrameKind::gathered for local ranks; the end of the job, once decided.
  std::vector<std::string> take_gathered() { return std::exchange(gathered_, {}); }
  std::vector<int64_t> take_abandoned() { return std::exchange(abandoned_, {}); }  // steps (LauncherClient::abandoned)
  const std::optional<Verdict>& verdict() const { return verdict_; }
  bool stop_asked() const { return stop_asked_; }
  bool preempted() const { return stop_signal_ != 0; }  // SIGTERM or SIGINT has requested an early end
  int stop_signal() const { return stop_signal_; }      // SIGTERM or SIGINT; 0 = none
  bool paused() const { return paused_; }
  bool take_waits_asked() { return std::exchange(waits_asked_, false); }
  int64_t committed() const { return committed_; }  // LauncherClient::committed
  int64_t steps() const { return steps_; }          // steps in the job, once all launchers have answered; 0: unknown

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

// Creates the head. `options` and `observer` outlive the result.
std::unique_ptr<Coordination> make_head(JoinedNodes joined, const LaunchOptions& options, LaunchObserver& observer);

// Creates a member. `begins_again`: whether the job may begin again after node 0 is lost, as node 0 has announced.
std::unique_ptr<Coordination> make_member(Channel head, const LaunchOptions& options, bool begins_again);

}  // namespace prun
