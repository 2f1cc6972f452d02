// Shared parts of the placement rules, and the rules by op family.
//
// A rule sees axes that are known and not varying. Surprising fact: all rules follow from two sentences: a sum over a
// sharded dim is partial, and a nonlinear op may not read a partial sum.
#pragma once
#include <string>

#include "verify/values.h"

namespace prun::verify::rules {

using Kind = PlacementKind;
inline AxisOutcome gives(AxisPlacements axes) { return {std::move(axes), "", 0}; }
inline AxisOutcome bad(size_t read, std::string problem) { return {{}, std::move(problem), read}; }
AxisOutcome needs_whole(const AxisView& axis, size_t read);
AxisOutcome do_not_match(const AxisView& axis, const AxisPlacements& reads, size_t read);

inline bool is(const AxisPlacement& placement, Kind kind) { return placement.kind == kind; }
inline bool whole(const AxisPlacement& placement) {
  return is(placement, Kind::invariant) || is(placement, Kind::zero);
}
inline bool is_partial(const AxisPlacement& placement) { return is(placement, Kind::partial); }
inline bool is_shard(const AxisPlacement& placement) { return is(placement, Kind::shard); }
// Slots of tokens, [tokens, choices], of which a rank has those of its experts.
inline const AxisPlacement kSlotsOfExperts = shard(2);
inline int last_dim(const AxisView& axis, size_t read) {
  return std::ssize(axis.context.read_tensors[read]->shape) - 1;
}
// Return whether an operand is sharded along the contracted (last) dim, or along rows.
inline bool by_columns(const AxisView& axis, const AxisPlacements& reads, size_t read) {
  return is_shard(reads[read]) && reads[read].dim == last_dim(axis, read);
}
inline bool by_rows(const AxisView& axis, const AxisPlacements& reads, size_t read) {
  return is_shard(reads[read]) && reads[read].dim < last_dim(axis, read);
}

// The common placement of operands that must agree, ignoring zeros.
struct Agreement {
  bool agree = true;
  AxisPlacement placement = kZero;
  size_t read = 0;  // the operand that disagrees
};
Agreement agreement(const AxisPlacements& reads, size_t from, size_t to);

// Returns the blocks of the last dim of operand `read`, which is sharded along it, in elements of the whole.
std::vector<int64_t> column_blocks(const AxisView& axis, const AxisPlacements& reads, size_t read);
// Returns the placement of [start, start + size) of a rank's part of the sharded dim of operand `read`, if they are the
// rank's parts of whole blocks; otherwise kUnknown.
AxisPlacement sliced_blocks(const AxisView& axis, const AxisPlacements& reads, size_t read, int64_t start,
                            int64_t size);
// Returns the error in the op's numbering of the tokens of operand 0 along the axis; "" = none.
std::string tokens_problem(const AxisView& axis, const AxisPlacements& reads);

using Rule = AxisOutcome(const AxisView& axis, const AxisPlacements& reads);
// placement_elementwise.cc
Rule linear_elementwise, nonlinear_elementwise, product, elementwise_grad, scale, optimizer, norm2, clip_coefficient,
    note;
// placement_linear.cc
Rule linear, linear_dx, linear_dw, linear_gelu, linear_dx_gelu, bias, bias_grad, norm, norm_grad, add_norm,
    norm_grad_add, embedding, embedding_grad, positions, positions_grad;
// placement_attention.cc
Rule attention, attention_grad, attend, attend_grad, attention_block, attention_block_grad, rotary, rotary_at, copy_kv,
    join_qkv, dropout, cached_attention, sample_token, write_rows;
// placement_experts.cc
Rule route, route_grad, softmax_sums, softmax_sums_grad, dispatch, dispatch_grad, combine, combine_grad, expert_linear,
    expert_linear_dx, expert_linear_dw, pack_rows, unpack_rows, expert_activation, expert_activation_grad;
// placement_loss.cc
Rule loss, cross_entropy_grad, cross_entropy_and_grad, cross_entropy_max, cross_entropy_sums, cross_entropy_finish,
    rows_grad, logsumexp, accuracy, squares, squares_grad, mean, mean_grad;
// placement_arithmetic.cc
Rule pointwise, reduce_dims, softmax, softmax_grad, matmul, cumsum;
// placement_windows.cc
Rule conv, conv_dw, pool;
// placement_pieces.cc
Rule join_pieces, cut_pieces, take_piece, take_slots;
// placement_views.cc
Rule reshape, permute, one_dim, concat, expand, expand_grad, gather_rows, gather_rows_grad;

}  // namespace prun::verify::rules
