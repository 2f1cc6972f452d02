// pointwise, reduce_dims, softmax, matmul and cumsum.
//
// Surprising fact: a pointwise program may read partial sums if its result is a linear function of them alone: then
// each rank's result is its term of the result's sum.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "ir/ops.h"
#include "ir/pointwise.h"
#include "verify/parts.h"
#include "verify/placement_rules.h"

namespace prun::verify::rules {
namespace {

// Dependence of a value on the reads that are partial sums.
enum class Dependence : uint8_t { none, zero, linear, other };

Dependence dependence_of(const sdk::PointwiseInstruction& one, const Dependence* in) {
  using sdk::Pointwise;
  const auto free = [](Dependence d) { return d == Dependence::none || d == Dependence::zero; };
  const auto sum = [](Dependence a, Dependence b) {
    if (a == Dependence::zero) return b;
    if (b == Dependence::zero || a == b) return a;
    return Dependence::other;
  };
  const int operands = sdk::function_of(one.code).operands;
  if (std::all_of(in, in + operands, free))
    return one.code == Pointwise::mul && (in[0] == Dependence::zero || in[1] == Dependence::zero) ? Dependence::zero
                                                                                                  : Dependence::none;
  switch (one.code) {
    case Pointwise::add:
    case Pointwise::sub:
      return sum(in[0], in[1]);
    case Pointwise::mul:
      if (free(in[0])) return in[1];
      return free(in[1]) ? in[0] : Dependence::other;
    case Pointwise::div:
      return free(in[1]) ? in[0] : Dependence::other;
    case Pointwise::where:
      return free(in[0]) ? sum(in[1], in[2]) : Dependence::other;
    default:
      return Dependence::other;
  }
}

bool is_linear(const AxisView& axis, const AxisPlacements& reads) {
  const sdk::PointwiseProgram program = pointwise_program(axis.context.op.attrs, reads.size());
  std::vector<Dependence> results;
  for (const sdk::PointwiseInstruction& one : program) {
    Dependence in[3] = {};
    for (int i = 0; i < sdk::function_of(one.code).operands; ++i) {
      const sdk::PointwiseOperand& operand = one.operands[i];
      if (operand.kind == sdk::PointwiseOperand::result)
        in[i] = results[operand.index];
      else if (operand.kind == sdk::PointwiseOperand::number)
        in[i] = operand.value == 0 ? Dependence::zero : Dependence::none;
      else
        in[i] = is_partial(reads[operand.index]) ? Dependence::linear : Dependence::none;
    }
    results.push_back(dependence_of(one, in));
  }
  return results.back() == Dependence::linear;
}

// The dims of pointwise or matmul that the dims of its reads become, by the attributes `over` and `views`.
class OperandDims {
 public:
  explicit OperandDims(const AxisView& axis) : axis_(axis) {
    const Attrs& attrs = axis.context.op.attrs;
    if (attrs.has("over")) masks_ = attrs.integers("over");
    views_ = sdk::parse_operand_views(attrs.text("views")).value_or(std::vector<sdk::OperandView>());
  }

  // Returns the placement of the output by read `r`, a shard; kUnknown if the op reads a part of the sharded dim.
  AxisPlacement moved(const AxisPlacements& reads, size_t r) const {
    const Places places = places_of(r);
    const size_t dim = static_cast<uint8_t>(reads[r].dim);
    if (dim >= places.size() || places[dim].to < 0) return kUnknown;
    const int64_t size = axis_.context.read_tensors[r]->shape[dim];
    const auto [to, start, read] = places[dim];
    AxisPlacement placement = reads[r];
    if (start != 0 || read != size) placement = sliced_blocks(axis_, reads, r, start, read);
    placement.dim = static_cast<int8_t>(to);
    return placement;
  }

  // Returns whether read `r` repeats along dim `to`, because no dim of it becomes it.
  bool lacks(size_t r, int to) const {
    const Places places = places_of(r);
    return std::none_of(places.begin(), places.end(), [&](const Place& place) { return place.to == to; });
  }

  // Returns the stored dim of matmul's result, operand `r`, that is the op's dim `to`.
  int stored_dim(int r, int to) const {
    const sdk::OperandView* const view = sdk::view_of_operand(views_, r);
    if (view == nullptr) return to;
    for (size_t d = 0; d < view->dims.size(); d++)
      if (view->dims[d].to == to) return static_cast<int>(d);
    return -1;
  }

