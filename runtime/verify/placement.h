// Placements relate a tensor to those of the other ranks along each mesh axis. Ops change them.
//
//   S(dim)   each rank has a part of dim            P   the true value is the reduction over all ranks
//   I        all ranks have the same value          V   the values differ
//   zero     compatible with all of these           unknown   not checked by any rule
//
// Surprising fact: a rule sees one axis at a time, because axes never interact.
#pragma once
#include <algorithm>
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

// The reduction of partial values: losses and gradients are averaged over axes that divide the data, all others are
// summed.
enum class Combine : uint8_t { any, average, sum, max };

// The reason for which values differ, if known: parameters of different pipeline stages, or copies that each rank has
// trained independently since the last average.
enum class Differs : uint8_t { unknown, stages, drift };

// The cut of a sharded dim. Each block is cut separately: into one run of equal length per rank, in rank order, with
// shorter runs at the end if the division leaves a remainder; or into `chunks` chunks per rank, taken from both ends.
// Runs may be padded to a multiple of `grain`.
struct Cut {
  std::vector<int64_t> blocks;  // elements of the whole dim
  int chunks = 1;
  int64_t grain = 1;
  auto operator<=>(const Cut&) const = default;
};
// Null = one block, divisible, one chunk per rank, no padding.
const Cut* cut_into(std::vector<int64_t> blocks, int ranks, int chunks = 1, int64_t grain = 1);

// A padded tensor that no mesh axis splits is modelled as a shard over this axis of one rank. The rules that detect an
// op that mistakes a shard for the whole tensor then also detect an op that ignores padding.
inline constexpr const char* kPaddingAxis = "(padding)";

struct AxisPlacement {
  PlacementKind kind = PlacementKind::unknown;
  int8_t dim = 0;                      // shard: the dim
  int8_t pieces = -1;                  // >= 0: dim 0 holds one piece per rank of this dim
  Combine combine = Combine::any;      // shard: `sum` if the samples of all ranks were summed and an average is due
  int16_t turn = 0;                    // shard: it belongs to the rank `turn` positions earlier
  Differs differs = Differs::unknown;  // varying
  const Cut* cut = nullptr;            // shard; invariant or partial: the parts are in the order of the ranks
  auto operator<=>(const AxisPlacement&) const = default;
};

inline constexpr int8_t kFlat = 100;  // the dim of a shard of a flat vector

// A norm whose weights are consistent with several axes: takes the placement of the term it is added to, whole or
// partial.
inline constexpr AxisPlacement kOpenSquares{PlacementKind::unknown, 0, -1, Combine::sum};
inline constexpr AxisPlacement kUnknown{}, kZero{PlacementKind::zero}, kInvariant{PlacementKind::invariant},
    kVarying{PlacementKind::varying};
inline AxisPlacement shard(int dim, const Cut* cut = nullptr) {
  return {PlacementKind::shard, static_cast<int8_t>(dim), -1, Combine::any, 0, Differs::unknown, cut};
}
bool is_one_run(const AxisPlacement& placement);
// Returns whether each rank has all tokens, in the order of the ranks' chunks.
bool in_order_of_ranks(const AxisPlacement& placement);
// Returns whether two shards of a dim contain the same elements on each rank.
bool cut_alike(const AxisPlacement& a, const AxisPlacement& b);
inline AxisPlacement partial(Combine combine) { return {PlacementKind::partial, 0, -1, combine, 0}; }
inline AxisPlacement varying(Differs differs) { return {PlacementKind::varying, 0, -1, Combine::any, 0, differs}; }

std::string placement_text(const AxisPlacement& placement);   // for example "S(0)"
std::string placement_words(const AxisPlacement& placement);  // for example "each rank's part of dim 0"
void move_shard(AxisPlacement& placement, int by);            // adjusts the dim to `by` more (or fewer) leading dims

using AxisPlacements = std::vector<AxisPlacement>;  // by axis, or by operand

// The placement of a byte interval: by axis (an id), and for a shard of a flat vector the layout of the whole vector,
// because its pieces may have different placements and each rank's shard holds other pieces.
struct TensorPlacement {
  int by_axis = 0;  // 0 = unknown on every axis
  int layout = -1;
  int64_t origin = 0;                        // begin of the shard in the buffer
  int64_t piece_begin = 0, piece_count = 0;  // its parameter, in elements of its flat vector
  bool operator==(const TensorPlacement&) const = default;
};

struct Piece {
  int64_t begin = 0, end = 0;  // elements
  int by_axis = 0;
  auto operator<=>(const Piece&) const = default;
};

struct Layout {
  std::vector<size_t> axes;  // the first cuts the vector, each further one the shards of the one before
  int64_t elements = 0;      // elements of one shard
  std::vector<Piece> pieces;
  auto operator<=>(const Layout&) const = default;
  bool is_over(size_t axis) const { return std::ranges::count(axes, axis) > 0; }
};

