// Adafactor's ops, which read flat vectors of units and write means and sums of each parameter to places of their own.
//
// The mean over a dim is a partial sum over the axes that divide this dim, and over those that shard the flat vector;
// on all other axes it is placed as the parameter. A reduction must complete it before factor_norms reads it.
#include <fmt/format.h>

#include <algorithm>

#include "ir/factored.h"
#include "ir/ops.h"
#include "verify/placement_rules.h"
#include "verify/values.h"

namespace prun::verify {
namespace {

constexpr const char* kPlacementOfMeans = "placement";
constexpr int kAllDims = -1, kNoDim = -2;

}  // namespace

// Returns the placement of the parameter that begins at an element of the unit's flat vector.
AxisPlacements PlacementFlow::of_parameter(const OpContext& context, size_t read, int64_t start) {
  const Tensor& vector = *context.read_tensors[read];
  const int64_t at = vector.byte_offset + start * dtype_bytes(vector.dtype);
  for (const Segment& segment : context.reads[read]) {
    const TensorPlacement& placement = segment.state.placement;
    if (placement.layout >= 0) {
      const Layout& layout = layouts_[placement.layout];
      AxisPlacements axes = on_axes_at(layout, start);
      take_axes(layout, on_axes(placement.by_axis), axes);
      return axes;
    }
    if (segment.begin <= at && at < segment.end) return on_axes(placement.by_axis);
  }
  return all(kUnknown);
}

// Returns the placement of sums of a parameter's squares over a dim.
int PlacementFlow::summed(AxisPlacements placements, int dim) {
  for (size_t a = 0; a < axes_.size(); a++) {
    AxisPlacement& here = placements[a];
    if (here.kind == PlacementKind::partial)  // adafactor reports a missing reduction of gradients
      here = drifts_[a] && here.combine == Combine::average ? varying(Differs::drift) : kUnknown;
    if (here.kind != PlacementKind::shard) continue;
    const bool over_it = here.dim == kFlat || dim == kAllDims || here.dim == dim;
    if (over_it)
      here = sizes_[a] == 1 ? kInvariant : partial(Combine::sum);  // padding is zero
    else if (dim >= 0 && here.dim > dim)
      here = shard(here.dim - 1, here.cut);
  }
  return id_of(placements);
}

void PlacementFlow::factor_means(OpContext& context) {
  for (size_t w = 0; w < context.writes.size(); w++)
    context.writes[w] = whole(*context.write_tensors[w], {id_of(all(kZero))});
  for (const sdk::FactoredParameter& one : sdk::factored_parameters(context.op.attrs)) {
    const StateTensor* const state = state_at(context, one.start);
    if (state == nullptr) continue;  // check_factors reports it
    const AxisPlacements placements = of_parameter(context, 0, one.start);
    const int dims = static_cast<int>(state->shape.size());
    const auto place = [&](int64_t in, int64_t at, int64_t count, int dim) {
      context.writes[in].push_back(part(*context.write_tensors[in], at, at + count, {summed(placements, dim)}));
    };
    if (one.is_matrix()) place(one.row_in, one.row_at, one.leads * one.rows, dims - 1);
    place(one.column_in, one.column_at, one.leads * one.columns, one.is_matrix() ? dims - 2 : kNoDim);
  }
}

// Reports a read from `first` on that is partial. `use`: what the op does with it.
void PlacementFlow::require_all_sums(const OpContext& context, size_t first, size_t end, const char* use) {
  for (size_t r = first; r < end; r++)
    for (const Segment& segment : context.reads[r])
      for (size_t a = 0; a < axes_.size(); a++)
        if (on_axes(segment.state.placement.by_axis)[a].kind == PlacementKind::partial)
          return context.report(kPlacementOfMeans,
                                fmt::format("{} sums of one rank's part over {}: a reduction over {} is missing", use,
                                            axes_[a], axes_[a]),
                                segment.state);
}

void PlacementFlow::factor_norms(OpContext& context) {
  const std::vector<sdk::FactoredParameter> parameters = sdk::factored_parameters(context.op.attrs);
  const size_t means = sdk::factored_operands(parameters).means;
  require_all_sums(context, 2, 2 + means, "averages");
  for (size_t v = 0; v < means; v++) {
    const Tensor &from = *context.read_tensors[2 + v], &to = *context.write_tensors[v];
    context.writes[v].clear();
    for (const Segment& segment : context.reads[2 + v]) {
      const int64_t begin = (segment.begin - from.byte_offset) / dtype_bytes(from.dtype),
                    end = (segment.end - from.byte_offset) / dtype_bytes(from.dtype);
      context.writes[v].push_back(part(to, begin, end, {segment.state.placement.by_axis}));
    }
  }
  for (size_t w = means; w < context.writes.size(); w++)
    context.writes[w] = whole(*context.write_tensors[w], {id_of(all(kZero))});
  for (const sdk::FactoredParameter& one : parameters) {
    const size_t in = means + one.norm_in;
    context.writes[in].push_back(part(*context.write_tensors[in], one.norm_at, one.norm_at + 2,
                                      {summed(of_parameter(context, 0, one.start), kAllDims)}));
  }
}

void PlacementFlow::factored(OpContext& context) {
  if (context.op.is(ops::factor_means)) return factor_means(context);
  if (context.op.is(ops::factor_norms)) return factor_norms(context);
  const auto [means, norms] = sdk::factored_operands(sdk::factored_parameters(context.op.attrs));
  require_all_sums(context, 2, 2 + means + norms, "updates parameters by");
  elementwise(context, find_elementwise_rule(*context.op.def));
}

}  // namespace prun::verify
