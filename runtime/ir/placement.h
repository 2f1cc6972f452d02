// Relation of a tensor to those of the other ranks along one mesh axis, shared by the distributor and the verifier. The
// literature writes S(dim), R, I, P, V.
#pragma once
#include <cstdint>

namespace prun {

enum class PlacementKind : uint8_t {
  unknown,    // no rule reads it; verifier only
  zero,       // matches every kind below; verifier only
  invariant,  // I: all ranks have the same value. R is I whose gradient is P, which the op `enter` marks
  shard,      // S(dim): each rank has its own part of dim
  partial,    // P: the true value is the sum over all ranks
  varying,    // V: the values differ
};

struct Placement {
  PlacementKind kind = PlacementKind::invariant;
  int dim = 0;  // dim of a shard
  bool operator==(const Placement&) const = default;
};
constexpr Placement shard_of(int dim) { return {PlacementKind::shard, dim}; }

}  // namespace prun
