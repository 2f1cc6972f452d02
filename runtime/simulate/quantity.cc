#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "simulate/cluster.h"

namespace prun::simulate {
namespace {

using Units = std::vector<std::pair<std::string, double>>;

const Units& units_of(Unit unit) {
  static const Units kNone = {};
  static const Units kSeconds = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"µs", 1e-6}, {"ns", 1e-9}};
  static const Units kBytes = {{"B", 1},          {"kB", 1e3},          {"MB", 1e6},
                               {"GB", 1e9},       {"TB", 1e12},         {"KiB", 1024},
                               {"MiB", 1048576.}, {"GiB", 1073741824.}, {"TiB", 1099511627776.}};
  static const Units kBandwidth = {{"MB/s", 1e6},          {"GB/s", 1e9},       {"TB/s", 1e12},     {"MiB/s", 1048576.},
                                   {"GiB/s", 1073741824.}, {"Mbit/s", 1e6 / 8}, {"Gbit/s", 1e9 / 8}};
  static const Units kFlops = {{"MFLOP/s", 1e6}, {"GFLOP/s", 1e9}, {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}};
  switch (unit) {
    case Unit::seconds:
      return kSeconds;
    case Unit::bytes:
      return kBytes;
    case Unit::bandwidth:
      return kBandwidth;
    case Unit::flops:
      return kFlops;
    default:
      return kNone;
  }
}

std::vector<std::string> names_of(const Units& units) {
  std::vector<std::string> names;
  for (const auto& [name, factor] : units) names.push_back(name);
  return names;
}

}  // namespace

double read_quantity(const std::string& text, Unit unit) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str()) throw usage_error(fmt::format("'{}' is not a number", text));
  if (!std::isfinite(value)) throw usage_error(fmt::format("'{}' is not finite", text));
  if (value < 0) throw usage_error(fmt::format("'{}' is negative", text));
  while (*end == ' ') ++end;
  const std::string word = end;
  const Units& units = units_of(unit);
  if (units.empty()) {
    if (!word.empty()) throw usage_error(fmt::format("'{}' has a unit, and this field is a plain number", text));
    return value;
  }
  for (const auto& [name, factor] : units)
    if (word == name) return value * factor;
  if (word.empty()) throw usage_error(fmt::format("'{}' has no unit (one of: {})", text, join(names_of(units), ", ")));
  throw usage_error(fmt::format("'{}' is not a unit of this field{}", word, did_you_mean(word, names_of(units))));
}

}  // namespace prun::simulate