  // Returns how much of dim `to` of the output read `r` has; 1 if it is repeated.
  int64_t size(size_t r, int to) const {
    int64_t size = 1;
    for (const Place& place : places_of(r))
      if (place.to == to) size = place.size;
    return size;
  }

 private:
  struct Place {
    int to;  // -1: only element `start` is read
    int64_t start, size;
  };
  using Places = std::vector<Place>;  // by dim of a read

  Places places_of(size_t r) const {
    const Shape& x = axis_.context.read_tensors[r]->shape;
    Places places;
    for (const sdk::OperandView& view : views_) {
      if (view.operand != static_cast<int>(r) || view.dims.size() != x.size()) continue;
      for (size_t d = 0; d < x.size(); d++)
        places.push_back({view.dims[d].to, view.dims[d].start, view.dims[d].size == 0 ? x[d] : view.dims[d].size});
      return places;
    }
    const size_t rank = axis_.context.write_tensors[0]->shape.size();
    for (const int to : sdk::pointwise_places(x.size(), rank, masks_.empty() ? -1 : masks_[r]))
      if (places.size() < x.size()) places.push_back({to, 0, x[places.size()]});
    return places;
  }

  const AxisView& axis_;
  std::vector<int64_t> masks_;
  std::vector<sdk::OperandView> views_;
};

std::string over_parts(const AxisView& axis, const char* verb) {
  return fmt::format("{} a dim of which each rank has a part over {}", verb, axis.axis);
}

// Attribute rows_axis: the first dim, which no operand has, repeats a value for each sample of the rank.
AxisOutcome repeated_samples(const AxisView& axis, const AxisPlacements& reads, const OperandDims& dims) {
  for (size_t r = 0; r < reads.size(); r++)
    if (dims.size(r, 0) != 1) return do_not_match(axis, reads, r);
  return gives({shard(0)});
}

AxisOutcome pointwise_result(const AxisView& axis, const AxisPlacements& reads) {
  const OperandDims dims(axis);
  const auto partial_at = std::find_if(reads.begin(), reads.end(), is_partial);
  AxisPlacement placement = kInvariant;
  size_t first = reads.size();
  for (size_t r = 0; r < reads.size(); r++) {
    if (!is_shard(reads[r])) continue;
    const AxisPlacement moved = dims.moved(reads, r);
    if (!is_shard(moved)) return do_not_match(axis, reads, r);
    if (first == reads.size()) {
      placement = moved, first = r;
    } else if (AxisPlacement other = moved;
               !cut_alike(placement, moved) || (other.cut = placement.cut, other != placement)) {
      return do_not_match(axis, reads, r);
    }
  }
  if (first == reads.size()) {
    if (partial_at == reads.end() && axis.names("rows_axis")) return repeated_samples(axis, reads, dims);
    if (partial_at == reads.end()) return gives({kInvariant});
    const auto other = [&](const AxisPlacement& read) { return is_partial(read) && read != *partial_at; };
    if (std::any_of(reads.begin(), reads.end(), other) || !is_linear(axis, reads))
      return needs_whole(axis, partial_at - reads.begin());
    return gives({*partial_at});
  }
  if (partial_at != reads.end()) return needs_whole(axis, partial_at - reads.begin());
  // A tensor that every rank has must not extend along the sharded dim.
  for (size_t r = 0; r < reads.size(); r++)
    if (!is_shard(reads[r]) && !is(reads[r], Kind::zero) && dims.size(r, placement.dim) != 1)
      return do_not_match(axis, reads, r);
  return gives({placement});
}

AxisPlacements without_whole(const AxisView& axis, const AxisPlacements& reads) {
  return {reads.begin(), reads.begin() + static_cast<std::ptrdiff_t>(own_reads(axis.context.op))};
}

}  // namespace

AxisOutcome pointwise(const AxisView& axis, const AxisPlacements& reads) {
  return in_whole(axis, reads, pointwise_result(axis, without_whole(axis, reads)));
}

AxisOutcome reduce_dims(const AxisView& axis, const AxisPlacements& reads) {
  const Attrs& attrs = axis.context.op.attrs;
  const std::vector<int64_t> dims = attrs.integers("dims"),
                             kept = attrs.has("kept") ? attrs.integers("kept") : std::vector<int64_t>();
  const auto in = [](const std::vector<int64_t>& list, int64_t dim) {
    return std::find(list.begin(), list.end(), dim) != list.end();
  };
  const std::string op = attrs.text("op");
  if (is_partial(reads[0])) return op == "max" ? needs_whole(axis, 0) : gives({reads[0]});
  if (!is_shard(reads[0])) return gives({reads[0]});
  if (in(dims, reads[0].dim)) {
    // The mean over all samples is the average of the ranks' means, because they have equal parts of them.
    const bool of_samples = op == "mean" && axis.combine == Combine::average && reads[0].combine == Combine::any;
    return op == "sum" || of_samples
               ? gives({partial(axis.combine)})
               : bad(0, over_parts(axis, op == "max" ? "takes the maximum over" : "averages over"));
  }
  AxisPlacement placement = reads[0];
  for (const int64_t dim : dims)
    if (dim < reads[0].dim && !in(kept, dim)) --placement.dim;
  return gives({placement});
}

AxisOutcome softmax(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return needs_whole(axis, 0);
  if (by_columns(axis, reads, 0)) return bad(0, over_parts(axis, "takes the softmax over"));
  const Attrs& attrs = axis.context.op.attrs;
  const bool counts = attrs.integer("causal") != 0 || attrs.integer("window") != 0;
  if (counts && is_shard(reads[0]) && reads[0].dim + 1 == last_dim(axis, 0))
    return bad(0, over_parts(axis, "counts the rows of"));
  return gives({reads[0]});
}

AxisOutcome softmax_grad(const AxisView& axis, const AxisPlacements& reads) {
  if (by_columns(axis, reads, 0)) return bad(0, over_parts(axis, "takes the softmax over"));
  return elementwise_grad(axis, reads);
}

// A leading dim that is split over ranks is split alike in both operands, or one operand lacks it.
static AxisOutcome matmul_result(const AxisView& axis, const AxisPlacements& reads) {
  const OperandDims dims(axis);
  const int rank = static_cast<int>(axis.context.write_tensors[0]->shape.size());
  AxisPlacements moved = reads;
  for (size_t r = 0; r < 2; r++)
    if (is_shard(reads[r]) && !is_shard(moved[r] = dims.moved(reads, r))) return do_not_match(axis, reads, 1);
  const AxisPlacement &a = moved[0], &b = moved[1];
  const Attrs& attrs = axis.context.op.attrs;
  const int a_rows = attrs.integer("transpose_a") != 0 ? rank - 1 : rank - 2, a_sums = 2 * rank - 3 - a_rows;
  const int b_columns = attrs.integer("transpose_b") != 0 ? rank - 2 : rank - 1, b_sums = 2 * rank - 3 - b_columns;
  const auto gives_shard = [&](int dim, const Cut* cut) {
    const int stored = dims.stored_dim(2, dim);
    return stored < 0 ? do_not_match(axis, reads, 1) : gives({shard(stored, cut)});
  };
  if (is_shard(a) && is_shard(b) && cut_alike(a, b)) {
    if (a.dim == b.dim && a.dim < rank - 2) return gives_shard(a.dim, a.cut);
    if (a.dim == a_sums && b.dim == b_sums) return gives({partial(axis.combine)});
  }
  for (const auto& [split, other, r] : {std::tuple(a, b, size_t{1}), std::tuple(b, a, size_t{0})})
    if (is_shard(split) && split.dim < rank - 2 && whole(other) && dims.lacks(r, split.dim))
      return gives_shard(split.dim, split.cut);
  if (is_shard(a) && a.dim == a_rows && whole(b)) return gives_shard(rank - 2, a.cut);
  if (whole(a) && is_shard(b) && b.dim == b_columns) return gives_shard(rank - 1, b.cut);
  if (is_partial(a) && whole(b)) return gives({a});
  if (whole(a) && is_partial(b)) return gives({b});
  if (whole(a) && whole(b)) return gives({kInvariant});
  return do_not_match(axis, reads, 1);
}

AxisOutcome matmul(const AxisView& axis, const AxisPlacements& reads) {
  return in_whole(axis, reads, matmul_result(axis, without_whole(axis, reads)));
}

AxisOutcome cumsum(const AxisView& axis, const AxisPlacements& reads) {
  if (is_shard(reads[0]) && reads[0].dim == axis.context.op.attrs.integer("dim"))
    return bad(0, over_parts(axis, "adds up along"));
  return gives({reads[0]});
}

}  // namespace prun::verify::rules
