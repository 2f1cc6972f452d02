// One table of options; names and habits are those of nccl-tests where it has the option.
#include "bench/settings.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "bench/ops.h"
#include "options.h"

namespace prun {
namespace {

const OptionRow kRows[] = {
    {"--nproc", "N[,N]", "ranks on this node, one table each (default 2)"},
    {"--transport", "NAME", "auto, a plugin's name or the path of a .so (default auto; `prun plugins`)"},
    {"--transport-options", "K=V,..", "options of the transport"},
    {"--algorithm", "NAME", "the core's algorithm of this name (default: by size and ranks)"},
    {"--vs", "NAME", "a second transport, measured in turn with the first; the ratio is printed"},
    {"--vs-options", "K=V,..", "its options; alone: the same transport with other options"},
    {"--vs-algorithm", "NAME", "its algorithm; alone: the same transport with another algorithm"},
    {"--bytes", "SIZES",
     "of the larger buffer: 4,16K,4M or MIN:MAX[:FACTOR] or MIN:MAX:+STEP; K = 1024 (default 4:64M:16)"},
    {"--dtype", "NAMES", "f64 f32 bf16 f16 i64 i32 i8 u8, a list, or all (default f32)"},
    {"--redop", "NAMES", "sum prod min max avg, a list, or all (default sum)"},
    {"--root", "RANK", "of broadcast, reduce, gather and scatter (default 0)"},
    {"--place", "both|out|in", "output elsewhere, or where the input was (default both; with --vs out)"},
    {"--rank-order", "", "sums in the order of the ranks, the same bits over every transport"},
    {"--foreign", "", "buffers that the transport did not allocate"},
    {"--memory", "host|DEVICE",
     "where the buffers lie; cuda: a GPU a rank, calls as graphs on its stream (default host)"},
    {"--budget", "SECONDS", "about how long a row is measured (default 0.3)"},
    {"--iters", "N", "calls of a sample (default: as many as the budget allows)"},
    {"--samples", "N", "samples, each timed between two barriers; their median counts (default 15)"},
    {"--warmup", "N", "calls before (default 1)"},
    {"--check", "0|1", "compare every result with what it must be, outside the timed calls (default 1)"},
    {"--explain", "", "which plugin, path and algorithm each size takes, and why"},
    {"--json", "", "one JSON object a row"},
    {"--nnodes", "N", "nodes; with --node-rank, --rendezvous, --secret-file, --interface as for a plan"},
    {"--node-rank", "I", ""},
    {"--rendezvous", "HOST:PORT", ""},
    {"--secret-file", "FILE", ""},
    {"--interface", "NAME", ""},
    {"--timeout", "SECONDS", "how long a call or a missing rank is waited for (default 60)"},
    {"--help", "", "this text"},
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

// "64M" -> 67108864.
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
        fmt::format("--bytes: '{}' is no size; sizes are 4, 16K, 64M or 1G (K = 1024), ranges 8:64M:2", text));
  int64_t bytes = std::stoll(text.substr(0, digits)) << shift;
  if (bytes > int64_t{1} << 40) throw usage_error(fmt::format("--bytes: {} is more than 1T", text));
  return bytes;
}

void add_range(const std::string& text, std::vector<int64_t>& sizes) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ':');) parts.push_back(part);
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
  for (const std::string& word : split(text)) {
    std::optional<T> value = parse(word);
    if (!value) throw usage_error(fmt::format("{}: there is no '{}'{}", option, word, did_you_mean(word, names)));
    chosen.push_back(*value);
  }
  if (chosen.empty()) throw usage_error(fmt::format("{} wants at least one of {}", option, join(names, ", ")));
  return chosen;
}

// `all` of what can be measured in that memory.
std::vector<std::string> parse_ops(const std::vector<std::string>& words, bool on_host) {
  std::vector<std::string> ops;
  for (const std::string& word : words) {
    for (const std::string& op : split(word)) {
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

bool yes(const std::string& option, const std::string& text) {
  if (text != "0" && text != "1") throw usage_error(fmt::format("{} is 0 or 1, not '{}'", option, text));
  return text == "1";
}

double seconds(const std::string& option, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value > 0 && value <= 3600))
    throw usage_error(fmt::format("{} wants seconds, more than 0 and at most 3600, not '{}'", option, text));
  return value;
}

// What must hold between options.
void finish(BenchSettings& s) {
  if (s.ops.empty())
    throw usage_error("which collective? For example: prun bench all_reduce --nproc 4, or prun bench all");
  if (s.node_rank >= s.nnodes)
    throw usage_error(fmt::format("--node-rank {} is not below --nnodes {}", s.node_rank, s.nnodes));
  if (s.nnodes > 1 && s.rendezvous.empty())
    throw usage_error("--nnodes needs --rendezvous HOST:PORT, the address where node 0 listens");
  if (s.nnodes > 1 && s.nproc.size() > 1) throw usage_error("--nproc is one number where there are several nodes");
  if (!s.memory.empty() && s.foreign)
    throw usage_error("--foreign is of the host's memory: not with --memory " + s.memory);
  for (const std::string& op : s.ops) {
    if (!s.memory.empty() && find_bench_op(op).what != BenchOp::What::collective)
      throw usage_error(fmt::format("{} is measured in the host's memory: not with --memory {}", op, s.memory));
  }
  for (int ranks : s.nproc) {
    if (s.root >= ranks * s.nnodes)
      throw usage_error(fmt::format("--root {} is none of {} ranks", s.root, ranks * s.nnodes));
    for (const std::string& op : s.ops) {
      if (ranks * s.nnodes < find_bench_op(op).least_ranks)
        throw usage_error(fmt::format("{} needs at least {} ranks: --nproc {}", op, find_bench_op(op).least_ranks,
                                      find_bench_op(op).least_ranks));
    }
  }
}

}  // namespace

