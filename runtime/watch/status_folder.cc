#include "watch/status_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "base/error.h"
#include "launch/rank_process.h"
#include "watch/flight.h"

namespace prun {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kLock = "lock";
constexpr const char* kStatus = "status.json";
constexpr const char* kProgram = "program.bin";
constexpr const char* kFlight = "flight.json";
constexpr const char* kLastFlight = "last_flight.json";
constexpr const char* kWanted = "flight.wanted";

// Shells of one user differ in XDG_RUNTIME_DIR (a login, a cron job), so readers search all candidates.
std::vector<std::string> base_folders() {
  std::vector<std::string> folders;
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && *runtime == '/') folders.push_back(std::string(runtime) + "/prun");
  for (const std::string& other : {fmt::format("/run/user/{}/prun", getuid()), fmt::format("/tmp/prun-{}", getuid())})
    if (std::find(folders.begin(), folders.end(), other) == folders.end()) folders.push_back(other);
  return folders;
}

// Returns "" if it is a folder, not a link, of this user alone; otherwise the reason.
std::string why_not_ours(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return std::strerror(errno);
  if (!S_ISDIR(info.st_mode)) return "it is no folder";
  if (info.st_uid != getuid()) return "it is another user's";
  return (info.st_mode & 077) != 0 ? "others may enter it" : "";
}

// Returns the first folder that can be created. Throws the reason of the last one.
std::string make_base() {
  std::string trouble;
  for (const std::string& folder : base_folders()) {
    if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
      trouble = fmt::format("{}: {}", folder, std::strerror(errno));
      continue;
    }
    const std::string why = why_not_ours(folder);
    if (why.empty()) return folder;
    trouble = fmt::format("{}: {}", folder, why);
  }
  throw usage_error(trouble);
}

bool is_locked(const fs::path& file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  const bool locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return locked;
}

void write_and_rename(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new", std::ios::binary) << text;
  rename((path + ".new").c_str(), path.c_str());
}

}  // namespace

StatusFolder::~StatusFolder() {
  if (lock_ < 0 || owner_ != getpid()) return;
  std::error_code error;
  fs::remove_all(path_, error);
  ::close(lock_);
}

void StatusFolder::open(const std::string& program) {
  const std::string path = fmt::format("{}/{}", make_base(), getpid());
  std::error_code error;
  fs::remove_all(path, error);  // from an earlier launcher with this pid
  if (mkdir(path.c_str(), 0700) != 0) throw usage_error(fmt::format("{}: {}", path, std::strerror(errno)));
  path_ = path;
  owner_ = getpid();
  lock_ = ::open((path + "/" + kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_ < 0 || flock(lock_, LOCK_EX | LOCK_NB) != 0)
    throw usage_error(fmt::format("{}/{}: {}", path, kLock, std::strerror(errno)));
  write_and_rename(path + "/" + kProgram, program);
}

void StatusFolder::publish(const Json& status) {
  if (is_open())
    write_and_rename(path_ + "/" + kStatus, status.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

bool StatusFolder::flight_is_wanted() const { return is_open() && access((path_ + "/" + kWanted).c_str(), F_OK) == 0; }

void StatusFolder::give_flight(const std::string& flight) {
  unlink((path_ + "/" + kWanted).c_str());
  write_and_rename(path_ + "/" + kFlight, flight);
}

void StatusFolder::keep_flight(const std::string& flight) { write_and_rename(path_ + "/" + kLastFlight, flight); }

std::string last_flight(const PublishedJob& job) {
  std::ifstream file(fs::path(job.path) / kLastFlight, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<PublishedJob> published_jobs() {
  std::vector<std::pair<int, PublishedJob>> jobs;
  std::error_code error;
  for (const std::string& base : base_folders()) {
    if (!why_not_ours(base).empty()) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(base, error)) {
      PublishedJob job{entry.path().string(), is_locked(entry.path() / kLock), {}};
      std::ifstream file(entry.path() / kStatus);
      job.status = Json::parse(file, nullptr, false);
      if (!job.status.is_object()) job.status = nullptr;
      jobs.emplace_back(std::atoi(entry.path().filename().c_str()), std::move(job));
    }
  }
  std::sort(jobs.begin(), jobs.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<PublishedJob> sorted;
  for (auto& [pid, job] : jobs) sorted.push_back(std::move(job));
  return sorted;
}

std::string ask_for_flight(const PublishedJob& job, double seconds) {
  const fs::path folder = job.path;
  std::error_code error;
  fs::remove(folder / kFlight, error);
  std::ofstream(folder / kWanted).put('\n');
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  for (; std::chrono::steady_clock::now() < end; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
    std::ifstream file(folder / kFlight);
    if (file) return {std::istreambuf_iterator<char>(file), {}};
  }
  const int pid = std::atoi(folder.filename().c_str());
  const char state = process_state(pid);
  throw Error(Exit::hang,
              fmt::format("the launcher of this job, pid {}, does not answer within {:g} s: {}", pid, seconds,
                          state == 'X'                   ? "it has ended"
                          : state == 'T' || state == 't' ? fmt::format("it is stopped (kill -CONT {})", pid)
                                                         : fmt::format("it is in state {}", state)));
}

}  // namespace prun
