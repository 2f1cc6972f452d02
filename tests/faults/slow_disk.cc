// An unresponsive disk, as a preloaded library (LD_PRELOAD). fsync of a file whose path contains $SLOW_DISK blocks
// while the file $SLOW_DISK_WHILE exists. In the process named $SLOW_READ_IN, a read of a file whose path contains
// $SLOW_READ blocks on the pipe $SLOW_READ_FROM, once that exists, and returns no bytes.
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "descriptor_path.h"

namespace {

void wait_for_bytes(int fd) {
  const char *part = std::getenv("SLOW_READ"), *in = std::getenv("SLOW_READ_IN"), *from = std::getenv("SLOW_READ_FROM");
  if (part == nullptr || in == nullptr || from == nullptr || access(from, F_OK) != 0) return;
  std::string name;
  std::ifstream(fmt::format("/proc/{}/comm", getpid())) >> name;
  if (name != in || descriptor_path(fd).find(part) == std::string::npos) return;
  const int pipe = open(from, O_RDWR | O_CLOEXEC);
  char byte = 0;
  while (read(pipe, &byte, 1) < 0) {
  }
}

using Pread = ssize_t (*)(int, void*, size_t, off_t);

}  // namespace

extern "C" __attribute__((visibility("default"))) int fsync(int fd) {
  using Fsync = int (*)(int);
  static const Fsync real = reinterpret_cast<Fsync>(dlsym(RTLD_NEXT, "fsync"));
  const char *part = std::getenv("SLOW_DISK"), *file = std::getenv("SLOW_DISK_WHILE");
  const std::string path = descriptor_path(fd);
  while (part != nullptr && file != nullptr && path.find(part) != std::string::npos && access(file, F_OK) == 0)
    usleep(10'000);
  return real(fd);
}

extern "C" __attribute__((visibility("default"))) ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
  static const Pread real = reinterpret_cast<Pread>(dlsym(RTLD_NEXT, "pread"));
  wait_for_bytes(fd);
  return real(fd, to, bytes, offset);
}

extern "C" __attribute__((visibility("default"))) ssize_t pread64(int fd, void* to, size_t bytes, off_t offset) {
  return pread(fd, to, bytes, offset);
}
