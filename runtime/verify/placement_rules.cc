// Table of placement rules on one axis, by op.
#include "verify/placement_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "ir/ops.h"

namespace prun::verify {
namespace rules {

AxisOutcome needs_whole(const AxisView& axis, size_t read) {
  return bad(read,
             fmt::format("takes partial sums over {0} for whole values: a reduction over {0} is missing", axis.axis));
}
AxisOutcome do_not_match(const AxisView& axis, const AxisPlacements& reads, size_t read) {
  std::string list;
  for (const AxisPlacement& placement : reads) list += (list.empty() ? "" : "; ") + placement_words(placement);
  return bad(read, fmt::format("combines operands that are spread differently over {}: {}", axis.axis, list));
}

std::vector<int64_t> column_blocks(const AxisView& axis, const AxisPlacements& reads, size_t read) {
  if (reads[read].cut != nullptr) return reads[read].cut->blocks;
  return {axis.context.read_tensors[read]->shape.back() * axis.ranks};
}

std::string tokens_problem(const AxisView& axis, const AxisPlacements& reads) {
  const bool split = by_rows(axis, reads, 0) && reads[0].dim == 1, counts = axis.names("tokens_axis");
  if (split && !counts) return fmt::format("counts the rank's own tokens, of those split over {0}, from 0", axis.axis);
  if (!split && counts) return fmt::format("counts tokens as if they were split over {}", axis.axis);
  // `chunks` applies to the first axis; further axes divide the remaining tokens of a rank into runs.
  const std::string axes = axis.context.op.attrs.text("tokens_axis");
  const bool first = axes.substr(0, axes.find(',')) == axis.axis;
  const int64_t chunks = first ? axis.context.op.attrs.integer("chunks", 1) : 1,
                has = reads[0].cut ? reads[0].cut->chunks : 1;
  if (split && chunks != has)
    return fmt::format("counts {} chunks of tokens on each rank of {}, which has {}", chunks, axis.axis, has);
  return "";
}

Agreement agreement(const AxisPlacements& reads, size_t from, size_t to) {
  Agreement result;
  for (size_t r = from; r < to; r++) {
    if (is(reads[r], Kind::zero)) continue;
    AxisPlacement placement = reads[r];
    if (is(result.placement, Kind::zero)) {
      result.placement = placement;
    } else if (AxisPlacement other = placement; cut_alike(result.placement, placement) &&
                                                (other.cut = result.placement.cut, other == result.placement)) {
      if (result.placement.cut == nullptr) result.placement = placement;
    } else {
      result.agree = false;
      result.read = r;
    }
  }
  return result;
}

namespace {

// Rule of an op that computes its writes from its first `own` reads and adds the other reads to them: both terms of
// each sum must have the same placement.
template <Rule rule, size_t own>
AxisOutcome adding(const AxisView& axis, const AxisPlacements& reads) {
  AxisOutcome outcome = rule(axis, {reads.begin(), reads.begin() + own});
  if (!outcome.problem.empty()) return outcome;
  for (size_t r = own; r < reads.size(); r++) {
    AxisPlacement& sum = outcome.writes[r - own];
    const AxisPlacements terms = {sum, reads[r]};
    const Agreement both = agreement(terms, 0, 2);
    if (!both.agree) return do_not_match(axis, terms, r);
    sum = both.placement;
  }
  return outcome;
}

struct Row {
  const OpDef* op;
  AxisRule rule;
};

constexpr Row kElementwise[] = {{&ops::add, linear_elementwise},
                                {&ops::copy, linear_elementwise},
                                {&ops::cast, linear_elementwise},
                                {&ops::load, linear_elementwise},
                                {&ops::store, linear_elementwise},
                                {&ops::scale, scale},
                                {&ops::mul, product},
                                {&ops::gelu, nonlinear_elementwise},
                                {&ops::relu, nonlinear_elementwise},
                                {&ops::gelu_dx, elementwise_grad},
                                {&ops::relu_dx, elementwise_grad},
                                {&ops::tanh, nonlinear_elementwise},
                                {&ops::tanh_dx, elementwise_grad},
                                {&ops::silu_mul, nonlinear_elementwise},
                                {&ops::silu_mul_grad, elementwise_grad},
                                {&ops::mse_grad, nonlinear_elementwise},
                                {&ops::bce_grad, nonlinear_elementwise},
                                {&ops::mean_square_grad, nonlinear_elementwise},
                                {&ops::mean_grad, mean_grad},
                                {&ops::sgd, optimizer},
                                {&ops::adamw, optimizer},
                                {&ops::sgd_cast, optimizer},
                                {&ops::adamw_cast, optimizer},
                                {&ops::lion, optimizer},
                                {&ops::pointwise_update, optimizer},
                                {&ops::muon_momentum, optimizer},
                                {&ops::adafactor, optimizer},
                                {&ops::ema, nonlinear_elementwise}};

constexpr Row kRows[] = {
    {&ops::linear, linear},
    {&ops::linear_dx, linear_dx},
    {&ops::linear_dw, linear_dw},
    {&ops::linear_dw_add, adding<linear_dw, 2>},
    {&ops::linear_gelu, linear_gelu},
    {&ops::linear_dx_gelu, linear_dx_gelu},
    {&ops::bias, bias},
    {&ops::bias_grad, bias_grad},
    {&ops::bias_grad_add, adding<bias_grad, 1>},
    {&ops::layernorm, norm},
    {&ops::layernorm_grad, norm_grad},
    {&ops::add_layernorm, add_norm},
    {&ops::layernorm_grad_add, norm_grad_add},
    {&ops::rmsnorm, norm},
    {&ops::rmsnorm_grad, norm_grad},
    {&ops::add_rmsnorm, add_norm},
    {&ops::rmsnorm_grad_add, norm_grad_add},
    {&ops::attention, attention},
    {&ops::attention_grad, attention_grad},
    {&ops::attend, attend},
    {&ops::attend_grad, attend_grad},
    {&ops::rotary, rotary},
    {&ops::rotary_at, rotary_at},
    {&ops::cached_attention, cached_attention},
    {&ops::sample_token, sample_token},
    {&ops::write_rows, write_rows},
    {&ops::copy_kv, copy_kv},
    {&ops::join_qkv, join_qkv},
    {&ops::attention_block, attention_block},
    {&ops::attention_block_grad, attention_block_grad},
    {&ops::route, route},
    {&ops::route_grad, route_grad},
    {&ops::softmax_sums, softmax_sums},
    {&ops::softmax_sums_grad, softmax_sums_grad},
    {&ops::dispatch, dispatch},
    {&ops::dispatch_grad, adding<dispatch_grad, 2>},
    {&ops::combine, adding<combine, 3>},
    {&ops::combine_grad, combine_grad},
    {&ops::expert_linear, expert_linear},
    {&ops::expert_linear_dx, expert_linear_dx},
    {&ops::expert_linear_dw, expert_linear_dw},
    {&ops::expert_linear_dw_add, adding<expert_linear_dw, 3>},
    {&ops::expert_activation, expert_activation},
    {&ops::expert_activation_grad, expert_activation_grad},
    {&ops::pack_rows, pack_rows},
    {&ops::unpack_rows, unpack_rows},
    {&ops::dropout, dropout},
    {&ops::embedding, embedding},
    {&ops::embedding_grad, embedding_grad},
    {&ops::positions, positions},
    {&ops::positions_grad, positions_grad},
    {&ops::cross_entropy, loss},
    {&ops::cross_entropy_grad, cross_entropy_grad},
    {&ops::cross_entropy_and_grad, cross_entropy_and_grad},
    {&ops::cross_entropy_max, cross_entropy_max},
    {&ops::cross_entropy_sums, cross_entropy_sums},
    {&ops::cross_entropy_finish, cross_entropy_finish},
    {&ops::mse, loss},
    {&ops::bce, loss},
    {&ops::kl, loss},
    {&ops::kl_grad, rows_grad},
    {&ops::logsumexp, logsumexp},
    {&ops::logsumexp_grad, rows_grad},
    {&ops::accuracy, accuracy},
    {&ops::squares, squares},
    {&ops::squares_grad, squares_grad},
    {&ops::mean_square, loss},
    {&ops::mean, mean},
    {&ops::norm2, norm2},
    {&ops::clip_coefficient, clip_coefficient},
    {&ops::pointwise, pointwise},
    {&ops::reduce_dims, reduce_dims},
    {&ops::softmax, softmax},
    {&ops::softmax_grad, softmax_grad},
    {&ops::matmul, matmul},
    {&ops::cumsum, cumsum},
    {&ops::conv, conv},
    {&ops::conv_transpose, conv},
    {&ops::conv_dw, conv_dw},
    {&ops::pooling, pool},
    {&ops::pooling_grad, pool},
    {&ops::join_pieces, join_pieces},
    {&ops::cut_pieces, cut_pieces},
    {&ops::take_piece, take_piece},
    {&ops::take_slots, take_slots},
    {&ops::reshape, reshape},
    {&ops::permute, permute},
    {&ops::slice, one_dim},
    {&ops::pad, one_dim},
    {&ops::concat, concat},
    {&ops::expand, expand},
    {&ops::expand_grad, expand_grad},
    {&ops::gather_rows, gather_rows},
    {&ops::gather_rows_grad, gather_rows_grad},
    {&ops::check_finite, note},
    {&ops::fingerprint, note},
};

AxisRule find(std::span<const Row> rows, const OpDef& op) {
  const auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& one) { return one.op->name == op.name; });
  return row == rows.end() ? nullptr : row->rule;
}

// kCommunication: propagated in placement_comm.cc, messages in values.cc. kNotFollowed: ops whose results only a root
// has or whose sizes are data, and ops that earlier passes replace.
constexpr const OpDef* kCommunication[] = {
    &ops::all_reduce, &ops::all_gather, &ops::all_to_all, &ops::reduce_scatter, &ops::broadcast,    &ops::send,
    &ops::recv,       &ops::put,        &ops::signal,     &ops::wait_signal,    &ops::exchange_rows};
// placement_orthogonal.cc and placement_factored.cc
constexpr const OpDef* kOfParameters[] = {&ops::orthogonalize, &ops::muon, &ops::factor_means, &ops::factor_norms};
constexpr const OpDef* kNotFollowed[] = {
    &ops::reduce,         &ops::gather,       &ops::scatter,          &ops::barrier,
    &ops::all_gather_v,   &ops::enter,        &ops::ring_attention,   &ops::ring_attention_grad,
    &ops::print,          &ops::report_norms, &ops::await_checkpoint, &ops::save_state,
    &ops::require_finite, &ops::require_same, &ops::by_phase,         &ops::update};

}  // namespace
}  // namespace rules

AxisRule find_axis_rule(const OpDef& op) { return rules::find(rules::kRows, op); }
AxisRule find_elementwise_rule(const OpDef& op) { return rules::find(rules::kElementwise, op); }

bool has_placement_rule(const OpDef& op) {
  const auto in = [&](const auto& list) { return std::find(std::begin(list), std::end(list), &op) != std::end(list); };
  return find_axis_rule(op) != nullptr || find_elementwise_rule(op) != nullptr ||
         find_source_placement(op) != nullptr || in(rules::kCommunication) || in(rules::kOfParameters) ||
         in(rules::kNotFollowed);
}

}  // namespace prun::verify
