#include "checkpoint/data_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace prun::checkpoint {

namespace {

int open_to_read(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd >= 0 || errno != EMFILE) return fd;
  // A checkpoint of many ranks has more files than a shell's limit, which a process may raise.
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  return open(path.c_str(), O_RDONLY | O_CLOEXEC);
}

}  // namespace

DataFile::DataFile(const std::string& path) : path_(path), fd_(open_to_read(path)) {
  struct stat status {};
  if (fd_ >= 0 && fstat(fd_, &status) == 0) {
    size_ = status.st_size;
    posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);  // the disk reads twice as far ahead
    return;
  }
  const int code = errno;
  if (fd_ >= 0) close(fd_);
  throw Error(Exit::checkpoint_invalid, fmt::format("{}: {}", path, strerror(code)));
}

DataFile::~DataFile() { close(fd_); }

void DataFile::read_ahead(int64_t at, int64_t bytes) const { posix_fadvise(fd_, at, bytes, POSIX_FADV_WILLNEED); }

void DataFile::read(int64_t at, int64_t bytes, std::byte* to) const {
  while (bytes > 0) {
    const ssize_t n = pread(fd_, to, bytes, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      throw Error(Exit::checkpoint_invalid,
                  n < 0 ? fmt::format("{}: {}", path_, strerror(errno))
                        : fmt::format("{}: the file ends at byte {}, and data should follow: it is cut", path_, at));
    to += n;
    at += n;
    bytes -= n;
  }
}

}  // namespace prun::checkpoint
