// Every strategy on every mesh with every model computes the result of one rank: the losses of five steps and of an
// evaluation in between, and the reported norms of each unit. The reference device in f64 must agree to 1e-10 relative,
// which hides rounding but no wrong reduction, stale weight or repeated sample. Everything runs in one process, on
// virtual ranks that interleave at random.
//
//   parity_product [--some] [--atlas] [--check-replicas] [--pad-vocabulary N] [--table FILE] [WORD ...]
//
// WORDs: only cases whose line contains all of them. --check-replicas: ranks compare their replicated tensors after
// every step. --pad-vocabulary: logits of the ranks, but not of the one rank, are padded to a multiple of N columns.
//
// --atlas runs the commands of plans/atlas/README.md; with --table it also writes the differences into their rows.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "kernels/devices.h"
#include "tests/parity/product_cases.h"

namespace prun::test {
namespace {

constexpr double kMost = 1e-10, kMostOverWire = 1e-5;  // relative; over an f32 wire, values are rounded

// Indexed by step, then rank; the steps are followed by evaluations, then by norms that any rank has reported.
using Losses = std::vector<std::vector<double>>;

struct Outcome {
  std::string problem;  // empty: passed
  double difference = 0;
};

std::string line_of(const ProductCase& one) {
  return fmt::format("{:<30} {:<6} {}", one.strategy, one.model, one.mesh);
}

// Values of --check-replicas and --pad-vocabulary.
struct How {
  int64_t check_replicas = 0, vocabulary_multiple = 1;
};

Losses losses_on(int ranks, const std::string& plan, const Settings& settings, uint64_t seed, const How& how) {
  static const std::unique_ptr<Device> device = open_device("reference");
  const Job job = parity_job(ranks, settings, "reference", plan, false, how.check_replicas, how.vocabulary_multiple);
  VirtualRun run = run_virtual_ranks(job, *device, {.order = VirtualOrder::random, .seed = seed});
  run.losses.insert(run.losses.end(), run.eval_losses.begin(), run.eval_losses.end());
  std::map<std::string, double> norms;  // "3 block0 grad_norm"
  for (const auto& [rank, line] : run.printed) {
    const nlohmann::json object = nlohmann::json::parse(line.substr(1));
    for (const auto& [unit, both] : object["report"].items())
      for (const auto& [name, norm] : both.items())
        if (!norms.emplace(fmt::format("{} {} {}", object["step"].dump(), unit, name), norm).second)
          throw plan_error(fmt::format("{} is reported by two ranks, one is {}", unit, rank));
  }
  for (const auto& [what, norm] : norms) run.losses.push_back({norm});
  return run.losses;
}

class Product {
 public:
  explicit Product(How how) : how_(how) {}

  Outcome run(const ProductCase& one) {
    try {
      const Losses& expected = yardstick(one);
      const double most = one.settings.count("wire") != 0 ? kMostOverWire : kMost;
      return compare(losses_on(one.ranks, one.plan, one.settings, ++seed_, how_), expected, most);
    } catch (const Error& error) {
      return {error.what(), 0};
    }
  }

 private:
  const Losses& yardstick(const ProductCase& one) {
    const auto key = std::pair(one.plan, one.yardstick);
    const auto known = yardsticks_.find(key);
    if (known != yardsticks_.end()) return known->second;
    return yardsticks_[key] = losses_on(1, one.plan, one.yardstick, 1, {});
  }

  static Outcome compare(const Losses& found, const Losses& expected, double most) {
    if (found.size() != expected.size()) return {fmt::format("{} values of {}", found.size(), expected.size()), 0};
    Outcome outcome;
    for (size_t step = 0; step < found.size(); step++) {
      for (const double loss : found[step]) {
        const double difference = std::abs(loss - expected[step][0]) / std::abs(expected[step][0]);
        outcome.difference = std::max(outcome.difference, difference);
        if (difference <= most || !outcome.problem.empty()) continue;  // false for NaN
        outcome.problem = fmt::format("value {}: {:.12g}, one rank has {:.12g}", step + 1, loss, expected[step][0]);
      }
    }
    return outcome;
  }

  std::map<std::pair<std::string, Settings>, Losses> yardsticks_;
  uint64_t seed_ = 0;
  How how_;
};

struct Arguments {
  bool some = false;
  bool atlas = false;
  How how;
  std::string table;
  std::vector<std::string> words;

