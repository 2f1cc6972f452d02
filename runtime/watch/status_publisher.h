// What `prun status` shows of a running job, written by its launcher twice a second; seldomer where writing takes long.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "ir/program.h"
#include "watch/rank_watch.h"
#include "watch/status_folder.h"
#include "watch/steps.h"

namespace prun {

class StatusPublisher {
 public:
  // `about` holds what does not change: id, plan, arguments, folder, nodes. Throws as StatusFolder::open.
  void open(nlohmann::ordered_json about, const std::string& program);
  bool is_open() const { return folder_.is_open(); }
  void step(const MergedStep& step);
  void tick(const RankWatch& watch, const Job& job, const std::vector<int>& slow);

 private:
  nlohmann::ordered_json status(const Flight& flight, const Job& job, const std::vector<int>& slow);

  StatusFolder folder_;
  nlohmann::ordered_json about_;
  MergedStep latest_, evaluated_;
  uint64_t steps_ = 0, steps_before_ = 0, before_ns_ = 0, next_ns_ = 0;
  double step_s_ = 0;  // of the steps since the last time
};

}  // namespace prun
