// Which part of a whole tensor a rank holds: its index along mesh axes, and the positions of its tokens.
//
// Surprising fact: a split of tokens in two chunks is not contiguous. Rank r of c holds chunks r and 2c−1−r of 2c,
// which pairs early tokens, which see few keys in causal attention, with late ones.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "device/device.h"

namespace prun {

struct Share {
  int64_t index = 0, of = 1;
};

// "dp,,tp" -> "dp", "", "tp": one name more than commas.
inline std::vector<std::string> names_between_commas(const std::string& text) { return split(text + ",", ','); }

// The rank's share along `axes`: one name, several with commas between (the first varies slowest), or "" (all of it).
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

// Maps a rank's `length` tokens to positions in the whole sample, by attributes tokens_axis and chunks. The first axis
// of tokens_axis has the chunks; each further axis divides the tokens of a share into runs.
class TokenPositions {
 public:
  TokenPositions(const RankMemory& memory, const Attrs& attrs, int64_t length) : length_(length) {
    const std::string axes = attrs.text("tokens_axis");
    const size_t comma = std::min(axes.find(','), axes.size());
    share_ = share_along(memory, axes.substr(0, comma));
    const Share run = share_along(memory, axes.substr(std::min(comma + 1, axes.size())));
    const int64_t chunks = attrs.integer("chunks", 1);
    held_ = run.of * length;
    skipped_ = run.index * length;
    PRUN_CHECK((chunks == 1 || chunks == 2) && held_ % chunks == 0, std::to_string(held_));
    chunk_ = held_ / chunks;
    second_ = chunks == 1 ? 0 : (2 * share_.of - 1 - share_.index) * chunk_;
  }
  int64_t whole() const { return share_.of * held_; }  // tokens of the whole sample
  int64_t of(int64_t token) const {
    const int64_t held = skipped_ + token;
    return held < chunk_ ? share_.index * chunk_ + held : second_ + held - chunk_;
  }
  // The rank's token at a position, or -1.
  int64_t token(int64_t position) const {
    const int64_t first = position - share_.index * chunk_, later = position - second_;
    int64_t held = -1;
    if (first >= 0 && first < chunk_)
      held = first;
    else if (chunk_ < held_ && later >= 0 && later < chunk_)
      held = later + chunk_;
    return held >= skipped_ && held < skipped_ + length_ ? held - skipped_ : -1;
  }

 private:
  Share share_;  // along the first axis
  // held_: tokens of the share on all its ranks; skipped_: tokens of it on the ranks before this one; second_: the
  // position of the second chunk
  int64_t length_, held_ = 0, skipped_ = 0, chunk_ = 0, second_ = 0;
};

}  // namespace prun
