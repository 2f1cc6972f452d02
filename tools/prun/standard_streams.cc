#include "standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace prun {

void open_closed_streams() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) open("/dev/null", fd == STDIN_FILENO ? O_RDONLY : O_WRONLY);
}

namespace {

int first_failure = 0;  // errno of the first flush that failed

}  // namespace

void flush_output() {
  if (std::fflush(stdout) != 0 && first_failure == 0) first_failure = errno;
}

int code_with_output(int code, int earlier) {
  const bool before = std::ferror(stdout) != 0;
  if (first_failure == 0) first_failure = earlier;
  flush_output();
  const int failure = first_failure;
  if (failure == 0 && !before) return code;
  std::fprintf(stderr, "prun: standard output is incomplete: %s\n",
               failure != 0 ? std::strerror(failure) : "an earlier write failed");
  return code == 0 ? static_cast<int>(Exit::check_failed) : code;
}

}  // namespace prun
