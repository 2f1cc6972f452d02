// The table of functions that a plugin hands over. Those of transports and of devices begin alike and grow alike.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace prun {

// How prun_transport and prun_device begin.
struct PluginTableHead {
  size_t size;
  uint32_t abi;
  uint64_t must_understand;
  const char* name;
  const char* version;
};

// A function that no plugin may lack, and where the table has it.
struct PluginFunction {
  const char* name;
  size_t offset;
};

struct PluginAbi {
  const char* kind;  // "transport"
  uint32_t version;
  std::span<const PluginFunction> mandatory;
};

// Copies of `theirs` what both sides know into `ours`, `size` zeroed bytes. Returns why it cannot be used, "" if it
// can.
std::string copy_plugin_table(const void* theirs, void* ours, size_t size, const PluginAbi& abi);

}  // namespace prun
