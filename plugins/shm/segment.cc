// Memory behind memfds: it counts against memory, not against the size of /dev/shm, and is freed with the last
// descriptor and mapping, so a killed rank leaves nothing behind.
#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace prun::shm {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr int kCollapse = 25;  // MADV_COLLAPSE since Linux 6.1; older headers lack it

// Maps `bytes` of the memfd, aligned to a huge page if `huge`.
sdk::Mapping map_shared(int fd, size_t bytes, bool huge) {
  const size_t room = huge ? bytes + kHugePage : bytes;
  void* hole = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (hole == MAP_FAILED) return {};
  auto* start = static_cast<std::byte*>(hole);
  if (huge) {
    const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
    if (skip > 0) munmap(start, skip);
    start += skip;
    if (room - skip > bytes) munmap(start + bytes, room - skip - bytes);
  }
  if (mmap(start, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
    const int error = errno;
    munmap(start, bytes);
    errno = error;
    return {};
  }
  if (huge) madvise(start, bytes, MADV_HUGEPAGE);  // a hint that the kernel may ignore
  return {start, bytes};
}

// Collapses small pages into huge ones, because by default Linux does not do so for shared memory. One page of each
// huge page must be present. Failure is harmless.
void make_pages_huge(std::byte* start, size_t bytes) {
  const size_t whole = bytes / kHugePage * kHugePage;
  for (size_t at = 0; at < whole; at += kHugePage) *const_cast<volatile std::byte*>(start + at) = std::byte{0};
  madvise(start, whole, kCollapse);
}

}  // namespace

SharedMemory create_memory(const char* name, size_t bytes, size_t mapped, bool huge) {
  SharedMemory memory{sdk::Descriptor(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING)), {}};
  const int fd = memory.fd.get();
  if (fd >= 0 && ftruncate(fd, static_cast<off_t>(bytes)) == 0 &&
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
    memory.mapping = map_shared(fd, mapped, huge);
  if (huge && memory.mapping) make_pages_huge(memory.mapping.base(), mapped);
  return memory;
}

sdk::Mapping map_peer(const sdk::Descriptor& fd, size_t bytes, size_t mapped, bool huge) {
  struct stat st {};
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals >= 0 && (seals & F_SEAL_SHRINK) && fstat(fd.get(), &st) == 0 && static_cast<size_t>(st.st_size) >= bytes)
    return map_shared(fd.get(), mapped, huge);
  errno = EINVAL;
  return {};
}

sdk::Mapping map_part(const sdk::Descriptor& fd, size_t start, size_t bytes) {
  void* at =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), static_cast<off_t>(start));
  return at == MAP_FAILED ? sdk::Mapping() : sdk::Mapping(at, bytes);
}

size_t arena_skew(int local_index, int arena) {
  // 67 lines per rank spread over the sets of an L1 (4 KiB), of a small L2 (128 KiB) and of a slice of an L3.
  return static_cast<size_t>(local_index % 61) * 67 * 64 + static_cast<size_t>(arena) * 3 * 64;
}

}  // namespace prun::shm
