// What `prun bench` is asked for: the words of its command line, which travel as they are to the ranks of all nodes.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "ir/types.h"

namespace prun {

// One of the two sides that --vs compares, or the only one.
struct BenchSide {
  std::string transport = "auto";  // auto, a plugin's name, or the path of a .so
  std::string options, algorithm;
  bool operator==(const BenchSide&) const = default;
};

enum class BenchPlace { both, out, in };  // of the output: elsewhere, or where the input was

struct BenchSettings {
  bool help = false;
  std::vector<std::string> ops;
  std::vector<int64_t> bytes;  // of the larger of a rank's two buffers
  std::vector<Dtype> dtypes;
  std::vector<RedOp> redops;
  int root = 0;
  std::vector<BenchSide> sides;  // one or two
  int iters = 0;                 // calls of a sample; 0: as many as the budget allows
  int warmup = 1, samples = 15;
  double budget_s = 0.3;  // of a row and side
  BenchPlace place = BenchPlace::both;
  std::string memory;  // the device whose memory buffers lie in; "": the host's
  bool check = true, explain = false, foreign = false, rank_order = false, json = false;

  std::vector<int> nproc = {2};
  int nnodes = 1, node_rank = 0;
  std::string rendezvous, secret_file, network_interface;
  double timeout_s = 60;

  int64_t most_bytes() const;
};

// Throws usage_error.
BenchSettings parse_bench(const std::vector<std::string>& words);
std::string bench_usage();

// "4", "16K", "8:64M:2", "1M:4M:+1M" and lists of them, in bytes; K, M and G are powers of 1024. Throws usage_error.
std::vector<int64_t> parse_sizes(const std::string& text);

}  // namespace prun
