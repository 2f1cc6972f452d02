#include "watch/view.h"

#include <fmt/format.h>

#include "watch/output_file.h"

namespace prun {

RecorderHeader* RunningJob::recorder_of(int rank) const {
  for (size_t i = 0; i < ranks.size(); ++i)
    if (ranks[i] == rank) return recorders[i];
  return nullptr;
}

std::vector<IncompleteOutput> losses_of(const OutputFile& file) {
  if (file.failure().empty()) return {};
  return {{fmt::format("{} is incomplete: {}", file.path(), file.failure())}};
}

}  // namespace prun
