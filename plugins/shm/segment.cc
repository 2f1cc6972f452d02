// Memory behind descriptors: memfds count against memory, not against the size of /dev/shm, and vanish with their
// last descriptor and mapping, so nothing is left behind by a killed rank.
#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace prun::shm {
namespace {

constexpr size_t kHugePage = 2 << 20;

// Maps at a huge page's boundary where huge pages are wanted, else anywhere.
std::byte* map_shared(int fd, size_t bytes, bool huge) {
  const size_t room = huge ? bytes + kHugePage : bytes;
  void* hole = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (hole == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(hole);
  if (huge) {
    auto address = reinterpret_cast<uintptr_t>(start);
    const size_t skip = (kHugePage - address % kHugePage) % kHugePage;
    if (skip > 0) munmap(start, skip);
    start += skip;
    if (room - skip > bytes) munmap(start + bytes, room - skip - bytes);
  }
  if (mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
    const int error = errno;
    munmap(start, bytes);
    errno = error;
    return nullptr;
  }
  if (huge) madvise(start, bytes, MADV_HUGEPAGE);  // a wish: without it pages are small, and all else is the same
  return start;
}

}  // namespace

Mapping create_mapping(const char* name, size_t bytes, bool huge) {
  Mapping m;
  m.fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (m.fd < 0) return m;
  if (ftruncate(m.fd, static_cast<off_t>(bytes)) == 0 &&
      fcntl(m.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    m.base = map_shared(m.fd, bytes, huge);
    m.bytes = bytes;
  }
  if (!m.base) {
    const int error = errno;
    close(m.fd);
    m.fd = -1;
    errno = error;
  }
  return m;
}

Mapping map_peer(int fd, size_t bytes, bool huge) {
  Mapping m;
  struct stat st {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(fd, &st) != 0 || static_cast<size_t>(st.st_size) < bytes) {
    errno = EINVAL;
  } else {
    m.base = map_shared(fd, bytes, huge);
    m.bytes = bytes;
  }
  const int error = errno;
  close(fd);
  errno = error;
  return m;
}

void unmap(Mapping& mapping) {
  if (mapping.base) munmap(mapping.base, mapping.bytes);
  if (mapping.fd >= 0) close(mapping.fd);
  mapping = Mapping{};
}

size_t arena_skew(int local_index, int arena) {
  // 67 lines a rank: spreads over the sets of an L1 (4 KiB), of a small L2 (128 KiB) and of a slice of an L3.
  return static_cast<size_t>(local_index % 61) * 67 * 64 + static_cast<size_t>(arena) * 3 * 64;
}

}  // namespace prun::shm
