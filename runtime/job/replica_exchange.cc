// A request is one message; a file follows in messages of at most 1 MiB. The requester waits for the answer.
#include "job/replica_exchange.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "checkpoint/folder.h"
#include "checkpoint/kept_commits.h"
#include "comm/transport/interfaces.h"
#include "job/job_spec.h"

namespace prun {
namespace {

namespace fs = std::filesystem;

struct CopyRequest {
  std::string file;   // COMMIT/FILE
  int64_t bytes = 0;  // bytes that follow; -1: requests the file

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(file, bytes);
  }
};

// Returns whether the path is COMMIT/FILE; a peer must not name a path outside the folder.
bool is_below(const std::string& file) {
  const size_t slash = file.find('/');
  const auto plain = [](std::string_view name) {
    return !name.empty() && name.front() != '.' && name.find('/') == std::string_view::npos;
  };
  return slash != std::string::npos && plain(std::string_view(file).substr(0, slash)) &&
         plain(std::string_view(file).substr(slash + 1));
}

void write_whole(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw checkpoint::write_failed(path, n == 0 ? ENOSPC : errno);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

// Receives a file under a temporary name and renames it when it is complete.
void receive_file(SealedStream& stream, const std::string& path, int64_t bytes) {
  checkpoint::make_folder(fs::path(path).parent_path().string());
  static std::atomic<int> number = 0;  // several ranks may receive the same index concurrently
  const std::string part = fmt::format("{}.{}.{}.part", path, getpid(), number++);
  const Fd fd(open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd) throw checkpoint::write_failed(part, errno);
  std::string message;
  for (int64_t left = bytes; left > 0; left -= std::ssize(message)) {
    if (!stream.receive(message) || std::ssize(message) > left || message.empty())
      throw Error(Exit::corrupt_link, fmt::format("{} ended before it was whole", path));
    write_whole(fd.get(), message, part);
  }
  if (std::rename(part.c_str(), path.c_str()) != 0) throw checkpoint::write_failed(path, errno);
}

void send_file(SealedStream& stream, int fd, int64_t bytes, const std::string& path) {
  std::string message;
  for (int64_t left = bytes; left > 0; left -= std::ssize(message)) {
    message.resize(static_cast<size_t>(std::min<int64_t>(left, SealedStream::kMost)));
    const ssize_t n = read(fd, message.data(), message.size());
    if (n <= 0) throw Error(Exit::checkpoint_invalid, fmt::format("{} ends too early", path));
    message.resize(static_cast<size_t>(n));
    stream.send(message);
  }
}

int64_t file_bytes(int fd) {
  struct stat info {};
  return fd >= 0 && fstat(fd, &info) == 0 ? info.st_size : -1;
}

}  // namespace

ReplicaExchange::ReplicaExchange(const RankStart& start, const JobSpec& spec)
    : start_(start), folder_(spec.checkpoint.memory) {
  checkpoint::make_folder(folder_);
  chmod(folder_.c_str(), 0700);
  listener_ = std::make_unique<SealedListener>(start, listening_address(spec.world), spec.port_range,
                                               [this](SealedStream& stream) { serve(stream); });
  Place here{start.node, listener_->address(), {}};
  std::error_code error;
  if (start.local_rank == 0)
    for (const fs::directory_entry& commit : fs::directory_iterator(folder_, error))
      for (const fs::directory_entry& file : fs::directory_iterator(commit.path(), error))
        here.files.push_back(fs::relative(file.path(), folder_).string());
  for (const std::string& blob : start.launcher->all_gather(pack(here))) places_.push_back(unpack<Place>(blob));
  streams_.resize(places_.size());
}

std::vector<int> ReplicaExchange::ranks_of(int64_t node) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < std::ssize(places_); ++rank)
    if (places_[rank].node == node) ranks.push_back(rank);
  return ranks;
}

int ReplicaExchange::neighbour() const {
  std::set<int64_t> nodes;
  for (const Place& place : places_) nodes.insert(place.node);
  if (nodes.size() < 2) return -1;
  const auto after = nodes.upper_bound(start_.node);
  const std::vector<int> ranks = ranks_of(after == nodes.end() ? *nodes.begin() : *after);
  return ranks[static_cast<size_t>(start_.local_rank) % ranks.size()];
}

