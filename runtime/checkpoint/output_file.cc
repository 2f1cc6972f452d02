#include "checkpoint/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "checkpoint/folder.h"
#include "ir/types.h"

namespace prun::checkpoint {

OutputFile::OutputFile(const std::string& path, int64_t bytes) : path_(path), bytes_(bytes) {
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC;
  fd_ = open(path.c_str(), flags | O_DIRECT, 0644);
  if (fd_ < 0 && errno == EINVAL) {
    direct_ = false;
    fd_ = open(path.c_str(), flags, 0644);
  }
  if (fd_ < 0) throw write_failed(path, errno);
  int failed = 0;
  while ((failed = fallocate(fd_, 0, 0, bytes)) != 0 && errno == EINTR) continue;
  if (failed != 0 && (errno == ENOSPC || errno == EDQUOT)) {
    const int code = errno;
    close(fd_);
    throw write_failed(path, code);
  }
}

OutputFile::~OutputFile() { close(fd_); }

void OutputFile::write_through_cache() {
  direct_ = false;
  if (const int flags = fcntl(fd_, F_GETFL); flags >= 0) fcntl(fd_, F_SETFL, flags & ~O_DIRECT);
}

void OutputFile::write(std::byte* data, int64_t bytes) {
  int64_t left = bytes;
  while (left > 0) {
    int64_t more = left;
    if (direct_ && left % kAlign != 0) {
      more = round_up(left, kAlign);
      std::memset(data + left, 0, more - left);
    }
    const ssize_t n = pwrite(fd_, data, more, written_);
    if (n < 0 && errno == EINTR) continue;
    if (direct_ && ((n < 0 && errno == EINVAL) || (n > 0 && n < more && n % kAlign != 0))) {
      write_through_cache();
      if (n < 0) continue;
    }
    if (n <= 0) throw write_failed(path_, n < 0 ? errno : EIO);
    // Through the cache the disk begins at once, while the next bytes are made.
    if (!direct_) sync_file_range(fd_, written_, n, SYNC_FILE_RANGE_WRITE);
    data += n;
    left -= n;
    written_ += n;
  }
}

void OutputFile::sync() {
  if (written_ > bytes_ && ftruncate(fd_, bytes_) != 0) throw write_failed(path_, errno);
  if (fsync(fd_) != 0) throw write_failed(path_, errno);
}

}  // namespace prun::checkpoint
