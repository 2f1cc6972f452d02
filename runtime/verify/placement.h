// Placements: how a tensor relates to those of the other ranks along each mesh axis, and how ops change that.
//
// S(dim): each rank has a part of dim; I: all have the same; P: the true value is the sum of all; V: they differ. Here
// two more: zeros, which are all of these, and unknown, which no rule looks at. Surprising fact: a rule sees one axis
// at a time; axes never interact.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ir/placement.h"
#include "verify/view.h"

namespace prun::verify {

struct OpContext;
struct Segment;
struct ValueState;

// How partial values combine: losses and gradients over axes that divide the data are averaged, all else is added up.
enum class Combine : uint8_t { any, average, sum, max };

// Why values differ, where it is known: they are parameters of other stages, or the same ones that each rank has
// trained by itself since the last average.
enum class Differs : uint8_t { unknown, stages, drift };

// How a dim that is sharded is cut: each block of it by itself, into runs of as many elements, rank after rank, the
// last ones shorter where it does not divide; or in as many chunks a rank, from both ends. Runs may be padded to a
// multiple of `grain`.
struct Cut {
  std::vector<int64_t> blocks;  // elements of the whole
  int chunks = 1;
  int64_t grain = 1;
  auto operator<=>(const Cut&) const = default;
};
// Null: one block that divides, in one chunk a rank, without padding.
const Cut* cut_into(std::vector<int64_t> blocks, int ranks, int chunks = 1, int64_t grain = 1);

// A padded tensor that no mesh axis splits is modelled as a shard over this axis of one rank. The rules that detect an
// op that mistakes a shard for the whole tensor then also detect an op that ignores padding.
inline constexpr const char* kPaddingAxis = "(padding)";

struct AxisPlacement {
  PlacementKind kind = PlacementKind::unknown;
  int8_t dim = 0;                      // shard: the dim
  int8_t pieces = -1;                  // >= 0: the first dim holds one piece for each rank, of this dim
  Combine combine = Combine::any;      // shard: `sum` where samples of all ranks were added up and an average is due
  int16_t turn = 0;                    // shard: that of the rank so many places before
  Differs differs = Differs::unknown;  // varying
  const Cut* cut = nullptr;            // shard
  auto operator<=>(const AxisPlacement&) const = default;
};

inline constexpr int8_t kFlat = 100;  // the dim of a shard of a flat vector

// A norm whose weights fit several axes: whole or a term of the sum, as what it is added to is.
inline constexpr AxisPlacement kOpenSquares{PlacementKind::unknown, 0, -1, Combine::sum};
inline constexpr AxisPlacement kUnknown{}, kZero{PlacementKind::zero}, kInvariant{PlacementKind::invariant},
    kVarying{PlacementKind::varying};
inline AxisPlacement shard(int dim, const Cut* cut = nullptr) {
  return {PlacementKind::shard, static_cast<int8_t>(dim), -1, Combine::any, 0, Differs::unknown, cut};
}
bool is_one_run(const AxisPlacement& placement);
// Whether shards of a dim are the same elements of it on each rank.
bool cut_alike(const AxisPlacement& a, const AxisPlacement& b);
inline AxisPlacement partial(Combine combine) { return {PlacementKind::partial, 0, -1, combine, 0}; }
inline AxisPlacement varying(Differs differs) { return {PlacementKind::varying, 0, -1, Combine::any, 0, differs}; }

std::string placement_text(const AxisPlacement& placement);   // "S(0)"
std::string placement_words(const AxisPlacement& placement);  // "each rank's part of dim 0"
void move_shard(AxisPlacement& placement, int by);            // a dim more, or less, stands before the sharded one

using AxisPlacements = std::vector<AxisPlacement>;  // by axis, or by operand

// What an interval of bytes is: its placement by axis (an id); and of a shard of a flat vector the layout of the whole,
// because its pieces may be spread differently and a shard holds other ones on other ranks.
struct TensorPlacement {
  int by_axis = 0;  // 0: unknown on every axis
  int layout = -1;
  int64_t origin = 0;                        // where the shard begins in the buffer
  int64_t piece_begin = 0, piece_count = 0;  // the parameter that it is part of, in elements of its flat vector
  bool operator==(const TensorPlacement&) const = default;
};

struct Piece {
  int64_t begin = 0, end = 0;  // elements
  int by_axis = 0;
  auto operator<=>(const Piece&) const = default;
};

struct Layout {
  int axis = 0;
  int64_t elements = 0;  // of a shard
  std::vector<Piece> pieces;
  auto operator<=>(const Layout&) const = default;
};

// What one op does on one axis.
struct AxisOutcome {
  AxisPlacements writes;
  std::string problem;  // "" when right
  size_t read = 0;      // the operand it is about
};

struct AxisView {
  const OpContext& context;
  const std::string& axis;
  int ranks = 1;
  Combine combine = Combine::sum;  // of what is added up over shards of the batch along this axis
  bool drifts = false;             // ranks train by themselves between averages over this axis
  bool pads() const { return axis == kPaddingAxis; }
  bool operator()(const char* attribute) const;  // the op's attribute names this axis
  bool names(const char* attribute) const;       // so does one of several, with commas between
};

using AxisRule = AxisOutcome (*)(const AxisView& axis, const AxisPlacements& reads);
// placement_rules.cc: null for ops that communicate, make tensors of nothing, or write none.
AxisRule find_axis_rule(const OpDef& op);
// The rules of ops whose operands correspond element by element; null for others.
AxisRule find_elementwise_rule(const OpDef& op);
// Of an op that reads nothing: how what it makes is placement, before its attributes say more. Null: it is no such op.
const AxisPlacement* find_source_placement(const OpDef& op);
// Whether somebody has thought about the placements that the op makes. A test asks for all ops, and a check for each op
// of a program.
bool has_placement_rule(const OpDef& op);

class PlacementFlow {
 public:
  explicit PlacementFlow(const JobView& view);
  // Sets the placements of the context's writes, and reports what cannot be.
  void follow(OpContext& context);
  // What ranks of different programs add up is one thing: of what differs from stage to stage, one of them brings
  // some, and the others zeros.
  void check_same(const std::vector<OpContext>& members);
  // Of what is added up over ranks of different programs.
  TensorPlacement together(const std::vector<const TensorPlacement*>& placements);
  // Of a value that arrives from the rank `offset` places before along `axis`.
  TensorPlacement arrived(const TensorPlacement& sent, const std::string& axis, int offset);
  // "P over dp" where a value is not the same on all ranks; "" when it is, or nothing is known.
  std::string not_whole(const TensorPlacement& placement) const;
  // "": `now` is what `before` was; else what has changed.
  std::string difference(const TensorPlacement& before, const TensorPlacement& now) const;

