// The function table that a plugin exports. Tables of transports and devices share their first fields and their growth
// rule.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace prun {

// The first fields of prun_transport and prun_device.
struct PluginTableHead {
  size_t size;
  uint32_t abi;
  uint64_t must_understand;
  const char* name;
  const char* version;
};

// A mandatory function and its offset in the table.
struct PluginFunction {
  const char* name;
  size_t offset;
};

struct PluginAbi {
  const char* kind;  // "transport"
  uint32_t version;
  std::span<const PluginFunction> mandatory;
};

// Copies the part of `theirs` that both sides have to `ours`, which is `size` zeroed bytes. Returns why the table is
// unusable, or "".
std::string copy_plugin_table(const void* theirs, void* ours, size_t size, const PluginAbi& abi);

}  // namespace prun
