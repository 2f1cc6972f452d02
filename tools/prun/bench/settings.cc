// Options have the names and semantics of nccl-tests if nccl-tests has them.
#include "bench/settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "bench/ops.h"
#include "job_options.h"

namespace prun {
namespace {

// Parses a size: "64M" -> 67108864.
int64_t one_size(const std::string& text) {
  size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  std::string unit = text.substr(digits);
  int shift = -1;
  for (const char* same : {"", "B"}) {
    if (unit == same) shift = 0;
  }
  for (int i = 0; i < 3; ++i) {
    const std::string letter(1, "KMG"[i]);
    if (unit == letter || unit == letter + "B" || unit == letter + "iB") shift = 10 * (i + 1);
  }
  if (digits == 0 || digits > 15 || shift < 0)
    throw usage_error(
        fmt::format("--bytes: '{}' is not a size; sizes are 4, 16K, 64M or 1G (K = 1024), ranges 8:64M:2", text));
  int64_t bytes = std::stoll(text.substr(0, digits)) << shift;
  if (bytes > int64_t{1} << 40) throw usage_error(fmt::format("--bytes: {} is more than 1T", text));
  return bytes;
}

void add_range(const std::string& text, std::vector<int64_t>& sizes) {
  const std::vector<std::string> parts = split(text, ':');
  if (parts.size() < 2 || parts.size() > 3)
    throw usage_error(fmt::format("--bytes: a range is MIN:MAX, MIN:MAX:FACTOR or MIN:MAX:+STEP, not '{}'", text));
  const int64_t least = one_size(parts[0]), most = one_size(parts[1]);
  const std::string by = parts.size() == 3 ? parts[2] : "2";
  const bool adds = by[0] == '+';
  const int64_t step = one_size(adds ? by.substr(1) : by);
  if (least > most) throw usage_error(fmt::format("--bytes: the range {} begins above its end", text));
  if (step < (adds ? 1 : 2) || (!adds && least == 0))
    throw usage_error(fmt::format("--bytes: the range {} does not grow", text));
  if (adds && (most - least) / step > 10000)
    throw usage_error(fmt::format("--bytes: the range {} has more than 10000 sizes", text));
  for (int64_t bytes = least; bytes <= most; bytes = adds ? bytes + step : bytes * step) sizes.push_back(bytes);
}

template <class T>
std::vector<T> by_name(const std::string& option, const std::string& text, std::optional<T> (*parse)(std::string_view),
                       std::string_view (*name)(T), T last) {
  std::vector<T> all;
  std::vector<std::string> names;
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    all.push_back(static_cast<T>(i));
    names.emplace_back(name(all.back()));
  }
  if (text == "all") return all;
  std::vector<T> chosen;
  for (const std::string& word : split(text, ',')) {
    std::optional<T> value = parse(word);
    if (!value) throw usage_error(fmt::format("{}: there is no '{}'{}", option, word, did_you_mean(word, names)));
    chosen.push_back(*value);
  }
  if (chosen.empty()) throw usage_error(fmt::format("{} must name at least one of {}", option, join(names, ", ")));
  return chosen;
}

// Parses operations; `all` covers the measurable ones in that memory.
std::vector<std::string> parse_ops(const std::vector<std::string>& words, bool on_host) {
  std::vector<std::string> ops;
  for (const std::string& word : words) {
    for (const std::string& op : split(word, ',')) {
      if (op == "all") {
        for (const BenchOp& each : bench_ops()) {
          if (each.in_all && (on_host || each.what == BenchOp::What::collective)) ops.emplace_back(each.name);
        }
      } else {
        ops.push_back(find_bench_op(op).name);
      }
    }
  }
  return ops;
}

BenchPlace parse_place(const std::string& text) {
  if (text == "both") return BenchPlace::both;
  if (text == "out") return BenchPlace::out;
  if (text == "in") return BenchPlace::in;
  throw usage_error(fmt::format("--place is both, out or in, not '{}'", text));
}

double parse_budget(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value > 0 && value <= 3600))
    throw usage_error(fmt::format("--budget must be seconds, more than 0 and at most 3600, not '{}'", text));
  return value;
}

// Checks combinations of options.
void check_together(const BenchSettings& s, int nnodes) {
  if (s.ops.empty())
    throw usage_error("which collective? For example: prun bench all_reduce --nproc 4, or prun bench all");
  if (nnodes > 1 && s.nproc.size() > 1) throw usage_error("--nproc is one number where there are several nodes");
  if (!s.memory.empty() && s.foreign)
    throw usage_error("--foreign measures host memory and cannot be combined with --memory " + s.memory);
  for (const std::string& op : s.ops) {
    if (!s.memory.empty() && find_bench_op(op).what != BenchOp::What::collective)
      throw usage_error(
          fmt::format("{} is measured in host memory and cannot be combined with --memory {}", op, s.memory));
  }
  for (int ranks : s.nproc) {
    if (s.root >= ranks * nnodes)
      throw usage_error(fmt::format("--root {} is out of range: there are {} ranks, from 0", s.root, ranks * nnodes));
    for (const std::string& op : s.ops) {
      if (ranks * nnodes < find_bench_op(op).least_ranks)
        throw usage_error(fmt::format("{} needs at least {} ranks: --nproc {}", op, find_bench_op(op).least_ranks,
                                      find_bench_op(op).least_ranks));
    }
  }
}

}  // namespace