SealedStream& ReplicaExchange::stream_to(int rank) {
  std::unique_ptr<SealedStream>& stream = streams_[rank];
  if (!stream)
    stream = std::make_unique<SealedStream>(
        dial(start_, rank, places_[rank].address, [this] { return start_.launcher->aborted(); }));
  return *stream;
}

void ReplicaExchange::copy(const std::string& name, const std::vector<std::string>& files) {
  const int to = neighbour();
  if (to < 0) return;
  SealedStream& stream = stream_to(to);
  for (const std::string& file : files) {
    const std::string path = folder_ + "/" + name + "/" + file;
    const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) throw checkpoint::write_failed(path, errno);
    const int64_t bytes = file_bytes(fd.get());
    stream.send(pack(CopyRequest{name + "/" + file, bytes}));
    send_file(stream, fd.get(), bytes, path);
    std::string answer;
    if (!stream.receive(answer)) throw Error(Exit::corrupt_link, fmt::format("rank {} has closed its stream", to));
    if (!answer.empty())
      throw Error(Exit::checkpoint_write, fmt::format("the next host keeps no copy of a commit: {}", answer));
  }
}

// Runs on a thread of the listener.
void ReplicaExchange::serve(SealedStream& stream) const {
  constexpr int kBehindSteps = 10;
  setpriority(PRIO_PROCESS, 0, kBehindSteps);
  for (std::string message; stream.receive(message);) {
    const CopyRequest request = unpack<CopyRequest>(message);
    if (!is_below(request.file)) return;
    const std::string path = folder_ + "/" + request.file;
    request.bytes < 0 ? give(stream, path) : keep(stream, path, request.bytes);
  }
}

void ReplicaExchange::keep(SealedStream& stream, const std::string& path, int64_t bytes) const {
  try {
    receive_file(stream, path, bytes);
  } catch (const Error& error) {
    stream.send(error.message());
    throw;
  }
  stream.send("");
}

void ReplicaExchange::give(SealedStream& stream, const std::string& path) const {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int64_t bytes = file_bytes(fd.get());
  stream.send(Packer().number(bytes).take());
  if (bytes > 0) send_file(stream, fd.get(), bytes, path);
}

// Fetches a file from any host that has it, from a different rank for each file.
void ReplicaExchange::fetch(const std::string& file) {
  for (int rank = 0; rank < std::ssize(places_); ++rank) {
    const std::vector<std::string>& there = places_[rank].files;
    if (std::find(there.begin(), there.end(), file) == there.end()) continue;
    const std::vector<int> ranks = ranks_of(places_[rank].node);
    const int from = ranks[std::hash<std::string>()(file) % ranks.size()];
    SealedStream& stream = stream_to(from);
    stream.send(pack(CopyRequest{file, -1}));
    std::string answer;
    if (!stream.receive(answer)) throw Error(Exit::corrupt_link, fmt::format("rank {} has closed its stream", from));
    const int64_t bytes = Unpacker(answer).number();
    if (bytes >= 0) return receive_file(stream, folder_ + "/" + file, bytes);
  }
  throw Error(Exit::checkpoint_invalid, fmt::format("no host has {} in its memory any more", file));
}

// Fetches missing files, divided among the ranks of a host.
void ReplicaExchange::fetch_missing(const std::vector<std::string>& files) {
  for (size_t i = 0; i < files.size(); ++i)
    if (static_cast<int>(i) % start_.local_ranks == start_.local_rank && !fs::exists(folder_ + "/" + files[i]))
      fetch(files[i]);
  wait_for_all();
}

std::string ReplicaExchange::restore(const Job& job, const std::string& name) {
  const std::string commit = folder_ + "/" + name;
  fetch_missing({name + "/index.json"});
  const int64_t ranks = checkpoint::read_index(commit).ranks;
  std::vector<std::string> files;
  for (int rank = 0; rank < ranks; ++rank) files.push_back(name + "/" + checkpoint::manifest_name(rank));
  fetch_missing(files);
  const checkpoint::Index index = checkpoint::whole_index(commit);
  std::set<std::string> needed;
  for (const int rank : ranks_of(start_.node)) checkpoint::add_files_of(index, job.program(rank), rank, needed);
  files.clear();
  for (const std::string& file : needed) files.push_back(name + "/" + file);
  fetch_missing(files);
  if (start_.local_rank == 0) checkpoint::write_index_of_present(commit, index);
  wait_for_all();
  return commit;
}

}  // namespace prun
