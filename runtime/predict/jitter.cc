// Multiplies a rank's compute time by exp(jitter · z), z normal, drawn for each rank and step: the median rank has the
// cluster file's speed, and a step waits for the slowest participants. Ranks of a class draw different numbers, so each
// is simulated.
#include "predict/jitter.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>
#include <vector>

#include "base/terminal.h"
#include "simulate/simulate.h"

namespace prun {
namespace {

// Draws a normal number by Box and Muller (1958), because std::normal_distribution differs between platforms.
double normal_number(std::mt19937_64& random) {
  const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  const double radius = std::sqrt(-2 * std::log(uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

// Returns the value that the fraction `part` of all values does not exceed.
double quantile(const std::vector<double>& sorted, double part) {
  const auto at = static_cast<size_t>(std::ceil(part * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(at, 1, sorted.size()) - 1];
}

}  // namespace

bool has_jitter(const simulate::Cluster& cluster) {
  return cluster.device.jitter > 0 || std::any_of(cluster.nodes.begin(), cluster.nodes.end(),
                                                  [](const auto& node) { return node.device.jitter > 0; });
}

StepTimes sample_steps(const Job& job, const simulate::Cluster& cluster, int steps, uint64_t seed) {
  const int ranks = static_cast<int>(job.class_of_rank.size());
  const std::vector<simulate::RankPlace> places = simulate::place_ranks(cluster, ranks);
  std::mt19937_64 random(seed);
  std::vector<double> seconds;
  Bar bar("simulate", "steps");
  for (int step = 0; step < steps; ++step) {
    bar.advance(step, steps);
    simulate::SimulateOptions options{.every_rank = true};
    for (const simulate::RankPlace& place : places)
      options.slowness.push_back(std::exp(cluster.node_at(place.node).device.jitter * normal_number(random)));
    seconds.push_back(simulate::simulate(job, cluster, options).step_s);
  }
  std::sort(seconds.begin(), seconds.end());
  return {steps, quantile(seconds, 0.5), quantile(seconds, 0.9), quantile(seconds, 0.99)};
}

}  // namespace prun
