// A disk that does not answer: put before a program (LD_PRELOAD), fsync of a file whose path contains $SLOW_DISK waits
// as long as the file $SLOW_DISK_WHILE exists.
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

extern "C" __attribute__((visibility("default"))) int fsync(int fd) {
  using Fsync = int (*)(int);
  static const Fsync real = reinterpret_cast<Fsync>(dlsym(RTLD_NEXT, "fsync"));
  const char *part = std::getenv("SLOW_DISK"), *file = std::getenv("SLOW_DISK_WHILE");
  std::error_code error;
  const std::string path = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), error).string();
  while (part != nullptr && file != nullptr && path.find(part) != std::string::npos && access(file, F_OK) == 0)
    usleep(10'000);
  return real(fd);
}
