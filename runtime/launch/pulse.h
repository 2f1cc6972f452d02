// Liveness of the other end of a channel between launchers: each end sends a heartbeat every kBeat; an end that is
// silent for kSilence is stopped, or its machine is lost. TCP alone does not detect a stopped process.
#pragma once
#include <algorithm>
#include <chrono>
#include <string>

#include "launch/control.h"

namespace prun {

inline constexpr char kSilentLauncher[] = "its launcher has said nothing for 10 s: it is stopped, or cannot run";

class Pulse {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kBeat{500};
  static constexpr std::chrono::seconds kSilence{10};

  // A longer link timeout allows longer silence.
  explicit Pulse(int link_timeout_s = 0) : silence_(std::max(kSilence, std::chrono::seconds(link_timeout_s))) {}
  void heard(Clock::time_point now) { heard_ = now; }
  // This process was suspended for `time`, so it could not receive.
  void slept(Clock::duration time) { heard_ += time; }
  // Launchers may be stopped while a job is paused.
  void pause(bool on, Clock::time_point now) {
    paused_ = on;
    heard_ = now;
  }
  Clock::time_point due() const { return paused_ ? beat_ : std::min(beat_, heard_ + silence_); }
  void beat(Channel& channel, Clock::time_point now) {
    if (now < beat_) return;
    beat_ = now + kBeat;
    channel.send(FrameKind::alive, -1, channel.encrypted() ? std::string(sdk::TlsStream::kFiller, '\0') : "");
  }
  bool silent(Clock::time_point now) const { return !paused_ && now >= heard_ + silence_; }

 private:
  Clock::time_point heard_ = Clock::now(), beat_ = Clock::now();
  std::chrono::seconds silence_;
  bool paused_ = false;
};

}  // namespace prun