// The effect of one op on one axis.
struct AxisOutcome {
  AxisPlacements writes;
  std::string problem;  // "" = none
  size_t read = 0;      // the operand that the problem is about
};

struct AxisView {
  const OpContext& context;
  const std::string& axis;
  int ranks = 1;
  Combine combine = Combine::sum;  // reduction of values that are partial over batch shards of this axis
  bool drifts = false;             // ranks train independently between averages over this axis
  bool pads() const { return axis == kPaddingAxis; }
  bool operator()(const char* attribute) const;  // the op's attribute names this axis
  bool names(const char* attribute) const;       // likewise, for a comma-separated list of axes
};

using AxisRule = AxisOutcome (*)(const AxisView& axis, const AxisPlacements& reads);
// Returns the op's rule (placement_rules.cc); null for ops that communicate, that have no reads, or that have no
// writes.
AxisRule find_axis_rule(const OpDef& op);
// Returns the rule of an op whose operands correspond element by element; null for all others.
AxisRule find_elementwise_rule(const OpDef& op);
// Returns the placement of the output of an op without reads, before its attributes refine it; null = the op has reads.
const AxisPlacement* find_source_placement(const OpDef& op);
// Returns whether the placements of the op's outputs are defined. A test requires it of all ops, and a check of each op
// of a program.
bool has_placement_rule(const OpDef& op);

class PlacementFlow {
 public:
  explicit PlacementFlow(const JobView& view);
  // Sets the placements of the context's writes and reports contradictions.
  void follow(OpContext& context);
  // Reports a reduction across programs in which more than one stage contributes values of its own; the others must
  // contribute zeros.
  void check_same(const std::vector<OpContext>& members);
  // Returns the common placement of operands that ranks of different programs reduce together.
  TensorPlacement together(const std::vector<const TensorPlacement*>& placements);
  // Returns the placement of a value received from the rank `offset` positions earlier along `axis`.
  TensorPlacement arrived(const TensorPlacement& sent, const std::string& axis, int offset);
  // Returns for example "as terms of a sum over dp" if the value is not equal on all ranks; "" if it is, or is unknown.
  std::string not_whole(const TensorPlacement& placement) const;
  // Describes how `now` differs from `before`; "" if it does not.
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
  void exchange_rows(OpContext& context, size_t axis);
  void gather(OpContext& context, size_t axis);
  // placement_orthogonal.cc: Muon's ops, which find matrices in flat vectors by their attributes.
  void gather_parameters(OpContext& context, size_t axis);
  void orthogonalize(OpContext& context);
  void apply_update(OpContext& context);
  // placement_factored.cc: Adafactor's ops.
  void factored(OpContext& context);
  void factor_means(OpContext& context);
  void factor_norms(OpContext& context);
  AxisPlacements of_parameter(const OpContext& context, size_t read, int64_t start);
  int summed(AxisPlacements placements, int dim);
  void require_all_sums(const OpContext& context, size_t first, size_t end, const char* use);
  void reduce_scatter(OpContext& context, size_t axis);
  void scatter_shard(OpContext& context, size_t axis);
  void elementwise(OpContext& context, AxisRule rule);
  int together_in(const std::vector<Segment>& segments);
  void by_tensor(OpContext& context, AxisRule rule);
  AxisOutcome on_axis(const OpContext& context, AxisRule rule, size_t axis, const AxisPlacements& reads);
  // placement_flat.cc
  AxisPlacements on_axes_at(const Layout& layout, int64_t element) const;
  std::vector<int64_t> borders_of(const std::vector<const Layout*>& layouts) const;
  int joined_pieces(const Layout& layout, const AxisPlacements& on_its_axes);
  void take_axes(const Layout& layout, const AxisPlacements& from, AxisPlacements& to) const;
  // Applies `change` to the placement on each axis; for a shard of a flat vector, to each of its pieces.
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
  std::vector<size_t> axes_in(const std::string& names) const;  // of names between commas, in their order
  std::string names_of(const std::vector<size_t>& axes) const;  // "dp,node"

  std::vector<std::string> axes_;  // axes with more than one rank, and kPaddingAxis if anything is padded
  std::vector<int> sizes_;
  std::vector<Combine> combine_;
  std::vector<bool> stages_;   // axes along which programs differ
  std::vector<bool> drifts_;   // axes along which weights differ between two averages
  std::vector<bool> repeats_;  // axes along which some inputs are split, and all ranks read others whole
  std::vector<AxisPlacements> by_id_;
  std::map<AxisPlacements, int> ids_;
  std::vector<Layout> layouts_;
  std::map<Layout, int> layout_ids_;
  // Memoized results of rules, by op kind and operand placements. Problems are not memoized because each op reports its
  // own.
  std::map<std::vector<int>, std::vector<TensorPlacement>> made_;
  std::vector<int> key_;  // key of the current op: its kind and the placements of its operands
};

}  // namespace prun::verify