int64_t BenchSettings::most_bytes() const { return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end()); }

std::vector<int64_t> parse_sizes(const std::string& text) {
  std::vector<int64_t> sizes;
  for (const std::string& part : split(text)) {
    if (part.find(':') != std::string::npos)
      add_range(part, sizes);
    else
      sizes.push_back(one_size(part));
  }
  if (sizes.empty()) throw usage_error("--bytes wants at least one size, such as 4,16K,4M");
  return sizes;
}

std::string bench_usage() {
  std::vector<std::string> names;
  for (const BenchOp& op : bench_ops()) names.emplace_back(op.name);
  std::string text = fmt::format(
      "prun bench OP[,OP] [options]   collectives by size over a transport, in the columns of nccl-tests\n\n"
      "OP: {}, or all\n\noptions:\n",
      join(names, ", "));
  for (const OptionRow& row : kRows) text += option_line(row);
  return text +
         "\nA sample is a number of calls between two barriers; its time is that of the slowest rank, a row's the "
         "median\n"
         "of samples. algbw is bytes over time, busbw algbw times 2(n-1)/n (all_reduce), (n-1)/n (gathers, scatters,\n"
         "all_to_all) or 1, in 1e9 bytes a second. send_recv: each rank sends to the next and receives from the one\n"
         "before. ping_pong: one way between ranks 0 and 1, half a round trip. idle: the share of a core that a rank\n"
         "uses while it waits a second. Exit status 1: a result was wrong.\n";
}

BenchSettings parse_bench(const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const OptionRow& row : kRows) names.emplace_back(row.name);
  check_option_names(words, names);
  BenchSettings s;
  BenchSide first, second;
  std::string bytes = "4:64M:16", dtype = "f32", redop = "sum", place, check = "1", nproc = "2", nnodes = "1",
              node_rank = "0", root = "0", timeout = "60", budget = "0.3", iters, samples = "15", warmup = "1";
  std::string vs;
  std::vector<std::string> ops;
  CLI::App app;
  app.set_help_flag();
  app.add_option("op", ops);
  app.add_option("--nproc", nproc);
  app.add_option("--transport", first.transport);
  app.add_option("--transport-options", first.options);
  app.add_option("--algorithm", first.algorithm);
  app.add_option("--vs", vs);
  app.add_option("--vs-options", second.options);
  app.add_option("--vs-algorithm", second.algorithm);
  app.add_option("--bytes", bytes);
  app.add_option("--dtype", dtype);
  app.add_option("--redop", redop);
  app.add_option("--root", root);
  app.add_option("--place", place);
  app.add_flag("--rank-order", s.rank_order);
  app.add_flag("--foreign", s.foreign);
  app.add_option("--memory", s.memory);
  app.add_option("--budget", budget);
  app.add_option("--iters", iters);
  app.add_option("--samples", samples);
  app.add_option("--warmup", warmup);
  app.add_option("--check", check);
  app.add_flag("--explain", s.explain);
  app.add_flag("--json", s.json);
  app.add_option("--nnodes", nnodes);
  app.add_option("--node-rank", node_rank);
  app.add_option("--rendezvous", s.rendezvous);
  app.add_option("--secret-file", s.secret_file);
  app.add_option("--interface", s.network_interface);
  app.add_option("--timeout", timeout);
  app.add_flag("--help,-h", s.help);
  try {
    app.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::ParseError& error) {
    throw usage_error(error.what());
  }
  if (s.help) return s;
  if (s.memory == "host") s.memory.clear();
  s.ops = parse_ops(ops, s.memory.empty());
  s.bytes = parse_sizes(bytes);
  s.dtypes = by_name<Dtype>("--dtype", dtype, parse_dtype, dtype_name, Dtype::u8);
  s.redops = by_name<RedOp>("--redop", redop, parse_redop, redop_name, RedOp::avg);
  s.sides = {first};
  if (!vs.empty() || !second.options.empty() || !second.algorithm.empty()) {
    second.transport = vs.empty() ? first.transport : vs;
    s.sides.push_back(second);
  }
  s.place = place.empty() ? (s.sides.size() == 2 ? BenchPlace::out : BenchPlace::both) : parse_place(place);
  if (s.sides.size() == 2 && s.place == BenchPlace::both) throw usage_error("--vs wants --place out or in, not both");
  s.check = yes("--check", check);
  s.nproc.clear();
  for (const std::string& ranks : split(nproc)) s.nproc.push_back(whole_number("--nproc", ranks, 1));
  if (s.nproc.empty()) s.nproc.push_back(whole_number("--nproc", nproc, 1));
  s.nnodes = whole_number("--nnodes", nnodes, 1);
  s.node_rank = whole_number("--node-rank", node_rank, 0);
  s.root = whole_number("--root", root, 0);
  s.timeout_s = whole_number("--timeout", timeout, 1);
  s.budget_s = seconds("--budget", budget);
  s.iters = iters.empty() ? 0 : whole_number("--iters", iters, 1);
  s.samples = whole_number("--samples", samples, 1);
  s.warmup = whole_number("--warmup", warmup, 0);
  finish(s);
  return s;
}

}  // namespace prun
