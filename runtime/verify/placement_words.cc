// Placements as text, and the table of cuts.
//
// Surprising fact: equal cuts are one object, so placements compare by pointer.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <mutex>
#include <set>

#include "verify/placement.h"

namespace prun::verify {
namespace {

std::string shard_words(const AxisPlacement& placement) {
  if (placement.dim == kFlat) return "each rank's part of a flat vector";
  const Cut* cut = placement.cut;
  if (cut == nullptr) return fmt::format("each rank's part of dim {}", placement.dim);
  if (cut->chunks > 1) return fmt::format("each rank's {} chunks of dim {}", cut->chunks, placement.dim);
  if (cut->blocks.size() == 1) return fmt::format("each rank's run of the {} of dim {}", cut->blocks[0], placement.dim);
  return fmt::format("each rank's part of each of the {} blocks ({}) of dim {}", cut->blocks.size(),
                     fmt::join(cut->blocks, ", "), placement.dim);
}

}  // namespace

const Cut* cut_into(std::vector<int64_t> blocks, int ranks, int chunks, int64_t grain) {
  if (chunks == 1 && blocks.size() == 1 && blocks[0] % (ranks * grain) == 0) return nullptr;
  static std::mutex mutex;
  static std::set<Cut> all;
  const std::lock_guard<std::mutex> lock(mutex);
  return &*all.insert({std::move(blocks), chunks, grain}).first;
}

bool is_one_run(const AxisPlacement& placement) {
  return placement.cut == nullptr || (placement.cut->blocks.size() == 1 && placement.cut->chunks == 1);
}

bool in_order_of_ranks(const AxisPlacement& placement) {
  return placement.kind == PlacementKind::invariant && placement.cut != nullptr;
}

bool cut_alike(const AxisPlacement& a, const AxisPlacement& b) {
  return a.cut == b.cut || (is_one_run(a) && is_one_run(b));
}

std::string placement_words(const AxisPlacement& placement) {
  switch (placement.kind) {
    case PlacementKind::unknown:
      return "unknown";
    case PlacementKind::zero:
      return "zeros";
    case PlacementKind::invariant:
      return placement.cut == nullptr ? "the same on every rank" : "the chunks of all ranks in the order of the ranks";
    case PlacementKind::shard:
      return shard_words(placement);
    case PlacementKind::partial:
      return placement.combine == Combine::average ? "terms of an average"
             : placement.combine == Combine::max   ? "candidates for a maximum"
                                                   : "terms of a sum";
    case PlacementKind::varying:
      return placement.differs == Differs::stages  ? "each stage's own parameters"
             : placement.differs == Differs::drift ? "weights that each rank has trained by itself"
                                                   : "another value on each rank";
  }
  return "";
}

std::string placement_text(const AxisPlacement& placement) {
  switch (placement.kind) {
    case PlacementKind::unknown:
      return "unknown";
    case PlacementKind::zero:
      return "zero";
    case PlacementKind::invariant:
      return "I";
    case PlacementKind::shard:
      return placement.dim == kFlat ? "S" : fmt::format("S({})", placement.dim);
    case PlacementKind::partial:
      return "P";
    case PlacementKind::varying:
      return "V";
  }
  return "";
}

void move_shard(AxisPlacement& placement, int by) {
  if (placement.kind == PlacementKind::shard && placement.dim != kFlat)
    placement.dim = static_cast<int8_t>(placement.dim + by);
}

}  // namespace prun::verify
