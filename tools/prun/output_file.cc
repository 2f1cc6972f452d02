// Opening does not truncate: a plan with an error must not cost the user the last run's file.
#include "output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace prun {

int standard_stream(std::string_view path) {
  if (path == "-" || path == "/dev/stdout" || path == "/dev/fd/1") return STDOUT_FILENO;
  return path == "/dev/stderr" || path == "/dev/fd/2" ? STDERR_FILENO : -1;
}

OutputFile::OutputFile(const std::string& path, std::string_view what, int stream) : path_(path), stream_(stream >= 0) {
  int fd =
      stream_ ? fcntl(stream, F_DUPFD_CLOEXEC, 0) : open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  created_ = !stream_ && fd >= 0;
  if (!stream_ && fd < 0 && errno == EEXIST) fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd >= 0) file_ = fdopen(fd, "w");
  if (file_ == nullptr)
    throw usage_error(fmt::format("cannot write the {} to {}: {}", what, path, std::strerror(errno)));
}

OutputFile::~OutputFile() {
  std::fclose(file_);
  if (created_ && !begun_) unlink(path_.c_str());
}

void OutputFile::begin(int64_t keep) {
  begun_ = true;
  if (stream_) return;
  // Pipes and devices cannot be truncated, and need not be.
  if (ftruncate(fileno(file_), keep) != 0 || lseek(fileno(file_), keep, SEEK_SET) < 0) errno = 0;
}

void OutputFile::write(std::string_view text) {
  if (!failure_.empty()) return;
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) failure_ = std::strerror(errno);
}

void OutputFile::flush() {
  if (std::fflush(file_) != 0 && failure_.empty()) failure_ = std::strerror(errno);
}

}  // namespace prun