int64_t BenchSettings::most_bytes() const { return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end()); }

std::vector<int64_t> parse_sizes(const std::string& text) {
  std::vector<int64_t> sizes;
  for (const std::string& part : split(text, ',')) {
    if (part.find(':') != std::string::npos)
      add_range(part, sizes);
    else
      sizes.push_back(one_size(part));
  }
  if (sizes.empty()) throw usage_error("--bytes must have at least one size, such as 4,16K,4M");
  return sizes;
}

std::string bench_operations() {
  std::vector<std::string> names;
  for (const BenchOp& op : bench_ops()) names.emplace_back(op.name);
  return fmt::format("OP: {}, or all", join(names, ", "));
}

std::string bench_terms() {
  return "A sample is a number of calls between two barriers; its time is that of the slowest rank, a row's the median "
         "of samples. algbw is bytes over time, busbw algbw times 2(n-1)/n (all_reduce), (n-1)/n (gathers, scatters, "
         "all_to_all) or 1, in 1e9 bytes a second. send_recv: each rank sends to the next and receives from the one "
         "before. ping_pong: one way between ranks 0 and 1, half a round trip. idle: the share of a core that a rank "
         "uses while it waits a second. Exit status 1: a result was wrong.";
}

void declare_bench(OptionTable& table, BenchSettings& s) {
  const auto parsed = [&](const char* name, const char* unit, const char* help, const OptionTable::Read& read) {
    table.parsed(name, unit, read, help);
  };
  parsed("--nproc", "N[,N]", "ranks on this node, one table each (default 2)", [&s](const std::string& text) {
    s.nproc.clear();
    for (const std::string& ranks : split(text, ',')) s.nproc.push_back(whole_number("--nproc", ranks, 1));
    if (s.nproc.empty()) whole_number("--nproc", text, 1);
  });
  table.text("--vs", "NAME", s.vs, "a second transport, measured in turn with the first; the ratio is printed");
  option::plugin_options(table, "--vs-options", s.vs_options,
                         "its options; alone: the same transport with other options");
  table.text("--vs-algorithm", "NAME", s.vs_algorithm,
             "its algorithm; alone: the same transport with another algorithm");
  parsed("--bytes", "SIZES",
         "of the larger buffer: 4,16K,4M or MIN:MAX[:FACTOR] or MIN:MAX:+STEP; K = 1024 (default 4:64M:16)",
         [&s](const std::string& text) { s.bytes = parse_sizes(text); });
  parsed("--dtype", "NAMES", "f64 f32 bf16 f16 i64 i32 i8 u8, a list, or all (default f32)",
         [&s](const std::string& text) {
           s.dtypes = by_name<Dtype>("--dtype", text, parse_dtype, dtype_name, Dtype::u8);
         });
  parsed("--redop", "NAMES", "sum prod min max avg, a list, or all (default sum)", [&s](const std::string& text) {
    s.redops = by_name<RedOp>("--redop", text, parse_redop, redop_name, RedOp::avg);
  });
  table.whole("--root", "RANK", s.root, 0, "of broadcast, reduce, gather and scatter (default 0)");
  parsed("--place", "both|out|in", "output elsewhere, or where the input was (default both; with --vs out)",
         [&s](const std::string& text) { s.place = parse_place(text); });
  table.flag("--rank-order", s.rank_order, "sums in the order of the ranks, the same bits over every transport");
  table.flag("--foreign", s.foreign, "buffers that the transport did not allocate");
  parsed("--memory", "host|DEVICE",
         "memory of the buffers; cuda: a GPU a rank, calls as graphs on its stream (default host)",
         [&s](const std::string& text) { s.memory = text == "host" ? "" : text; });
  parsed("--budget", "SECONDS", "about how long a row is measured (default 0.3)",
         [&s](const std::string& text) { s.budget_s = parse_budget(text); });
  table.whole("--iters", "N", s.iters, 1, "calls of a sample (default: as many as the budget allows)");
  table.whole("--samples", "N", s.samples, 1,
              "samples, each timed between two barriers; their median counts (default 15)");
  table.whole("--warmup", "N", s.warmup, 0, "calls before (default 1)");
  parsed("--check", "0|1", "compare every result with what it must be, outside the timed calls (default 1)",
         [&s](const std::string& text) {
           if (text != "0" && text != "1") throw usage_error(fmt::format("--check is 0 or 1, not '{}'", text));
           s.check = text == "1";
         });
  table.flag("--explain", s.explain, "which plugin, path and algorithm each size takes, and why");
}

void finish_bench(BenchOptions& options, const std::vector<std::string>& operands) {
  BenchSettings& s = options.bench;
  s.ops = parse_ops(operands, s.memory.empty());
  s.sides = {options.job.world};
  if (!s.vs.empty() || !s.vs_options.empty() || !s.vs_algorithm.empty()) {
    WorldOptions& second = s.sides.emplace_back(options.job.world);
    if (!s.vs.empty()) second.transport = s.vs;
    second.transport_options = s.vs_options;
    second.algorithm = s.vs_algorithm;
    if (s.place == BenchPlace::both) throw usage_error("--vs compares one placement; add --place out or --place in");
  }
  s.place = s.place.value_or(s.sides.size() == 2 ? BenchPlace::out : BenchPlace::both);
  check_together(s, options.job.launch.nnodes);
}

}  // namespace prun
