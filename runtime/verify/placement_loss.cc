// Losses over whole or split vocabularies. A loss is a sum over rows.
#include <fmt/format.h>

#include <algorithm>

#include "ir/ops.h"
#include "verify/placement_rules.h"

namespace prun::verify::rules {

namespace {

// Returns the error of a loss whose logits are sharded over the vocabulary, or padded, without attributes that state
// so; "" = none.
std::string vocabulary_problem(const AxisView& axis, const AxisPlacements& reads, size_t logits) {
  const bool columns = by_columns(axis, reads, logits);
  if (columns != axis("axis") && !axis.pads())
    return columns ? fmt::format("takes each rank's part of the vocabulary over {} for all of it", axis.axis)
                   : fmt::format("takes logits for a rank's part of the vocabulary over {}, and they are {}", axis.axis,
                                 placement_words(reads[logits]));
  if (!columns) return "";
  const int64_t vocab = axis.context.op.attrs.integer("vocab"), has = column_blocks(axis, reads, logits).front();
  if (!is_one_run(reads[logits]))
    return fmt::format("takes columns for a run of the vocabulary over {}, and they are {}", axis.axis,
                       placement_words(reads[logits]));
  return vocab == has ? ""
                      : fmt::format("counts {} columns of logits over {}, and there are {}", vocab, axis.axis, has);
}

// Returns whether all operands have the placement of the first, or all are whole.
bool alike(const AxisPlacements& reads) {
  return std::all_of(reads.begin(), reads.end(),
                     [&](const AxisPlacement& read) { return read == reads[0] || (whole(read) && whole(reads[0])); });
}

}  // namespace

AxisOutcome loss(const AxisView& axis, const AxisPlacements& reads) {
  for (size_t r = 0; r < reads.size(); r++)
    if (is_partial(reads[r])) return needs_whole(axis, r);
  if (axis.pads() && axis.context.op.def->counts_rows) {
    const std::string problem = vocabulary_problem(axis, reads, 0);
    return problem.empty() ? gives({kInvariant}) : bad(0, problem);
  }
  if (by_columns(axis, reads, 0) && axis.context.op.def->counts_rows)
    return bad(0, fmt::format("takes each rank's part of the vocabulary over {} for all of it", axis.axis));
  if (by_columns(axis, reads, 0) && last_dim(axis, 0) > 0)
    return bad(0, fmt::format("takes each rank's part of the columns over {} for all of them", axis.axis));
  if (!alike(reads)) return do_not_match(axis, reads, 0);
  if (is_shard(reads[0])) return gives({partial(axis.combine), reads[0]});
  return gives({kInvariant});
}

// Operands: logits, targets, lse, shares?.
AxisOutcome cross_entropy_grad(const AxisView& axis, const AxisPlacements& reads) {
  for (size_t r = 0; r < reads.size(); r++)
    if (is_partial(reads[r])) return needs_whole(axis, r);
  const std::string problem = vocabulary_problem(axis, reads, 0);
  if (!problem.empty()) return bad(0, problem);
  const bool columns = by_columns(axis, reads, 0);
  for (size_t r = 1; r < reads.size(); r++)
    if (columns ? !whole(reads[r]) : reads[r] != reads[0]) return do_not_match(axis, reads, r);
  return gives({reads[0]});
}

// Operands: logits, targets, shares?. Results: the loss, row statistics and the gradient of the logits.
AxisOutcome cross_entropy_and_grad(const AxisView& axis, const AxisPlacements& reads) {
  const AxisOutcome forward = loss(axis, reads);
  if (!forward.problem.empty()) return forward;
  if (axis.pads()) return gives({kInvariant, kInvariant, reads[0]});
  for (size_t r = 1; r < reads.size(); r++)
    if (reads[r] != reads[0]) return do_not_match(axis, reads, r);
  return gives({forward.writes[0], reads[0], reads[0]});
}

AxisOutcome cross_entropy_max(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return needs_whole(axis, 0);
  const std::string problem = vocabulary_problem(axis, reads, 0);
  if (!problem.empty()) return bad(0, problem);
  return gives({by_columns(axis, reads, 0) ? partial(Combine::max) : reads[0]});
}

AxisOutcome cross_entropy_sums(const AxisView& axis, const AxisPlacements& reads) {
  for (const size_t r : {0u, 2u})
    if (is_partial(reads[r])) return needs_whole(axis, r);
  const std::string problem = vocabulary_problem(axis, reads, 0);
  if (!problem.empty()) return bad(0, problem);
  return gives({by_columns(axis, reads, 0) ? partial(Combine::sum) : reads[0]});
}

// Operands: s, m, logits, targets, shares?.
AxisOutcome cross_entropy_finish(const AxisView& axis, const AxisPlacements& reads) {
  for (const size_t r : {0u, 1u})
    if (is_partial(reads[r])) return needs_whole(axis, r);
  const std::string problem = vocabulary_problem(axis, reads, 2);
  if (!problem.empty()) return bad(2, problem);
  if (reads.size() > 4 && reads[4] != reads[3]) return do_not_match(axis, reads, 4);
  if (by_rows(axis, reads, 2)) return gives({partial(axis.combine), reads[2]});
  return gives({kInvariant});
}

// Results of rows of logits whose operands are placed alike: dx has the placement of x.
AxisOutcome rows_grad(const AxisView& axis, const AxisPlacements& reads) {
  for (size_t r = 0; r < reads.size(); r++)
    if (is_partial(reads[r])) return needs_whole(axis, r);
  if (by_columns(axis, reads, 0))
    return bad(0, fmt::format("takes each rank's part of the columns over {} for all of them", axis.axis));
  return alike(reads) ? gives({reads[0]}) : do_not_match(axis, reads, 1);
}

AxisOutcome logsumexp(const AxisView& axis, const AxisPlacements& reads) { return rows_grad(axis, reads); }

AxisOutcome accuracy(const AxisView& axis, const AxisPlacements& reads) {
  AxisOutcome sum = loss(axis, reads);
  if (!sum.problem.empty()) return sum;
  return gives({sum.writes[0], sum.writes[0]});
}

// A sum of squares of a parameter: of a shard it is a partial sum. Over ranks with different samples it is its own
// average, as a loss is before its reduction.
AxisOutcome squares(const AxisView& axis, const AxisPlacements& reads) {
  if (is_partial(reads[0])) return needs_whole(axis, 0);
  if (is_shard(reads[0])) return gives({partial(Combine::sum)});
  return gives({axis.combine == Combine::average ? partial(Combine::average) : reads[0]});
}

// A mean is linear, so it may read a sum of squares before the average over ranks with different samples.
AxisOutcome mean(const AxisView& axis, const AxisPlacements& reads) {
  if (axis.context.op.attrs.has("gain") && axis.combine == Combine::average)  // of sums over all ranks' samples
    return whole(reads[0]) ? gives({partial(Combine::average)}) : needs_whole(axis, 0);
  const bool averages = is_partial(reads[0]) && reads[0].combine == Combine::average;
  return averages ? gives({reads[0]}) : loss(axis, reads);
}
AxisOutcome mean_grad(const AxisView& axis, const AxisPlacements& reads) {
  const bool averages = is_partial(reads[0]) && reads[0].combine == Combine::average;
  return averages ? gives({kInvariant}) : nonlinear_elementwise(axis, reads);
}

// Operands: x, ds. Every rank has the whole sum's derivative. Where other gradients of x are averaged over the samples
// of ranks this one equals its average; where they add up (`partial_over`) each rank has an equal part of it.
AxisOutcome squares_grad(const AxisView& axis, const AxisPlacements& reads) {
  for (size_t r = 0; r < reads.size(); r++)
    if (is_partial(reads[r])) return needs_whole(axis, r);
  if (!whole(reads[1])) return do_not_match(axis, reads, 1);
  if (is_shard(reads[0])) return gives({reads[0]});
  if (axis.names("partial_over")) return gives({partial(Combine::sum)});
  return gives({axis.combine == Combine::average ? partial(Combine::average) : reads[0]});
}

}  // namespace prun::verify::rules
