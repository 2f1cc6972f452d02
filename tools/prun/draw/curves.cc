#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "draw/drawing.h"

namespace prun::draw {

Curve read_curve(const std::string& path, const std::string& name) {
  using Json = nlohmann::json;
  std::ifstream file(path);
  if (!file) throw usage_error(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  Curve curve;
  curve.name = name;
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const Json row = Json::parse(line, nullptr, false);
    const bool last = file.peek() == std::ifstream::traits_type::eof();
    if (!row.is_object() || !row.value("step", Json()).is_number()) {
      if (last && number > 1) break;  // the run was killed within this line
      throw usage_error(fmt::format("{}:{}: not a row of --metrics: it has no step", path, number));
    }
    const auto value = [&](const char* key) {
      const Json found = row.value(key, Json());
      return found.is_number() ? found.get<double>() : std::numeric_limits<double>::quiet_NaN();
    };
    for (const char* key : {"step", "tokens_per_s"})
      if (value(key) < 0) throw usage_error(fmt::format("{}:{}: {} is {}", path, number, key, value(key)));
    if (row.contains("loss")) {
      curve.step.push_back(value("step"));
      curve.loss.push_back(value("loss"));
      curve.rate.push_back(value("tokens_per_s"));
    }
    if (row.contains("eval_loss")) {
      curve.eval_step.push_back(value("step"));
      curve.eval_loss.push_back(value("eval_loss"));
    }
  }
  if (curve.step.empty()) throw usage_error(fmt::format("{} has no rows with a loss", path));
  return curve;
}

}  // namespace prun::draw
