// Options of `prun bench`: the words of its command line, which are sent unchanged to the ranks of all nodes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "ir/types.h"
#include "job/job_spec.h"
#include "option_table.h"

namespace prun {

enum class BenchPlace { both, out, in };  // placement of the output: both, out of place, in place

// Parses "4", "16K", "8:64M:2", "1M:4M:+1M" and lists of them, in bytes; K, M and G are powers of 1024. Throws
// usage_error.
std::vector<int64_t> parse_sizes(const std::string& text);

struct BenchSettings {
  std::vector<std::string> ops;
  std::vector<int64_t> bytes = parse_sizes("4:64M:16");  // sizes of the larger of a rank's two buffers
  std::vector<Dtype> dtypes = {Dtype::f32};
  std::vector<RedOp> redops = {RedOp::sum};
  int root = 0;
  std::string vs, vs_options, vs_algorithm;  // arguments of --vs
  std::vector<WorldOptions> sides;           // the transport, and the one that --vs compares it with
  int iters = 0;                             // calls per sample; 0: as many as the budget allows
  int warmup = 1, samples = 15;
  double budget_s = 0.3;  // time limit per row and side
  std::optional<BenchPlace> place;
  std::string memory;  // device whose memory holds the buffers; "": the host's
  bool check = true, explain = false, foreign = false, rank_order = false;
  std::vector<int> nproc = {2};

  int64_t most_bytes() const;
};

struct BenchOptions {
  JobSpec job;
  BenchSettings bench;
  bool json = false;
};

void declare_bench(OptionTable& table, BenchSettings& settings);
// Completes `options.bench` after parsing. Throws usage_error for options that exclude each other.
void finish_bench(BenchOptions& options, const std::vector<std::string>& operands);
// Parses the words of a command line `bench ..`, in a rank. Throws usage_error.
BenchOptions read_bench_words(const std::vector<std::string>& words);  // bench.cc
// Texts of the help: the operations, and the meaning of the columns.
std::string bench_operations();
std::string bench_terms();

}  // namespace prun
