#include "shared_devices.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "comm/transport/plugin.h"

namespace prun {
namespace {

constexpr int kMostSharing = 8;  // ranks on a device with nccl.share=1

bool uses_nccl(const JobSpec& spec) { return spec.world.transport.find("nccl") != std::string::npos; }

// Returns whether --transport-options has nccl.share=1, or share=1 if nccl is the transport.
bool shares_over_nccl(const JobSpec& spec) {
  const std::string& all = spec.world.transport_options;
  std::optional<std::string> value = option_value(all, "nccl", "share");
  if (!value && uses_nccl(spec)) value = option_value(all, "", "share");
  return value == "1";
}

}  // namespace

std::string transport_of_sharing_ranks(const JobSpec& spec) {
  if (spec.world.transport == "auto") return spec.launch.nnodes > 1 ? "shm+socket" : "shm";
  if (uses_nccl(spec) && !shares_over_nccl(spec))
    throw usage_error(
        fmt::format("--transport {}: NCCL refuses ranks that share a device (--ranks-per-device {}); "
                    "shm and socket go through host memory, and for tests --transport-options nccl.share=1 makes NCCL "
                    "share it",
                    spec.world.transport, spec.ranks_per_device));
  return spec.world.transport;
}

void check_nccl_share(const JobSpec& spec) {
  if (!shares_over_nccl(spec)) return;
  if (!uses_nccl(spec))
    throw usage_error(fmt::format("--transport-options nccl.share=1: the transport is {}; only --transport nccl has it",
                                  spec.world.transport));
  if (spec.launch.nnodes > 1)
    throw usage_error(fmt::format("--transport-options nccl.share=1 is for tests on one node, not on {} (--nnodes)",
                                  spec.launch.nnodes));
  if (spec.ranks_per_device > kMostSharing)
    throw usage_error(fmt::format("--ranks-per-device {}: with nccl.share=1 at most {} ranks share a device",
                                  spec.ranks_per_device, kMostSharing));
}

}  // namespace prun
