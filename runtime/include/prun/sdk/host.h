// The ranks that share a host, found by measurement unless PRUN_HOST_ID names the host. An address blob carries the
// object representation of a HostId.
#pragma once
#include <sys/stat.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace prun::sdk {

struct HostId {
  char boot_id[40] = {};                           // boot id of the running kernel, or PRUN_HOST_ID
  uint64_t network = 0, shared_memory = 0;         // inodes of the network and IPC namespaces
  bool operator==(const HostId&) const = default;  // same kernel, network and shared memory
  // Abstract Unix socket names belong to the network namespace, so ranks of one namespace can connect by them.
  bool same_network(const HostId& other) const {
    return std::memcmp(boot_id, other.boot_id, sizeof boot_id) == 0 && network == other.network;
  }
};

inline HostId this_host() {
  HostId host;
  if (const char* given = std::getenv("PRUN_HOST_ID"); given != nullptr && *given != '\0') {
    std::snprintf(host.boot_id, sizeof host.boot_id, "%s", given);
    return host;
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen("/proc/sys/kernel/random/boot_id", "re"),
                                                             std::fclose);
  if (file != nullptr && std::fscanf(file.get(), "%39s", host.boot_id) != 1) host.boot_id[0] = '\0';
  struct stat status {};
  if (::stat("/proc/self/ns/net", &status) == 0) host.network = status.st_ino;
  if (::stat("/proc/self/ns/ipc", &status) == 0) host.shared_memory = status.st_ino;
  return host;
}

}  // namespace prun::sdk
