// Ranks report norms and the launcher writes step rows, so a report may precede the row of an earlier step: the dropped
// rows are not necessarily the last ones.
#include "watch/metrics_file.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "base/error.h"
#include "base/text.h"

namespace prun {
namespace {

std::optional<int64_t> step_of(const std::string& line) {
  const nlohmann::json row = nlohmann::json::parse(line, nullptr, false);
  if (!row.is_object()) return std::nullopt;
  const auto step = row.find("step");
  return step != row.end() && step->is_number_integer() ? std::optional(step->get<int64_t>()) : std::nullopt;
}

// Waits for the lock, which ranks of a killed run hold until they detect its end.
bool lock(int descriptor) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

}  // namespace

void check_metrics_options(const MetricsSettings& s, const std::string& checkpoints) {
  if (s.overwrite && s.path.empty() && checkpoints.empty())
    throw usage_error("--overwrite is for --metrics FILE and --checkpoint DIR, which are both missing");
}

MetricsFile::MetricsFile(const MetricsSettings& s, int64_t first_step)
    : output_(s.path, "metrics", standard_stream(s.path)) {
  struct stat info;
  if (standard_stream(s.path) >= 0 || fstat(output_.descriptor(), &info) != 0 || !S_ISREG(info.st_mode)) return;
  if (!lock(output_.descriptor()))
    throw usage_error(fmt::format("another run writes its metrics to {}: give this one a file of its own", s.path));
  refuse_other_contents(s.path, "metrics", "{\"step\":");
  if (info.st_size == 0 || s.overwrite) return;
  if (!s.resumes)
    throw usage_error(fmt::format("{} has the metrics of another run: name another file, or add --overwrite", s.path));
  read_rows(first_step);
}

// Keeps the file up to the first dropped row, and copies later kept rows after it.
void MetricsFile::read_rows(int64_t first_step) {
  std::ifstream file(output_.path());
  int64_t number = 0, dropped = 0, last = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (file.eof()) break;  // the previous run was killed within this line
    const std::optional<int64_t> step = step_of(line);
    if (!step)
      throw usage_error(
          fmt::format("{}:{} is not a row of metrics; name another file, or add --overwrite", output_.path(), number));
    if (*step > first_step) {
      ++dropped;
      continue;
    }
    last = std::max(last, *step);
    if (dropped == 0)
      keep_ += std::ssize(line) + 1;
    else
      after_ += line + "\n";
  }
  if (dropped > 0)
    remark_ = fmt::format("{}: {} of steps after {}, which come again, are replaced", output_.path(),
                          counted(dropped, "row"), first_step);
  else if (last < first_step)
    remark_ = fmt::format("{} has no rows of steps {} to {}: the run before ended before it wrote them", output_.path(),
                          last + 1, first_step);
}

void MetricsFile::begin() {
  output_.begin(keep_);
  output_.write(after_);
}

}  // namespace prun
