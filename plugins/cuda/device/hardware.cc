// Surprising facts: machine code for 8.0 runs on every 8.x and on no other GPU, PTX on everything newer. The highest
// clock times an SM's width overstates a Hopper by 8 %, because its data sheet assumes a lower clock.
#include "hardware.h"

#include <fmt/format.h>

#include <charconv>

#ifndef PRUN_CUDA_ARCHITECTURES
#define PRUN_CUDA_ARCHITECTURES "80"  // kernels are not compiled for GPUs at all here
#endif

namespace prun::cuda {
namespace {

constexpr int kLeast = 80;  // lowest capability with bf16

struct Target {
  int capability = 0;
  bool machine_code = true, ptx = true;
  bool feature_set = false;  // set for "90a": code for exactly this capability
};

// Parses an architecture; capability 0: an architecture without a number ("native").
Target parse_target(std::string_view text) {
  Target target;
  const char* end = std::from_chars(text.data(), text.data() + text.size(), target.capability).ptr;
  const std::string_view rest(end, static_cast<size_t>(text.data() + text.size() - end));
  target.feature_set = rest.starts_with('a') || rest.starts_with('f');
  if (rest.ends_with("-real")) target.ptx = false;
  if (rest.ends_with("-virtual")) target.machine_code = false;
  return target;
}

bool runs_on(const Target& target, int capability) {
  if (target.feature_set) return capability == target.capability;
  if (target.machine_code && capability / 10 == target.capability / 10 && capability >= target.capability) return true;
  return target.ptx && capability >= target.capability;
}

struct DataSheet {
  std::string_view name;  // words of the driver's name for it; the first row that matches counts
  double teraflops;
};
constexpr DataSheet kDataSheets[] = {
    {"GB200", 2500},     {"B200", 2250},     {"B100", 1750},      {"H200 NVL", 835.5}, {"H200", 989.4},
    {"GH200", 989.4},    {"H100 PCIe", 756}, {"H100 NVL", 835.5}, {"H100", 989.4},     {"H800", 989.4},
    {"H20", 148},        {"A100", 312},      {"A800", 312},       {"A40", 149.7},      {"A30", 165},
    {"A10", 125},        {"L40S", 362},      {"L40", 181},        {"L4", 121},         {"A6000", 154.8},
    {"RTX 4090", 165.2}, {"RTX 3090", 71},
};

// Returns whether whole words match: "A40" is in "NVIDIA A40" and "A40-48Q", but not in "RTX A4000".
bool has_words(std::string_view text, std::string_view words) {
  const size_t at = text.find(words);
  if (at == std::string_view::npos) return false;
  const auto ends = [&](size_t i) { return i >= text.size() || text[i] == ' ' || text[i] == '-'; };
  return (at == 0 || ends(at - 1)) && ends(at + words.size());
}

double flops_per_cycle(int capability) {
  switch (capability) {
    case 80:
      return 2048;
    case 90:
      return 4096;
    case 100:
      return 8192;
    default:
      return 0;
  }
}

}  // namespace

std::string why_unusable(int capability, std::string_view architectures) {
  if (capability < kLeast)
    return fmt::format("its compute capability {}.{} is below {}.{} (Ampere), the least that prun computes on",
                       capability / 10, capability % 10, kLeast / 10, kLeast % 10);
  const std::string all(architectures);
  while (!architectures.empty()) {
    const std::string_view item = architectures.substr(0, architectures.find(','));
    architectures.remove_prefix(item.size() + (item.size() < architectures.size() ? 1 : 0));
    const Target target = parse_target(item);
    if (target.capability == 0 || runs_on(target, capability)) return "";
  }
  return fmt::format(
      "its compute capability is {}.{}, this prun was compiled for {}: build with -DPRUN_CUDA_ARCHITECTURES={}",
      capability / 10, capability % 10, all, capability);
}

std::string why_unusable(int capability) { return why_unusable(capability, PRUN_CUDA_ARCHITECTURES); }

double peak_flops_bf16(std::string_view name, int capability, int multiprocessors, double clock_hz) {
  for (const DataSheet& sheet : kDataSheets)
    if (has_words(name, sheet.name)) return sheet.teraflops * 1e12;
  return flops_per_cycle(capability) * multiprocessors * clock_hz;
}

}  // namespace prun::cuda
