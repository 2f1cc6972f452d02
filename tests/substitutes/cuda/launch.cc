// Launches: configurations that CUDA would refuse are refused, and a grid runs block after block, in a random order,
// when its stream reaches it.
#include <elf.h>
#include <link.h>
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>

#include "block.h"
#include "machine.h"
#include "memory.h"

namespace substitute {
namespace {

constexpr size_t kDefaultShared = 48 * 1024, kPage = 4096;
constexpr int kFresh = 0xff;

struct Allowed {
  std::mutex mutex;
  std::map<const void*, size_t> bytes;
};
Allowed& allowed() {
  static auto* instance = new Allowed;
  return *instance;
}

size_t shared_limit(const void* kernel) {
  std::lock_guard lock(allowed().mutex);
  const auto found = allowed().bytes.find(kernel);
  return found == allowed().bytes.end() ? kDefaultShared : std::max(kDefaultShared, found->second);
}

// Static shared memory of kernels is the thread-local memory of their library. The threads of streams use nothing else
// in it, so all of it counts.
struct Shared {
  char* begin = nullptr;
  size_t bytes = 0;
};
Shared static_shared(const void* address) {
  struct Search {
    const char* address;
    Shared found;
  } search{static_cast<const char*>(address), {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* wanted = static_cast<Search*>(data);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& header = info->dlpi_phdr[i];
          auto* begin = static_cast<char*>(info->dlpi_tls_data);
          if (header.p_type != PT_TLS || begin == nullptr) continue;
          if (wanted->address >= begin && wanted->address < begin + header.p_memsz)
            wanted->found = {begin, header.p_memsz};
        }
        return 0;
      },
      &search);
  return search.found;
}

// The shared memory of the block that this thread runs.
thread_local Shared fixed_now, dynamic_now;

// Dynamic shared memory ends at a page that faults.
class DynamicShared {
 public:
  explicit DynamicShared(size_t bytes) : bytes_((bytes + 15) / 16 * 16), data_bytes_((bytes_ + kPage) / kPage * kPage) {
    void* map = mmap(nullptr, data_bytes_ + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) die("no memory for the shared memory of a block");
    map_ = static_cast<char*>(map);
    mprotect(map_ + data_bytes_, kPage, PROT_NONE);
  }
  ~DynamicShared() { munmap(map_, data_bytes_ + kPage); }
  DynamicShared(const DynamicShared&) = delete;

  char* fresh() {
    char* begin = map_ + data_bytes_ - bytes_;
    std::memset(begin, kFresh, bytes_);
    return begin;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_, data_bytes_;
  char* map_ = nullptr;
};

void run_grid(dim3 grid, dim3 size, size_t shared_bytes, const std::function<void()>& body, const void* (*shared)()) {
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  const uint64_t random = random_number();
  const uint64_t first = random % blocks;
  uint64_t step = 1 + (random >> 32) % blocks;
  while (std::gcd(step, blocks) != 1) step = step % blocks + 1;
  const Shared fixed = fixed_now = static_shared(shared());
  Block block(size, body);
  DynamicShared dynamic(shared_bytes);
  gridDim = grid;
  uint64_t number = first;
  for (uint64_t i = 0; i < blocks; ++i, number = (number + step) % blocks) {
    std::memset(fixed.begin, kFresh, fixed.bytes);
    dynamic_now = {dynamic.fresh(), dynamic.bytes()};
    dynamic_shared = reinterpret_cast<unsigned char*>(dynamic_now.begin);
    block.run({static_cast<unsigned>(number % grid.x), static_cast<unsigned>(number / grid.x % grid.y),
               static_cast<unsigned>(number / grid.x / grid.y)});
  }
  check_guards("after a kernel");
}

}  // namespace

bool is_shared(const void* ptr, size_t bytes) {
  const auto* first = static_cast<const char*>(ptr);
  for (const Shared& shared : {fixed_now, dynamic_now})
    if (first >= shared.begin && first + bytes <= shared.begin + shared.bytes) return true;
  return false;
}

cudaError_t allow_shared_bytes(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<size_t>(value) > most_shared_bytes())
    return result(cudaErrorInvalidValue);
  std::lock_guard lock(allowed().mutex);
  allowed().bytes[kernel] = static_cast<size_t>(value);
  return cudaSuccess;
}

cudaError_t launch_kernel(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> body,
                          const void* (*shared)()) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  if (config.numAttrs != 0) return result(cudaErrorNotSupported);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535)
    return result(cudaErrorInvalidConfiguration);
  if (block.x == 0 || block.y == 0 || block.z == 0 || block.x > 1024 || block.y > 1024 || block.z > 64 ||
      block.x * block.y * block.z > 1024)
    return result(cudaErrorInvalidConfiguration);
  if (config.dynamicSmemBytes > shared_limit(kernel)) return result(cudaErrorInvalidValue);
  return result(enqueue(config.stream, [grid, block, bytes = config.dynamicSmemBytes, body = std::move(body), shared] {
    run_grid(grid, block, bytes, body, shared);
  }));
}

}  // namespace substitute

ENTRY cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return substitute::allow_shared_bytes(kernel, attribute, value);
}
