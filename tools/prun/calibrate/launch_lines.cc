#include "calibrate/launch_lines.h"

#include <fmt/format.h>

namespace prun {
namespace {

class LineCollector final : public LaunchObserver {
 public:
  void started(const std::vector<int>&, const std::vector<int>&, const std::vector<void*>&) override {}
  void tick() override {}
  void line(int, const std::string& text) override { lines.push_back(text); }
  std::string where(int) override { return "calibrating"; }

  std::vector<std::string> lines;
};

}  // namespace

std::vector<std::string> launch_lines(const LaunchOptions& options, const std::string& job,
                                      const Launch::RankMain& rank_main) {
  LineCollector collector;
  Launch launch(options, collector);
  const int code = launch.run(job, rank_main);
  if (code != 0) throw Error(static_cast<Exit>(code), "a rank that measured has failed, see above");
  return collector.lines;
}

}  // namespace prun
