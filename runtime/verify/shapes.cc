// The shapes of each op's tensors are consistent: the shape rule that typed the model also holds for the program's
// views and for ops that no model contains. Ops whose shapes depend on the mesh or the data have their rules here.
//
// Surprising fact: a view that is too short reads or writes too little, and no kernel would notice.
#include <fmt/format.h>

#include "base/text.h"
#include "ir/ops.h"
#include "ir/shape_rule.h"
#include "verify/view.h"

namespace prun::verify {
namespace {

using Types = std::vector<TensorType>;

std::string text(const TensorType& type) { return fmt::format("{}{}", dtype_name(type.dtype), shape_text(type.shape)); }

std::string init_params(const Program& program, const Op& op, const TensorType& flat) {
  const std::string axis = op.attrs.text("axis");
  const int64_t ranks = axis.empty() ? 1 : program.mesh.size(axis);
  int64_t end = 0;
  const std::vector<int64_t> starts = op.attrs.integers("starts"), counts = op.attrs.integers("counts");
  for (size_t i = 0; i < starts.size() && i < counts.size(); i++) end = std::max(end, starts[i] + counts[i]);
  return end <= element_count(flat.shape) * ranks
             ? ""
             : fmt::format("the parameters have {} elements, {} on {} rank{} is less", end, text(flat), ranks,
                           ranks == 1 ? "" : "s");
}

std::string next_batch(const BodyView& body, const Op& op, const Types& batch) {
  int64_t ranks = 1;
  for (const std::string& axis : split(op.attrs.text("axis"), ',')) ranks *= body.program->mesh.size(axis);
  for (const TensorType& type : batch) {
    const int64_t samples = type.shape.empty() ? 1 : type.shape[0];
    if (samples * ranks != body.body->data.global_batch)
      return fmt::format("{} has {} samples on each of {} ranks, a step has {}", text(type), samples, ranks,
                         body.body->data.global_batch);
  }
  return "";
}

std::string problem_of(const BodyView& body, const Op& op) {
  const Program& program = *body.program;
  Types reads, writes;
  for (const TensorId id : op.reads) reads.push_back(program.tensors[id].type());
  for (const TensorId id : op.writes) writes.push_back(program.tensors[id].type());
  if (op.attrs.has("workspace") && !writes.empty()) writes.pop_back();
  if (makes_state(op)) return init_params(program, op, writes.at(0));
  if (op.is(ops::next_batch)) return next_batch(body, op, writes);
  return shape_problem(*op.def, reads, writes, op.attrs);
}

}  // namespace

void shapes_fit(const JobView& view, Findings& findings) {
  if (!has_model(*view.job)) return;
  std::vector<bool> fits(view.kinds.count(), false);
  for (const BodyView& body : view.bodies) {
    for (const OpRef ref : body.order.sequence()) {
      const Op& op = body.op(ref);
      const bool of_body = op.is(ops::next_batch);  // depends on the data of its body
      if (!of_body && fits[body.kind_of(ref)]) continue;
      const std::string problem = problem_of(body, op);
      fits[body.kind_of(ref)] = problem.empty();
      if (problem.empty()) continue;
      findings.add("shapes do not fit", fmt::format("{}{}: {}", body.where(), body.describe(ref), problem), op.site);
    }
  }
}

}  // namespace prun::verify
