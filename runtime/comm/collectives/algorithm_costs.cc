#include "comm/collectives/algorithm_costs.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <sstream>

#include "base/error.h"
#include "base/text.h"

namespace prun {
namespace {

struct Compared {
  CollKind kind;
  const char* name;
  AlgorithmWork (*work)(double n, double rounds);  // rounds: ⌈log2 n⌉
};

// Steps are sequential messages of a rank; volumes as documented in the algorithms' files.
constexpr Compared kCompared[] = {
    {CollKind::all_reduce, "gather",
     [](double n, double rounds) {
       return AlgorithmWork{rounds, n - 1};
     }},
    {CollKind::all_reduce, "direct",
     [](double n, double) {
       return AlgorithmWork{2 * (n - 1), 2 * (n - 1) / n};
     }},
    {CollKind::all_reduce, "doubling",
     [](double, double rounds) {
       return AlgorithmWork{rounds, rounds};
     }},
    {CollKind::all_reduce, "halving",
     [](double n, double rounds) {
       return AlgorithmWork{2 * rounds, 2 * (n - 1) / n};
     }},
    {CollKind::all_reduce, "ring",
     [](double n, double) {
       return AlgorithmWork{2 * (n - 1), 2 * (n - 1) / n};
     }},
    {CollKind::reduce_scatter, "direct",
     [](double n, double) {
       return AlgorithmWork{n - 1, (n - 1) / n};
     }},
    {CollKind::reduce_scatter, "bruck",
     [](double, double rounds) {
       return AlgorithmWork{rounds, rounds / 2};
     }},
    {CollKind::reduce_scatter, "halving",
     [](double n, double rounds) {
       return AlgorithmWork{rounds, (n - 1) / n};
     }},
    {CollKind::reduce_scatter, "pairwise",
     [](double n, double) {
       return AlgorithmWork{n - 1, (n - 1) / n};
     }},
    {CollKind::reduce_scatter, "ring",
     [](double n, double) {
       return AlgorithmWork{n - 1, (n - 1) / n};
     }},
    {CollKind::all_gather, "bruck",
     [](double n, double rounds) {
       return AlgorithmWork{rounds, (n - 1) / n};
     }},
    {CollKind::all_gather, "direct",
     [](double n, double) {
       return AlgorithmWork{n - 1, (n - 1) / n};
     }},
    {CollKind::all_gather, "ring",
     [](double n, double) {
       return AlgorithmWork{n - 1, (n - 1) / n};
     }},
    {CollKind::all_to_all, "direct",
     [](double n, double) {
       return AlgorithmWork{n - 1, (n - 1) / n};
     }},
    {CollKind::all_to_all, "bruck",
     [](double, double rounds) {
       return AlgorithmWork{rounds, rounds / 2};
     }},
    {CollKind::broadcast, "tree",
     [](double, double rounds) {
       return AlgorithmWork{rounds, rounds};
     }},
    {CollKind::broadcast, "chain",
     [](double n, double) {
       return AlgorithmWork{n - 1, 1};
     }},
    {CollKind::reduce, "gather",
     [](double n, double) {
       return AlgorithmWork{n - 1, n - 1};
     }},
    {CollKind::reduce, "direct",
     [](double n, double) {
       return AlgorithmWork{2 * (n - 1), 2 * (n - 1) / n};
     }},
};

const Compared* find_compared(CollKind kind, std::string_view name) {
  for (const Compared& row : kCompared)
    if (row.kind == kind && row.name == name) return &row;
  return nullptr;
}

}  // namespace

std::optional<AlgorithmWork> algorithm_work(CollKind kind, std::string_view name, int ranks) {
  const Compared* row = find_compared(kind, name);
  if (row == nullptr || ranks < 2) return std::nullopt;
  return row->work(ranks, std::ceil(std::log2(ranks)));
}

std::vector<std::string> compared_algorithms(CollKind kind) {
  std::vector<std::string> names;
  for (const Compared& row : kCompared)
    if (row.kind == kind) names.emplace_back(row.name);
  return names;
}

AlgorithmCosts::AlgorithmCosts(const std::string& text, const std::string& transport) {
  for (const std::string& line : split(text, '\n')) {
    std::istringstream words(line);
    std::string of, kind_name, name, point;
    Rates rates;
    words >> of >> kind_name >> name >> rates.step_s;
    const Compared* row = nullptr;
    for (const Compared& each : kCompared)
      if (traits(each.kind).name == kind_name && each.name == name) row = &each;
    std::vector<std::pair<double, double>>& points = rates.bandwidth.at;
    while (words >> point) {
      char* end = nullptr;
      const double bytes = std::strtod(point.c_str(), &end);
      const double speed = *end == ':' ? std::strtod(end + 1, nullptr) : 0;
      if (!(speed > 0) || (!points.empty() && bytes <= points.back().first)) row = nullptr;
      points.emplace_back(bytes, speed);
    }
    if (row == nullptr || points.empty() || rates.step_s < 0)
      throw usage_error(fmt::format("measured algorithms: cannot read '{}'", printable(line)));
    if (of == transport) rates_[{row->kind, name}] = std::move(rates);
  }
}

std::optional<double> AlgorithmCosts::seconds(CollKind kind, std::string_view name, int ranks, double bytes) const {
  if (rates_.empty()) return std::nullopt;  // the usual case, evaluated for each call
  const auto found = rates_.find({kind, std::string(name)});
  const std::optional<AlgorithmWork> work = algorithm_work(kind, name, ranks);
  if (found == rates_.end() || !work) return std::nullopt;
  const double moved = work->moved * bytes;
  return work->steps * found->second.step_s + found->second.bandwidth.seconds(moved, moved);
}

}  // namespace prun
