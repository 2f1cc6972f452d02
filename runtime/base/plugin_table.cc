#include "base/plugin_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace prun {

std::string copy_plugin_table(const void* theirs, void* ours, size_t size, const PluginAbi& abi) {
  // The first fields determine whether the others may be read.
  PluginTableHead head{};
  std::memcpy(&head.size, theirs, sizeof head.size);
  if (head.size < offsetof(PluginTableHead, name))
    return fmt::format("its table of {} bytes is too short to be one", head.size);
  std::memcpy(&head, theirs, std::min(head.size, sizeof head));
  if (head.abi > abi.version) {
    return fmt::format("written for {} ABI {}, this prun has {}: use a newer prun or an older plugin", abi.kind,
                       head.abi, abi.version);
  }
  if (head.abi < abi.version) {
    return fmt::format("written for {} ABI {}, which this prun ({}) no longer has: rebuild the plugin", abi.kind,
                       head.abi, abi.version);
  }
  if (head.must_understand != 0)
    return fmt::format("needs features that this prun does not have (bits {:#x})", head.must_understand);
  std::memcpy(ours, theirs, std::min(head.size, size));
  std::memcpy(ours, &size, sizeof size);
  for (const PluginFunction& function : abi.mandatory) {
    void* pointer = nullptr;
    std::memcpy(&pointer, static_cast<const char*>(ours) + function.offset, sizeof pointer);
    if (pointer == nullptr) return fmt::format("the mandatory function '{}' is missing", function.name);
  }
  if (head.name == nullptr || head.version == nullptr) return "it has no name or no version";
  return "";
}

}  // namespace prun
