// Examines a GPU. Facts come from CUDA if it has them, otherwise from NVML. Advice states the problem first, then the
// command.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <string>
#include <vector>

#include "failure.h"
#include "management.h"
#include "probe.h"

namespace prun::cuda {
namespace {

std::string place_of(int index) {
  char text[32] = {};
  check(cudaDeviceGetPCIBusId(text, sizeof text, index), "cudaDeviceGetPCIBusId");
  return text;
}

// Returns "GPU 1", "GPUs 1 to 7" or "GPUs 1, 3".
std::string numbers(const std::vector<int>& devices) {
  if (devices.size() == 1) return fmt::format("GPU {}", devices.front());
  if (devices.size() > 2 && devices.back() - devices.front() + 1 == static_cast<int>(devices.size()))
    return fmt::format("GPUs {} to {}", devices.front(), devices.back());
  return fmt::format("GPUs {}", fmt::join(devices, ", "));
}

// Peers by the link to them. On x86 machines, only NVLink has native atomics between GPUs.
struct Reach {
  std::vector<int> nvlink, pcie, none;
};
Reach reach_of(int index, int devices) {
  Reach reach;
  for (int peer = 0; peer < devices; ++peer) {
    if (peer == index) continue;
    int can = 0, atomics = 0;
    check(cudaDeviceCanAccessPeer(&can, index, peer), "cudaDeviceCanAccessPeer");
    if (can != 0)
      check(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, index, peer),
            "cudaDeviceGetP2PAttribute");
    (can == 0 ? reach.none : atomics != 0 ? reach.nvlink : reach.pcie).push_back(peer);
  }
  return reach;
}

// The two lists of a report.
struct Findings {
  std::vector<std::string> facts, advice;
};

void look_at_links(int index, int devices, bool instance, Findings& findings) {
  const Reach reach = reach_of(index, devices);
  if (!reach.nvlink.empty()) findings.facts.push_back("NVLink to " + numbers(reach.nvlink));
  if (!reach.pcie.empty()) findings.facts.push_back("PCIe to " + numbers(reach.pcie));
  if (!reach.none.empty() && !instance)
    findings.advice.push_back(
        fmt::format("it does not reach {} directly, so NCCL goes through the host's memory (nvidia-smi topo -p2p r; on "
                    "bare metal PCIe ACS is often on, in virtual machines the links are not passed on)",
                    numbers(reach.none)));
}

void look_at_modes(int index, const std::string& name, prun_health_report& report, Findings& findings) {
  const int mode = attribute(cudaDevAttrComputeMode, index);
  report.exclusive = mode == cudaComputeModeExclusive || mode == cudaComputeModeExclusiveProcess;
  if (report.exclusive != 0) findings.facts.push_back("one process at a time (exclusive)");
  if (mode == cudaComputeModeProhibited)
    findings.advice.push_back("its compute mode is Prohibited, so no process can use it: sudo nvidia-smi -c 0");
  if (name.find(" MIG ") != std::string::npos)
    findings.advice.push_back(
        "it is an instance of a divided GPU (MIG): CUDA shows a process one of them, they do not reach each other and "
        "NCCL does not connect them; jobs of several ranks want whole GPUs (sudo nvidia-smi -mig 0)");
}

void look_at_memory(int index, const std::string& pci, const Management& management, Findings& findings) {
  const bool corrects = attribute(cudaDevAttrEccEnabled, index) != 0;
  findings.facts.push_back(corrects ? "ECC on" : "ECC off");
  if (const uint64_t lost = management.lost_bits(pci).value_or(0); lost > 0)
    findings.advice.push_back(
        fmt::format("its memory has had {} error{} that ECC could not correct since its driver was loaded: processes "
                    "die of them (nvidia-smi -q -d ECC); reset it, and if they come back replace it",
                    lost, lost == 1 ? "" : "s"));
  if (management.needs_repair(pci).value_or(false))
    findings.advice.push_back("rows of its memory are broken and could not be replaced: it has to be exchanged");
  else if (management.waits_for_reset(pci).value_or(false))
    findings.advice.push_back("it will replace broken rows of its memory at the next reset: sudo nvidia-smi -r");
}

// Joins the lines that fit; a line that does not fit is omitted as a whole.
void write(const std::vector<std::string>& lines, const char* between, char* to, size_t room) {
  std::string text;
  for (const std::string& line : lines)
    if (text.size() + std::strlen(between) + line.size() < room) text += (text.empty() ? "" : between) + line;
  sdk::copy_text(text, to, room);
}

}  // namespace

void examine_device(int index, prun_health_report& report) {
  const int devices = expect_device(index);
  const Management management;
  const std::string pci = place_of(index);
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  const std::string name = properties.name;

  Findings findings;
  look_at_modes(index, name, report, findings);
  look_at_memory(index, pci, management, findings);
  look_at_links(index, devices, name.find(" MIG ") != std::string::npos, findings);
  if (!management.persistent(pci).value_or(true))
    findings.advice.push_back(
        "its persistence mode is off: the driver starts it anew for every job, which takes seconds (sudo nvidia-smi "
        "-pm 1, or the service nvidia-persistenced)");
  write(findings.facts, "; ", report.facts, sizeof report.facts);
  write(findings.advice, "\n", report.advice, sizeof report.advice);

  const std::optional<uint64_t> before = management.used_bytes(pci);
  size_t free = 0, total = 0;
  if (cudaSetDevice(index) == cudaSuccess && cudaMemGetInfo(&free, &total) == cudaSuccess && before) {
    const uint64_t after = management.used_bytes(pci).value_or(0);
    report.context_bytes = after > *before ? after - *before : 0;
  }
  cudaGetLastError();  // `describe` reports why it cannot be opened
}

}  // namespace prun::cuda
