// A rank's shard of a tensor: its index along mesh axes, and the positions of its tokens (prun/sdk/kernels.h).
#pragma once
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "device/device.h"
#include "prun/sdk/kernels.h"

namespace prun {

using sdk::Share;

// Returns "dp", "", "tp" for "dp,,tp": one name more than commas.
inline std::vector<std::string> names_between_commas(const std::string& text) { return split(text + ",", ','); }

// Returns the rank's share along `axes`: one name, several separated by commas (the first varies slowest), or "" (all
// of it).
inline Share share_along(const RankMemory& memory, const std::string& axes) {
  Share share;
  if (memory.caller != nullptr) {
    memory.caller->share(memory.caller->mesh, axes.c_str(), &share.index, &share.of);
    return share;
  }
  const Mesh& mesh = memory.program->mesh;
  for (const std::string& axis : names_between_commas(axes)) {
    if (axis.empty()) continue;
    share = {share.index * mesh.size(axis) + mesh.index(axis, memory.rank), share.of * mesh.size(axis)};
  }
  return share;
}

// Positions by the attributes tokens_axis and chunks.
struct TokenPositions : sdk::TokenPositions {
  TokenPositions(const RankMemory& memory, const Attrs& attrs, int64_t tokens) {
    const int64_t chunks = attrs.integer("chunks", 1);
    PRUN_CHECK(chunks == 1 || chunks == 2, std::to_string(chunks));
    static_cast<sdk::TokenPositions&>(*this) = sdk::token_positions(
        attrs.text("tokens_axis"), chunks, tokens, [&](const std::string& axes) { return share_along(memory, axes); });
    PRUN_CHECK(held % chunks == 0, std::to_string(held));
  }
};

}  // namespace prun
