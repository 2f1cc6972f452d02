// A failing disk: a preloaded library (LD_PRELOAD) that makes the call named $FAILING_CALL (open, write, fsync, rename,
// mkdir, flock) fail with $FAILING_ERRNO for a path that contains all comma-separated parts of $FAILING_DISK. A $ at
// the end of a part matches the end of the path. If $FAILING_WHILE names a file, calls fail only while that file
// exists.
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <string>
#include <string_view>

#include "descriptor_path.h"

namespace {

bool fails(const char* call, std::string_view path) {
  const char *named = std::getenv("FAILING_CALL"), *parts = std::getenv("FAILING_DISK"),
             *code = std::getenv("FAILING_ERRNO");
  if (named == nullptr || parts == nullptr || code == nullptr || std::string_view(named) != call) return false;
  for (std::string_view rest = parts; !rest.empty();) {
    const size_t comma = rest.find(',');
    std::string_view part = rest.substr(0, comma);
    const bool at_end = part.ends_with('$');
    if (at_end) part.remove_suffix(1);
    if (at_end ? !path.ends_with(part) : path.find(part) == std::string_view::npos) return false;
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
  }
  const char* file = std::getenv("FAILING_WHILE");
  if (file != nullptr && access(file, F_OK) != 0) return false;
  errno = std::atoi(code);
  return true;
}

bool fails(const char* call, int fd) {
  if (std::getenv("FAILING_CALL") == nullptr) return false;
  return fails(call, descriptor_path(fd));
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int open_next(const char* name, const char* path, int flags, va_list more) {
  using Open = int (*)(const char*, int, ...);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  return fails("open", path) ? -1 : next<Open>(name)(path, flags, mode);
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int fd = open_next("open", path, flags, more);
  va_end(more);
  return fd;
}

EXPORTED int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int fd = open_next("open64", path, flags, more);
  va_end(more);
  return fd;
}

EXPORTED ssize_t pwrite(int fd, const void* from, size_t bytes, off_t offset) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return fails("write", fd) ? -1 : real(fd, from, bytes, offset);
}

EXPORTED ssize_t pwrite64(int fd, const void* from, size_t bytes, off_t offset) {
  return pwrite(fd, from, bytes, offset);
}

EXPORTED ssize_t write(int fd, const void* from, size_t bytes) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  return fails("write", fd) ? -1 : real(fd, from, bytes);
}

EXPORTED int fsync(int fd) {
  static const auto real = next<int (*)(int)>("fsync");
  return fails("fsync", fd) ? -1 : real(fd);
}

EXPORTED int rename(const char* from, const char* to) {
  static const auto real = next<int (*)(const char*, const char*)>("rename");
  return fails("rename", fmt::format("{} {}", from, to)) ? -1 : real(from, to);
}

EXPORTED int flock(int fd, int operation) {
  static const auto real = next<int (*)(int, int)>("flock");
  return fails("flock", fd) ? -1 : real(fd, operation);
}

EXPORTED int mkdir(const char* path, mode_t mode) {
  static const auto real = next<int (*)(const char*, mode_t)>("mkdir");
  return fails("mkdir", path) ? -1 : real(path, mode);
}