  bool wants(const ProductCase& one) const {
    for (const std::string& word : words)
      if (line_of(one).find(word) == std::string::npos) return false;
    return !some || one.some;
  }
};

// One line per strategy: its models and meshes, and the largest difference.
class Table {
 public:
  void add(const ProductCase& one, const Outcome& outcome) {
    if (rows_.empty() || rows_.back().strategy != one.strategy) rows_.push_back({one.strategy, {}, {}, 0, 0, 0});
    Row& row = rows_.back();
    row.cases++;
    row.failed += outcome.problem.empty() ? 0 : 1;
    row.difference = std::max(row.difference, outcome.difference);
    for (auto [list, word] : {std::pair(&row.models, one.model), std::pair(&row.meshes, one.mesh)})
      if (std::find(list->begin(), list->end(), word) == list->end()) list->push_back(word);
  }

  void write(const std::string& path) const {
    std::ofstream file(path);
    file << "# Parity: what ran\n\n"
            "Generated by `parity_product --table FILE`. Losses of five steps and an evaluation in "
            "f64 on\n"
            "virtual ranks that interleave at random, against one rank.\n\n"
            "| strategy | models | meshes | cases | largest relative difference |\n|---|---|---|---|---|\n";
    int cases = 0, failed = 0;
    for (const Row& row : rows_) {
      file << fmt::format("| {} | {} | {} | {} | {:.1e}{} |\n", row.strategy, fmt::join(row.models, ", "),
                          fmt::join(row.meshes, "; "), row.cases, row.difference,
                          row.failed > 0 ? fmt::format(", **{} failed**", row.failed) : "");
      cases += row.cases;
      failed += row.failed;
    }
    file << fmt::format("\n{} cases, {} failed; the bound is {:.0e}.\n", cases, failed, kMost);
  }

 private:
  struct Row {
    std::string strategy;
    std::vector<std::string> models, meshes;
    int cases, failed;
    double difference;
  };
  std::vector<Row> rows_;
};

// Writes the last cell of the row with this command.
void write_difference(const std::string& path, const ProductCase& one, const Outcome& outcome) {
  std::ifstream old(path);
  std::string text, line;
  while (std::getline(old, line)) {
    const bool of_row = line.starts_with("|") && line.find("`" + one.strategy + "`") != std::string::npos;
    if (of_row) {
      line.erase(line.rfind('|', line.size() - 2) + 1);
      line += fmt::format(" {:.1e} |", outcome.difference);
    }
    text += line + "\n";
  }
  std::ofstream(path) << text;
}

int run_all(const Arguments& arguments) {
  Product product(arguments.how);
  Table table;
  int passed = 0, failed = 0;
  for (const ProductCase& one : arguments.atlas ? atlas_cases() : product_cases()) {
    if (!arguments.wants(one)) continue;
    const auto begin = std::chrono::steady_clock::now();
    const Outcome outcome = product.run(one);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    table.add(one, outcome);
    if (arguments.atlas && !arguments.table.empty()) write_difference(arguments.table, one, outcome);
    (outcome.problem.empty() ? passed : failed)++;
    fmt::print("{}  {:<60} {:.1e}  {:.2f} s\n", outcome.problem.empty() ? "ok    " : "FAILED", line_of(one),
               outcome.difference, seconds);
    if (!outcome.problem.empty()) fmt::print("        {}\n", outcome.problem);
    std::fflush(stdout);
  }
  if (!arguments.atlas && !arguments.table.empty()) table.write(arguments.table);
  fmt::print("{} passed, {} failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

}  // namespace
}  // namespace prun::test

int main(int argc, char** argv) {
  prun::test::Arguments arguments;
  for (int i = 1; i < argc; i++) {
    const std::string_view word = argv[i];
    if (word == "--some")
      arguments.some = true;
    else if (word == "--atlas")
      arguments.atlas = true;
    else if (word == "--check-replicas")
      arguments.how.check_replicas = 1;
    else if (word == "--pad-vocabulary" && i + 1 < argc)
      arguments.how.vocabulary_multiple = std::stoll(argv[++i]);
    else if (word == "--table" && i + 1 < argc)
      arguments.table = argv[++i];
    else
      arguments.words.emplace_back(word);
  }
  return prun::test::run_all(arguments);
}
