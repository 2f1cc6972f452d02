// The function table that a plugin exports. Tables of transports and devices begin alike and grow alike.
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

// Copies the part of `theirs` that both sides know into `ours`, `size` zeroed bytes. Returns why the table cannot be
// used, or "".
std::string copy_plugin_table(const void* theirs, void* ours, size_t size, const PluginAbi& abi);

}  // namespace prun
