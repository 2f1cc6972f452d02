// Timing of the peers' collectives by the rule of `prun bench`, so that their times are comparable.
//
// A sample is k calls between two barriers; its time is that of the slowest rank, and the median of the samples counts.
// k is chosen from earlier calls so that one size takes about `budget` seconds. The timed loop contains only the call.
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

// Functions of a library that the rule needs.
struct Library {
  int rank = 0, ranks = 1;
  std::function<void()> barrier;
  std::function<double(double)> slowest;     // maximum over all ranks
  std::function<double(double)> from_first;  // value of rank 0
};

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The command line of these programs: [RANKS] OP BYTES[,BYTES...] [SECONDS [in|out [ALGORITHM]]]; RANKS only for
// programs that start the ranks themselves.
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

// Returns the elements of one rank's part; as in `prun bench`, `bytes` is the size of the larger of a rank's two
// buffers.
inline size_t count_of(const std::string& op, size_t bytes, int ranks) {
  bool in_parts = op != "all_reduce" && op != "broadcast";
  return std::max<size_t>(1, bytes / sizeof(float) / (in_parts ? static_cast<size_t>(ranks) : 1));
}

// Prints one line of JSON on rank 0.
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
