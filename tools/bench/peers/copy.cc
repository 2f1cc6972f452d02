// The memory bound: RANKS processes concurrently copy BYTES each, the least that a collective with an input and an
// output of this size must do. g++ -O3 copy.cc -o copy; copy 4 copy 4194304 0.3
//
// Copies larger than the caches are fastest with non-temporal stores, which memcpy uses; both kinds are tried.
#include <emmintrin.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <new>

#include "timing.h"

namespace {

struct Shared {
  std::atomic<int> arrived{0}, round{0};
  double values[64];
};

void stream(char* to, const char* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) {
    for (size_t k = 0; k < 64; k += 16)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + i + k),
                       _mm_load_si128(reinterpret_cast<const __m128i*>(from + i + k)));
  }
  _mm_sfence();
}

void barrier(Shared* shared, int ranks) {
  const int round = shared->round.load();
  if (shared->arrived.fetch_add(1) + 1 == ranks) {
    shared->arrived = 0;
    shared->round = round + 1;
  }
  while (shared->round.load() == round) usleep(0);
}

void be_rank(int rank, int ranks, Shared* shared, const peers::Request& request) {
  peers::Library library;
  library.rank = rank;
  library.ranks = ranks;
  library.barrier = [=] { barrier(shared, ranks); };
  library.slowest = [=](double mine) {
    shared->values[rank] = mine;
    barrier(shared, ranks);
    const double slowest = *std::max_element(shared->values, shared->values + ranks);
    barrier(shared, ranks);
    return slowest;
  };
  library.from_first = [=](double value) {
    if (rank == 0) shared->values[0] = value;
    barrier(shared, ranks);
    const double first = shared->values[0];
    barrier(shared, ranks);
    return first;
  };
  for (size_t bytes : request.bytes) {
    const size_t room = (bytes + 8191) / 4096 * 4096;
    char* memory =
        static_cast<char*>(mmap(nullptr, 2 * room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory == MAP_FAILED) std::exit(1);
    std::memset(memory, 1, 2 * room);
    char *to = memory, *from = memory + room;
    const bool past = request.op == "stream";
    peers::measure(library, request, bytes,
                   [=] { past ? stream(to, from, bytes) : (void)std::memcpy(to, from, bytes); });
    munmap(memory, 2 * room);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const peers::Request request = peers::parse_request(argc, argv, true);
  const int ranks = request.ranks;
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  Shared* shared = new (memory) Shared;
  for (int rank = 1; rank < ranks; ++rank) {
    if (fork() != 0) continue;
    be_rank(rank, ranks, shared, request);
    _exit(0);
  }
  be_rank(0, ranks, shared, request);
  while (wait(nullptr) > 0) {
  }
  return 0;
}
