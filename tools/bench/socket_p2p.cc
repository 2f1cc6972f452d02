// Point-to-point figures of the socket plugin alone: ping-pong, and a ring in which every rank sends to its right and
// receives from its left at once, as collectives do.
//
//     socket_p2p [RANKS] [OPTIONS] [SECONDS]        e.g. socket_p2p 2 unix=0
//
// Prints the least and the median time, the rate, and processor time per byte, which a busy machine disturbs least.
#include <sys/resource.h>

#include <algorithm>

#include "tests/unit/socket_world.h"

namespace {

using namespace socket_world;
using Time = std::chrono::steady_clock;

double cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Rank 0 decides when it is enough, in a byte that travels with the next round's permission.
template <typename Round>
void measure(Rank& me, const char* what, size_t bytes, double seconds, double sharing, Round round) {
  round();
  round();
  me.meet();
  const double cpu = cpu_seconds();
  std::vector<double> times;
  const auto begin = Time::now();
  const int rounds = me.shared->flags[0];
  for (int i = 0; i < rounds || rounds == 0; ++i) {
    const auto start = Time::now();
    round();
    times.push_back(std::chrono::duration<double>(Time::now() - start).count());
    if (rounds == 0 && (i >= 4 && std::chrono::duration<double>(Time::now() - begin).count() > seconds)) break;
  }
  const double used = cpu_seconds() - cpu;
  if (me.rank != 0) return;
  std::sort(times.begin(), times.end());
  const double least = times.front() / sharing, median = times[times.size() / 2] / sharing;
  std::printf("%-9s %10zu bytes  least %10.2f us  median %10.2f us  %7.2f GB/s  cpu %7.3f ns/byte  (%zu rounds)\n",
              what, bytes, least * 1e6, median * 1e6, static_cast<double>(bytes) / least * 1e-9,
              bytes ? used * 1e9 / sharing / static_cast<double>(times.size()) / static_cast<double>(bytes) : 0.0,
              times.size());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const char* options = argc > 2 ? argv[2] : "";
  const double seconds = argc > 3 ? std::atof(argv[3]) : 0.5;
  const std::vector<int> ends = fork_ranks(ranks, options, [&](Rank& me) {
    me.start();
    const int left = (me.rank + ranks - 1) % ranks, right = (me.rank + 1) % ranks;
    for (const size_t bytes : {size_t{8}, size_t{1} << 10, size_t{16} << 10, size_t{64} << 10, size_t{256} << 10,
                               size_t{1} << 20, size_t{4} << 20, size_t{64} << 20}) {
      std::vector<char> out(bytes, 1), in(bytes, 2);
      // The same number of rounds on all ranks, so that nobody has to be told to stop.
      const int rounds =
          std::max(5, static_cast<int>(seconds / (20e-6 * ranks + static_cast<double>(bytes) * 1e-9 * ranks)));
      me.shared->flags[0] = rounds;
      me.meet();
      if (ranks == 2)
        measure(me, "ping-pong", bytes, seconds, 2, [&] {
          if (me.rank == 0) {
            me.run({send_op(1, out.data(), bytes)});
            me.run({recv_op(1, in.data(), bytes)});
          } else {
            me.run({recv_op(0, in.data(), bytes)});
            me.run({send_op(0, out.data(), bytes)});
          }
        });
      measure(me, "ring", bytes, seconds, 1, [&] {
        me.run({recv_op(left, in.data(), bytes), send_op(right, out.data(), bytes)});
      });
    }
  });
  return *std::max_element(ends.begin(), ends.end()) == 0 ? 0 : 1;
}
