// How the peers' collectives are timed: by the rule of `prun bench`, so that the figures can stand side by side.
//
// A sample is k calls between two barriers, its time that of the slowest rank; the median of the samples counts. k
// follows from what calls took before, so that one size takes about `budget` seconds. In the timed loop stands nothing
// but the call.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace peers {

// What the rule needs of a library.
struct Library {
  int rank = 0, ranks = 1;
  std::function<void()> barrier;
  std::function<double(double)> slowest;     // the largest of all ranks' values
  std::function<double(double)> from_first;  // rank 0's
};

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The command line of the programs here: [RANKS] OP BYTES[,BYTES...] [SECONDS [in|out [ALGORITHM]]]; RANKS where the
// program starts them itself.
struct Request {
  int ranks = 0;
  std::string op, algorithm;
  std::vector<size_t> bytes;
  double budget = 0.3;
  bool in_place = false;
};

inline Request parse_request(int argc, char** argv, bool starts_ranks) {
  Request request;
  if (starts_ranks && argc > 1) {
    request.ranks = std::clamp(std::atoi(argv[1]), 1, 64);
    --argc;
    ++argv;
  }
  if (argc < 3) {
    std::fprintf(stderr, "usage: %sOP BYTES[,BYTES...] [SECONDS [in|out [ALGORITHM]]]\n", starts_ranks ? "RANKS " : "");
    std::exit(2);
  }
  request.op = argv[1];
  std::istringstream sizes(argv[2]);
  for (std::string size; std::getline(sizes, size, ',');) request.bytes.push_back(std::stoull(size));
  if (argc > 3) request.budget = std::atof(argv[3]);
  if (argc > 4) request.in_place = std::string(argv[4]) == "in";
  if (argc > 5) request.algorithm = argv[5];
  return request;
}

// Elements of one rank's part, as `prun bench` counts: `bytes` is the larger of a rank's two buffers.
inline size_t count_of(const std::string& op, size_t bytes, int ranks) {
  bool in_parts = op != "all_reduce" && op != "broadcast";
  return std::max<size_t>(1, bytes / sizeof(float) / (in_parts ? static_cast<size_t>(ranks) : 1));
}

// One line of JSON from rank 0.
inline void measure(const Library& library, const Request& request, size_t bytes, const std::function<void()>& call) {
  constexpr int kSamples = 15, kLeast = 3;
  const double share = request.budget / kSamples;
  const auto calls_of = [share](double one) { return static_cast<int>(std::clamp(share / one, 1.0, 5000.0)); };
  library.barrier();
  call();
  library.barrier();
  double start = now();
  int tried = 0;
  do {
    call();
    ++tried;
  } while (library.from_first(now() - start) < request.budget * 0.05 && tried < 1000);
  int calls = calls_of(library.from_first((now() - start) / tried));
  std::vector<double> times;
  for (double spent = 0; times.size() < kSamples && (times.size() < kLeast || spent <= request.budget);) {
    library.barrier();
    start = now();
    for (int i = 0; i < calls; ++i) call();
    const double one = library.slowest((now() - start) / calls);
    times.push_back(one);
    spent += one * calls;
    if (one * calls > 2 * share) calls = calls_of(one);
  }
  std::sort(times.begin(), times.end());
  if (library.rank != 0) return;
  std::printf("{\"op\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"time_us\":%.3f}\n", request.op.c_str(), library.ranks, bytes,
              times[times.size() / 2] * 1e6);
  std::fflush(stdout);
}

}  // namespace peers
