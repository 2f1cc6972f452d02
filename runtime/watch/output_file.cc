// Opening does not truncate, so that a plan with an error does not destroy the previous run's file.
#include "watch/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/text.h"

namespace prun {
namespace {

constexpr size_t kFlushFrom = 64 << 10;
constexpr size_t kMostWaiting = 64 << 20;  // queued for the reader of a pipe

}  // namespace

int standard_stream(std::string_view path) {
  if (path == "-" || path == "/dev/stdout" || path == "/dev/fd/1") return STDOUT_FILENO;
  return path == "/dev/stderr" || path == "/dev/fd/2" ? STDERR_FILENO : -1;
}

void refuse_other_contents(const std::string& path, std::string_view what, std::string_view begins) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) return;
  std::string start(begins.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(start.data(), std::ssize(start));
  start.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  if (!begins.starts_with(start) || start.empty())
    throw usage_error(
        fmt::format("cannot write the {} to {}: the file there is another kind of file and would be lost; name another",
                    what, path));
}

OutputFile::OutputFile(const std::string& path, std::string_view what, int stream, std::string_view begins)
    : path_(path), stream_(stream >= 0) {
  if (!stream_ && !begins.empty()) refuse_other_contents(path, what, begins);
  int fd =
      stream_ ? fcntl(stream, F_DUPFD_CLOEXEC, 0) : open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  created_ = !stream_ && fd >= 0;
  if (!stream_ && fd < 0 && errno == EEXIST) fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  fd_ = Fd(fd);
  if (!fd_) throw usage_error(fmt::format("cannot write the {} to {}: {}", what, path, std::strerror(errno)));
  outlet_.emplace(fd, kMostWaiting);
}

OutputFile::~OutputFile() {
  flush();
  if (created_ && !begun_) unlink(path_.c_str());
}

void OutputFile::begin(int64_t keep) {
  begun_ = true;
  if (stream_) return;
  // Pipes and devices cannot be truncated, which is harmless.
  if (ftruncate(fd_.get(), keep) != 0 || lseek(fd_.get(), keep, SEEK_SET) < 0) errno = 0;
}

void OutputFile::write(std::string_view text) {
  text_.append(text);
  if (text_.size() > kFlushFrom) flush();
}

void OutputFile::flush() {
  if (!text_.empty()) outlet_->write(text_);
  text_.clear();
  outlet_->flush();
}

void OutputFile::finish(double patience_s) {
  flush();
  outlet_->finish(patience_s);
}

std::string OutputFile::failure() const {
  if (!outlet_->failure().empty()) return outlet_->failure();
  const auto lost = static_cast<int64_t>(outlet_->dropped());
  return lost > 0 ? fmt::format("{} were not read in time", counted(lost, "line")) : "";
}

}  // namespace prun
