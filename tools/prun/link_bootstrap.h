// How ranks that prun launched find each other: through the launcher.
#pragma once
#include <string>
#include <vector>

#include "comm/comm.h"
#include "launch/launch.h"

namespace prun {

class LinkBootstrap final : public Bootstrap {
 public:
  explicit LinkBootstrap(RankLink& link) : link_(link) {}
  std::vector<std::string> all_gather(const std::string& blob) override { return link_.all_gather(blob); }
  bool aborted() const override { return link_.aborted(); }

 private:
  RankLink& link_;
};

}  // namespace prun
