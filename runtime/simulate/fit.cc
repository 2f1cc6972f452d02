// Sizes within a factor of two are one point, the median of their measurements, so that a single disturbed sample has
// no effect.
#include "simulate/fit.h"

#include <algorithm>
#include <cmath>

namespace prun {
namespace {

simulate::OpRates fit(const std::vector<OpSample>& samples, double launch_s) {
  simulate::OpRates rates;
  rates.launch_s = launch_s;
  for (const OpSample& sample : samples) rates.launch_s = std::min(rates.launch_s, 0.5 * sample.seconds);
  struct Point {
    std::vector<double> bytes, rate;
  };
  std::map<int, Point> points;  // by power of two
  for (const OpSample& sample : samples) {
    Point& point = points[static_cast<int>(std::lround(std::log2(sample.bytes)))];
    point.bytes.push_back(sample.bytes);
    point.rate.push_back((sample.product ? sample.flops : sample.bytes) / (sample.seconds - rates.launch_s));
  }
  Curve& curve = samples.front().product ? rates.rate : rates.bandwidth;
  for (const auto& [power, point] : points) curve.at.emplace_back(middle_of(point.bytes), middle_of(point.rate));
  return rates;
}

}  // namespace

double middle_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : std::sqrt(values[half - 1] * values[half]);
}

std::map<std::pair<std::string, Dtype>, simulate::OpRates> fit_ops(const std::vector<OpSample>& samples,
                                                                   double launch_s) {
  std::map<std::pair<std::string, Dtype>, std::vector<OpSample>> by_kind;
  for (const OpSample& sample : samples)
    if (sample.seconds > 0 && sample.bytes > 0) by_kind[{sample.op, sample.dtype}].push_back(sample);
  std::map<std::pair<std::string, Dtype>, simulate::OpRates> rates;
  for (const auto& [kind, alike] : by_kind) rates[kind] = fit(alike, launch_s);
  return rates;
}

}  // namespace prun
