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

int code_with_output(int code) {
  const bool before = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !before) return code;
  std::fprintf(stderr, "prun: standard output is incomplete: %s\n",
               before ? "an earlier write failed" : std::strerror(errno));
  return code == 0 ? static_cast<int>(Exit::check_failed) : code;
}

}  // namespace prun
