#include "checkpoint/data_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace prun::checkpoint {

DataFile::DataFile(const std::string& path) : path_(path), fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
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

void DataFile::read(int64_t at, int64_t bytes, std::byte* to) const {
  while (bytes > 0) {
    const ssize_t n = pread(fd_, to, static_cast<size_t>(bytes), at);
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
