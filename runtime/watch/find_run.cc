#include "watch/find_run.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "watch/run_folder.h"

namespace prun {
namespace {

namespace fs = std::filesystem;

bool is_run(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / kRunFile, error);
}

std::string text_of(const PublishedJob& job, const char* key) {
  return job.status.is_object() && job.status.contains(key) && job.status[key].is_string() ? job.status[key] : "";
}

std::string pid_of(const PublishedJob& job) { return fs::path(job.path).filename().string(); }

bool same_folder(const std::string& one, const std::string& other) {
  std::error_code error;
  return !one.empty() && !other.empty() && fs::equivalent(one, other, error);
}

FoundRun run_of(const PublishedJob& job) { return {text_of(job, "id"), text_of(job, "folder"), job}; }

double updated(const PublishedJob& job) {
  return job.status.is_object() && job.status.contains("updated") ? job.status["updated"].get<double>() : 0;
}

double written(const fs::path& folder) {
  struct stat info {};
  return stat((folder / kRunFile).c_str(), &info) == 0 ? static_cast<double>(info.st_mtim.tv_sec) : 0;
}

// A run without a flight file may belong to a killed launcher.
FoundRun run_in(const fs::path& folder, const std::vector<PublishedJob>& killed) {
  FoundRun run{folder.filename().empty() ? folder.parent_path().filename().string() : folder.filename().string(),
               folder.string(), std::nullopt};
  if (fs::exists(folder / kFlightFile)) return run;
  for (const PublishedJob& job : killed)
    if (same_folder(run.folder, text_of(job, "folder"))) run.job = job;
  return run;
}

FoundRun latest(const std::vector<PublishedJob>& jobs, const std::vector<PublishedJob>& killed) {
  std::vector<std::string> names;
  for (const PublishedJob& job : jobs) names.push_back(fmt::format("{} ({})", pid_of(job), text_of(job, "plan")));
  if (jobs.size() == 1) return run_of(jobs.front());
  if (jobs.size() > 1) throw usage_error(fmt::format("which run? These go on: {}", join(names, ", ")));
  fs::path last;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(kRunsFolder, error))
    if (is_run(entry.path()) && (last.empty() || last < entry.path())) last = entry.path();
  const auto newest = std::max_element(killed.begin(), killed.end(), [](const PublishedJob& a, const PublishedJob& b) {
    return updated(a) < updated(b);
  });
  if (newest != killed.end() && (last.empty() || updated(*newest) > written(last))) return run_of(*newest);
  if (last.empty())
    throw usage_error(
        fmt::format("no job of yours runs here, and {} has no run; name a run, or a folder of runs", kRunsFolder));
  return run_in(last, killed);
}

}  // namespace

FoundRun find_run(const std::string& word) {
  std::vector<PublishedJob> jobs, killed;
  for (PublishedJob& job : published_jobs())
    if (job.running)
      jobs.push_back(std::move(job));
    else if (!last_flight(job).empty())
      killed.push_back(std::move(job));
  if (word.empty()) return latest(jobs, killed);
  for (const PublishedJob& job : jobs) {
    if (word == pid_of(job) || word == text_of(job, "id") || same_folder(word, text_of(job, "folder")))
      return run_of(job);
  }
  for (const fs::path& folder : {fs::path(word), fs::path(kRunsFolder) / word})
    if (is_run(folder)) return run_in(folder, killed);
  for (const PublishedJob& job : killed)
    if (word == pid_of(job) || word == text_of(job, "id")) return run_of(job);
  throw usage_error(
      fmt::format("there is no run '{}': `prun runs` lists the folders of runs, `prun status` running jobs", word));
}

}  // namespace prun
