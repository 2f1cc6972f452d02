// The choice is the minimum over the nodes, so faster CPUs are not fully used: ranks that compute the same value must
// get bitwise identical results.
#include "job/kernels.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "job/inventory.h"
#include "job/job_spec.h"
#include "kernels/cpu/kernel_choice.h"
#include "kernels/devices.h"

namespace prun {
namespace {

using cpu::Kernels;
using cpu::kernels_text;

bool computes_on_cpus(const JobSpec& spec) { return spec.device == "cpu" || spec.device == "cpu-queue"; }

// The minimum over the CPUs of all nodes: the kernels, the first node with that minimum, and whether all nodes are
// equal.
struct Nodes {
  Kernels most;
  size_t least = 0;
  bool alike = true;

  explicit Nodes(const std::vector<std::string>& inventories) : most(cpu::most_kernels()) {
    for (size_t node = 1; node < inventories.size(); ++node) {
      if (inventories[node].empty()) continue;  // it has not joined
      const auto theirs = cpu::parse_kernels(unpack<Inventory>(inventories[node]).kernels);
      const Kernels can = theirs.value_or(Kernels::any);
      alike = alike && can == most;
      if (can < most) most = can, least = node;
    }
  }
  std::string who() const { return least == 0 ? "this CPU" : fmt::format("the CPU of node {}", least); }
};

// Returns a message about the losses of a run that resumes from a checkpoint.
std::string words_on_resuming(const JobSpec& spec, const Nodes& nodes, Kernels chosen) {
  const std::string& resume = spec.checkpoint.resume;
  const Numerics& from = spec.checkpoint.numerics;
  const auto differ = [&](const std::string& why) {
    return fmt::format(
        "prun: {} was computed with kernels for {}, {}: with those for {} losses may differ in their last bits "
        "from here on\n",
        resume, from.kernels, why, kernels_text(chosen));
  };
  if (!spec.kernels.asked.empty() && kernels_text(chosen) != from.kernels)
    return differ("and --kernels asks for others");
  if (!cpu::parse_kernels(from.kernels)) return differ("which this prun does not know");
  if (kernels_text(chosen) != from.kernels) return differ(fmt::format("which {} cannot run", nodes.who()));
  if (from.arithmetic != cpu::kArithmetic)
    return differ(fmt::format("version {}, where this prun has {}", from.arithmetic, cpu::kArithmetic));
  if (!spec.kernels.asked.empty()) return "";
  const Kernels fastest = cpu::fastest_kernels(nodes.most);
  if (chosen >= fastest) return "";
  return fmt::format(
      "prun: kernels for {}, with which {} was computed; with --kernels {} steps are faster, and losses may differ in "
      "their last bits\n",
      kernels_text(chosen), resume, kernels_text(fastest));
}

}  // namespace

std::string check_kernels(const std::string& text) {
  const std::vector<std::string> known = cpu::kernels_texts();
  if (!cpu::parse_kernels(text))
    throw usage_error(fmt::format("--kernels is one of {}, not '{}'{}", join(known, ", "), text, if_near(text, known)));
  return text;
}

std::string node_kernels() { return std::string(kernels_text(cpu::most_kernels())); }

std::string lacks_kernels(const KernelSettings& settings, const std::string& inventory) {
  const std::string& needed = settings.chosen.empty() ? settings.asked : settings.chosen;
  if (needed.empty()) return "";
  std::string can;
  try {
    can = unpack<Inventory>(inventory).kernels;
  } catch (const Error&) {
    return "says nothing of its CPU";
  }
  if (cpu::parse_kernels(can) >= cpu::parse_kernels(needed)) return "";
  return fmt::format("cannot run the kernels of this job, for {}: its CPU goes up to {} (--kernels {} would suit it)",
                     needed, can, can);
}

std::string settle_kernels(JobSpec& spec, const std::vector<std::string>& inventories) {
  KernelSettings& settings = spec.kernels;
  if (!computes_on_cpus(spec)) {
    if (settings.asked.empty()) return "";
    throw usage_error(fmt::format("--kernels are those of CPUs: not with --device {}", spec.device));
  }
  if (!settings.chosen.empty()) return "";
  const Nodes nodes(inventories);
  const std::string& before = spec.checkpoint.numerics.kernels;
  const bool resumes = spec.checkpoint.resumes && !before.empty();
  const auto stored = cpu::parse_kernels(before);
  Kernels chosen;
  std::string words;
  if (!settings.asked.empty()) {
    chosen = *cpu::parse_kernels(settings.asked);
    if (chosen > cpu::most_kernels())
      throw usage_error(fmt::format("--kernels {}: this CPU goes up to {}", settings.asked, node_kernels()));
  } else if (resumes && stored && *stored <= nodes.most) {
    chosen = *stored;
  } else {
    chosen = cpu::fastest_kernels(nodes.most);
    if (!nodes.alike)
      words = fmt::format(
          "prun: the nodes' CPUs are not alike: all take the kernels for {}, the most that {} can run, so that ranks "
          "compute the same bits\n",
          kernels_text(chosen), nodes.who());
  }
  if (resumes) words += words_on_resuming(spec, nodes, chosen);
  cpu::take_kernels(chosen);
  settings.chosen = kernels_text(chosen);
  log_info("kernels", "{}", settings.chosen);
  return words;
}

Numerics settled_numerics(const JobSpec& spec) {
  const std::string& kernels = spec.kernels.chosen;
  return {kernels, kernels.empty() ? 0 : cpu::kArithmetic, open_device(spec.device, spec.device_options)->numerics(),
          spec.world.algorithm_costs};
}

void take_kernels_of(const Job& job) {
  const std::string& kernels = job.numerics.kernels;
  if (kernels.empty()) return;
  const auto wanted = cpu::parse_kernels(kernels);
  PRUN_CHECK(wanted, kernels);
  cpu::take_kernels(*wanted);
}

}  // namespace prun
