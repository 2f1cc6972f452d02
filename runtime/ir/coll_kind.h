// The kinds of collectives and their traits, in programs, in calls and on the wire. The numbers of all_reduce to
// barrier are those of prun_coll_kind in prun/transport.h and must not change.
#pragma once
#include <cstdint>
#include <string_view>

namespace prun {

enum class CollKind : uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  barrier,
  all_gather_v,
  all_to_all_v
};

struct CollTraits {
  std::string_view name;
  bool reduces = false;       // combines the members' inputs by a RedOp
  bool rooted = false;        // has a root
  bool whole_input = false;   // the input has a block for each member
  bool whole_output = false;  // the output has a block from each member
  bool vector = false;        // blocks have individual sizes
};
inline constexpr CollTraits kCollTraits[] = {
    {.name = "all_reduce", .reduces = true},
    {.name = "all_gather", .whole_output = true},
    {.name = "reduce_scatter", .reduces = true, .whole_input = true},
    {.name = "broadcast", .rooted = true},
    {.name = "reduce", .reduces = true, .rooted = true},
    {.name = "gather", .rooted = true, .whole_output = true},
    {.name = "scatter", .rooted = true, .whole_input = true},
    {.name = "all_to_all", .whole_input = true, .whole_output = true},
    {.name = "barrier"},
    {.name = "all_gather_v", .whole_output = true, .vector = true},
    {.name = "all_to_all_v", .whole_input = true, .whole_output = true, .vector = true},
};
inline constexpr int kCollKinds = sizeof kCollTraits / sizeof kCollTraits[0];
constexpr const CollTraits& traits(CollKind kind) { return kCollTraits[static_cast<int>(kind)]; }

}  // namespace prun