 private:
  int id_of(const AxisPlacements& placements);
  int id_of(Layout layout);
  std::string difference(const AxisPlacements& before, const AxisPlacements& now) const;
  const AxisPlacements& on_axes(int id) const { return by_id_[id]; }
  AxisPlacements all(AxisPlacement placement) const { return AxisPlacements(axes_.size(), placement); }

  void sources(OpContext& context);
  void communicate(OpContext& context);
  void alone(OpContext& context);
  void reduce(OpContext& context, const std::vector<size_t>& axes);
  void check_pieces(const OpContext& context);
  void exchange(OpContext& context, size_t axis);
  void gather(OpContext& context, size_t axis);
  void reduce_scatter(OpContext& context, size_t axis);
  void elementwise(OpContext& context, AxisRule rule);
  int together_in(const std::vector<Segment>& segments);
  void by_tensor(OpContext& context, AxisRule rule);
  AxisOutcome on_axis(const OpContext& context, AxisRule rule, size_t axis, const AxisPlacements& reads);
  // placement_flat.cc
  AxisPlacements on_axes_at(const Layout& layout, int64_t element) const;
  std::vector<int64_t> borders_of(const std::vector<const Layout*>& layouts) const;
  int joined_pieces(const Layout& layout, AxisPlacement on_its_axis);
  // Changes what a tensor is on each axis; of a shard of a flat vector, what each of its pieces is.
  TensorPlacement each_piece(const TensorPlacement& placement,
                             const std::function<void(size_t, AxisPlacement&)>& change);
  std::vector<TensorPlacement> follow_segment(const OpContext& context, AxisRule rule,
                                              const std::vector<const ValueState*>& state);
  std::vector<TensorPlacement> follow_pieces(const OpContext& context, AxisRule rule,
                                             const std::vector<const ValueState*>& state, bool& right);
  std::vector<TensorPlacement> follow_axes(const OpContext& context, AxisRule rule,
                                           const std::vector<const ValueState*>& state, bool& right);
  // placement_norms.cc
  struct Square;
  std::vector<Square> squares_of(const OpContext& context);
  int weighted_norm(const OpContext& context, int result);
  int joined(const std::vector<const TensorPlacement*>& placements);
  std::vector<size_t> axes_of(const std::string& name) const;

  std::vector<std::string> axes_;  // those with more than one rank, and kPaddingAxis if anything is padded
  std::vector<int> sizes_;
  std::vector<Combine> combine_;
  std::vector<bool> stages_;  // axes along which programs differ
  std::vector<bool> drifts_;  // axes along which weights differ between two syncs
  std::vector<AxisPlacements> by_id_;
  std::map<AxisPlacements, int> ids_;
  std::vector<Layout> layouts_;
  std::map<Layout, int> layout_ids_;
  // What rules have made of ops of a kind whose operands were placed so: they are asked once. Not where they found a
  // problem, which is told of each op.
  std::map<std::vector<int>, std::vector<TensorPlacement>> made_;
  std::vector<int> key_;  // of the op under way: its kind, and the placements of its operands
};

}  // namespace prun::verify
