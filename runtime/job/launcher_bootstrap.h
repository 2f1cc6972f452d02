// Bootstrap of the ranks' connections through the launcher.
#pragma once
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "exec/recorder.h"
#include "launch/launch.h"

namespace prun {

class LauncherBootstrap final : public Bootstrap {
 public:
  LauncherBootstrap(LauncherClient& launcher, RecorderHeader* recorder) : launcher_(launcher), recorder_(recorder) {}
  std::vector<std::string> all_gather(const std::string& blob) override { return launcher_.all_gather(blob); }
  bool aborted() const override { return launcher_.aborted(); }
  void doing(const std::string& what) override {
    if (recorder_ != nullptr) std::strncpy(recorder_->doing, what.c_str(), sizeof recorder_->doing - 1);
  }
  void waits_for(const std::vector<int>& ranks) override { launcher_.waits_for(ranks); }
  void fatal(const Error& error) override {
    launcher_.fail(error, "");
    _exit(static_cast<int>(error.code()));
  }

 private:
  LauncherClient& launcher_;
  RecorderHeader* recorder_;
};

}  // namespace prun
