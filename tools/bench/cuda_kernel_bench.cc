// cuda_kernel_bench [--options k=v,...] [--family NAME] [--only TEXT] [--quick] [--small] [--json FILE]: compares the
// CUDA device's kernels with the best of NVIDIA's libraries (gemm, attention, experts), or with copies of as many bytes
// (memory). Prints a table; --json writes it as JSON after each row, so that an interrupted run keeps its rows.
//
// Exit codes as for prun: 1 = a figure could not be measured, 2 = usage, or no device to measure on.
#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "tools/bench/cuda_bench.h"

namespace prun::bench {
namespace {

using Family = void (*)(CudaBench&, const std::string&, const std::function<void(const Figure&)>&);
constexpr std::pair<const char*, Family> kFamilies[] = {
    {"gemm", gemm_figures},
    {"experts", experts_figures},
    {"memory", memory_figures},
#ifdef PRUN_CUDA_CUDNN
    {"attention", attention_figures},
#endif
};

struct Options {
  std::string options, family, only, json;
  bool quick = false, small = false;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    std::string* value = word == "--options"  ? &options.options
                         : word == "--family" ? &options.family
                         : word == "--only"   ? &options.only
                         : word == "--json"   ? &options.json
                                              : nullptr;
    if (word == "--quick")
      options.quick = true;
    else if (word == "--small")
      options.small = options.quick = true;
    else if (value == nullptr || i + 1 == argc)
      throw std::runtime_error(
          fmt::format("'{}' is no option, or its value is missing: cuda_kernel_bench "
                      "[--options k=v,...] [--family gemm|experts|memory|attention] [--only TEXT] [--quick] [--small] "
                      "[--json FILE]",
                      word));
    else
      *value = argv[++i];
  }
  return options;
}

nlohmann::json json_of(const Figure& f) {
  return {{"group", f.group},  {"what", f.what},    {"flops", f.flops},   {"ours_us", f.ours},
          {"best_us", f.best}, {"best", f.best_is}, {"judged", f.judged}, {"problem", f.problem}};
}

void write_json(const std::string& path, const std::string& gpu, const nlohmann::json& rows) {
  std::ofstream file(path);
  file << nlohmann::json{{"gpu", gpu}, {"rows", rows}}.dump(1) << "\n";
  if (!file.flush()) throw std::runtime_error(fmt::format("{}: {}", path, std::strerror(errno)));
}

int run(const Options& options) {
  CudaBench bench(options.options);
  bench.quick = options.quick, bench.small = options.small;
  bool known = options.family.empty(), failed = false;
  nlohmann::json rows = nlohmann::json::array();
  fmt::print("{}\n{:<14} {:<28} {:>10} {:>10} {:>7} {:>9}  {}\n", bench.gpu(), "model", "op", "ours us", "best us",
             "ratio", "TFLOP/s", "the best is");
  for (const auto& [name, family] : kFamilies) {
    if (!options.family.empty() && options.family != name) continue;
    known = true;
    family(bench, options.only, [&](const Figure& f) {
      failed = failed || !f.problem.empty();
      const std::string best = f.best > 0 ? fmt::format("{:.1f}", f.best) : "none";
      const std::string ratio = f.best > 0 ? fmt::format("{:.3f}", f.ours / f.best) : "";
      fmt::print("{:<14} {:<28} {:>10.1f} {:>10} {:>7} {:>9.1f}  {}\n", f.group, f.what, f.ours, best, ratio,
                 f.ours > 0 ? f.rate(f.ours) : 0, f.problem.empty() ? f.best_is : f.problem);
      std::fflush(stdout);
      rows.push_back(json_of(f));
      if (!options.json.empty()) write_json(options.json, bench.gpu(), rows);
    });
  }
  if (!known) throw std::runtime_error(fmt::format("--family: '{}' is not measured by this program", options.family));
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace prun::bench

int main(int argc, char** argv) {
  try {
    return prun::bench::run(prun::bench::parse(argc, argv));
  } catch (const std::exception& error) {
    fmt::print(stderr, "cuda_kernel_bench: {}\n", error.what());
    return 2;
  }
}
