// Each op's tensors fit together: the rule that gave the model its shapes holds for the program's views, too, and ops
// that no model contains (derivatives, optimizers) have rules here.
//
// Surprising fact: a view that is too short reads or writes too little, and no kernel would notice.
#include <fmt/format.h>

#include <array>

#include "verify/view.h"

namespace prun::verify {
namespace {

using Types = std::vector<TensorType>;

struct Operands {
  const Program& program;
  const Body& body;
  const Op& op;
  Types reads, writes;  // without a kernel's scratch
};

int64_t last(const TensorType& type) { return type.shape.empty() ? 1 : type.shape.back(); }
int64_t count(const TensorType& type) { return element_count(type.shape); }
int64_t rows(const TensorType& type) { return last(type) == 0 ? 0 : count(type) / last(type); }

std::string text(const TensorType& type) { return fmt::format("{}{}", dtype_name(type.dtype), shape_text(type.shape)); }

// What is wrong, or "".
using Problem = std::string;

Problem same_shape(const TensorType& a, const TensorType& b) {
  return a.shape == b.shape ? "" : fmt::format("{} and {} should have one shape", text(a), text(b));
}
Problem same_count(const TensorType& a, const TensorType& b) {
  return count(a) == count(b) ? "" : fmt::format("{} and {} should have as many elements", text(a), text(b));
}
Problem has_shape(const TensorType& a, const Shape& shape) {
  return a.shape == shape ? "" : fmt::format("{} should be {}", text(a), shape_text(shape));
}
Problem has_count(const TensorType& a, int64_t n) {
  return count(a) == n ? "" : fmt::format("{} should have {} elements", text(a), n);
}

Problem first(std::initializer_list<Problem> problems) {
  for (const Problem& problem : problems)
    if (!problem.empty()) return problem;
  return "";
}

Problem elementwise(const Operands& o) {
  Problem problem;
  for (const Types* side : {&o.reads, &o.writes})
    for (const TensorType& type : *side)
      if (problem.empty()) problem = same_shape(o.reads[0], type);
  return problem;
}

Shape weight_shape(const Operands& o, int64_t k, int64_t n) {
  return o.op.attrs.integer("transpose") != 0 ? Shape{n, k} : Shape{k, n};
}

Problem linear_dx(const Operands& o) {
  return first({has_shape(o.reads[1], weight_shape(o, last(o.writes[0]), last(o.reads[0]))),
                has_count(o.writes[0], rows(o.reads[0]) * last(o.writes[0]))});
}

Problem linear_dw(const Operands& o) {
  const int64_t k = last(o.reads[0]), n = last(o.reads[1]);
  return first({has_count(o.reads[1], rows(o.reads[0]) * n), has_shape(o.writes[0], weight_shape(o, k, n)),
                o.writes.size() > 1 ? has_shape(o.writes[1], {n}) : ""});
}

// x, w, b?; y, pre.
Problem linear_gelu(const Operands& o) {
  const int64_t k = last(o.reads[0]), n = last(o.writes[0]);
  return first({has_shape(o.reads[1], weight_shape(o, k, n)), o.reads.size() > 2 ? has_shape(o.reads[2], {n}) : "",
                has_count(o.writes[0], rows(o.reads[0]) * n), same_shape(o.writes[0], o.writes[1])});
}

Problem linear_dx_gelu(const Operands& o) { return first({linear_dx(o), same_shape(o.reads[2], o.writes[0])}); }

Problem bias_grad(const Operands& o) { return has_shape(o.writes[0], {last(o.reads[0])}); }

// x, dy, gamma and perhaps statistics; dx and a gradient for each parameter.
Problem norm_grad(const Operands& o) {
  Problem problem = first({same_shape(o.reads[0], o.reads[1]), same_shape(o.reads[0], o.writes[0])});
  for (size_t i = 1; i < o.writes.size() && problem.empty(); i++) problem = has_shape(o.writes[i], {last(o.reads[0])});
  if (problem.empty()) problem = has_shape(o.reads[2], {last(o.reads[0])});
  for (size_t i = 3; i < o.reads.size() && problem.empty(); i++) problem = has_count(o.reads[i], rows(o.reads[0]));
  return problem;
}

// a, b, gamma, beta?; y, sum and statistics.
Problem add_norm(const Operands& o) {
  Problem problem = first(
      {same_shape(o.reads[0], o.reads[1]), same_shape(o.reads[0], o.writes[0]), same_shape(o.reads[0], o.writes[1])});
  for (size_t i = 2; i < o.reads.size() && problem.empty(); i++) problem = has_shape(o.reads[i], {last(o.reads[0])});
  for (size_t i = 2; i < o.writes.size() && problem.empty(); i++) problem = has_count(o.writes[i], rows(o.reads[0]));
  return problem;
}

Problem norm_grad_add(const Operands& o) {
  Operands apart = o;
  apart.reads.pop_back();
  return first({norm_grad(apart), same_shape(o.reads.back(), o.writes[0])});
}

Problem attention_grad(const Operands& o) {
  return first({same_shape(o.reads[0], o.writes[0]), same_shape(o.reads[1], o.reads[2]),
                rows(o.reads[0]) == rows(o.reads[1]) ? "" : same_count(o.reads[0], o.reads[1]),
                has_count(o.reads[3], rows(o.reads[1]) * o.op.attrs.integer("heads", 1))});
}

Problem embedding_grad(const Operands& o) {
  const int64_t width = last(o.reads[1]);
  return first({has_count(o.reads[1], count(o.reads[0]) * width),
                has_shape(o.writes[0], {o.op.attrs.integer("vocab"), width}),
                o.writes.size() > 1 ? has_shape(o.writes[1], {o.op.attrs.integer("positions"), width}) : ""});
}

Problem positions_grad(const Operands& o) { return has_count(o.writes[0], rows(o.writes[0]) * last(o.reads[0])); }

Problem cross_entropy_grad(const Operands& o) {
  return first({same_shape(o.reads[0], o.writes[0]), has_count(o.reads[1], rows(o.reads[0])),
                has_count(o.reads[2], rows(o.reads[0]))});
}

// logits, targets; loss, lse, dlogits.
Problem cross_entropy_and_grad(const Operands& o) {
  return first({has_count(o.reads[1], rows(o.reads[0])), has_count(o.writes[0], 1),
                has_count(o.writes[1], rows(o.reads[0])), same_shape(o.reads[0], o.writes[2])});
}

// logits, weights, dweights, counts?; dlogits.
Problem route_grad(const Operands& o) {
  return first({same_shape(o.reads[0], o.writes[0]), same_shape(o.reads[1], o.reads[2]),
                has_count(o.reads[1], rows(o.reads[0]) * o.op.attrs.integer("k", 1)),
                o.reads.size() > 3 ? has_count(o.reads[3], last(o.reads[0])) : ""});
}

Problem dispatch_grad(const Operands& o) { return has_count(o.writes[0], rows(o.reads[0]) * last(o.reads[1])); }

// y, slots, weights, dout; dy, dweights.
Problem combine_grad(const Operands& o) {
  return first({same_shape(o.reads[0], o.writes[0]), same_shape(o.reads[1], o.reads[2]),
                same_shape(o.reads[2], o.writes[1]), has_count(o.reads[3], rows(o.reads[1]) * last(o.reads[0]))});
}

Problem expert_linear_dx(const Operands& o) {
  const Shape& dy = o.reads[0].shape;
  if (dy.size() != 3 || o.writes[0].shape.size() != 3) return "it takes three dims: experts, slots, elements";
  return first({has_shape(o.reads[1], {dy[0], last(o.writes[0]), dy[2]}),
                has_shape(o.writes[0], {dy[0], dy[1], last(o.writes[0])})});
}

Problem expert_linear_dw(const Operands& o) {
  const Shape& x = o.reads[0].shape;
  if (x.size() != 3) return "it takes three dims: experts, slots, elements";
  return first(
      {has_shape(o.reads[1], {x[0], x[1], last(o.reads[1])}), has_shape(o.writes[0], {x[0], x[2], last(o.reads[1])})});
}

// What the queries, the keys and values, and the statistics of a hop of ring attention have to be, given qkv.
struct Hop {
  int64_t queries, kv, statistics;
  explicit Hop(const Operands& o) {
    const int64_t heads = o.op.attrs.integer("heads", 1), shared = o.op.attrs.integer("kv_heads", heads);
    const int64_t size = last(o.reads[0]) / (heads + 2 * shared);
    queries = rows(o.reads[0]) * heads * size;
    kv = rows(o.reads[0]) * 2 * shared * size;
    statistics = rows(o.reads[0]) * heads;
  }
};

// qkv, kv, out?, lse?; out, lse.
Problem attention_block(const Operands& o) {
  const Hop hop(o);
  const bool running = o.reads.size() > 3;
  return first({has_count(o.reads[1], hop.kv), running ? has_count(o.reads[2], hop.queries) : "",
                running ? has_count(o.reads[3], hop.statistics) : "", has_count(o.writes[0], hop.queries),
                has_count(o.writes[1], hop.statistics)});
}

// qkv, kv, out, dout, lse, dq?; dq, dkv.
Problem attention_block_grad(const Operands& o) {
  const Hop hop(o);
  return first({has_count(o.reads[1], hop.kv), has_count(o.reads[2], hop.queries), has_count(o.reads[3], hop.queries),
                has_count(o.reads[4], hop.statistics), o.reads.size() > 5 ? has_count(o.reads[5], hop.queries) : "",
                has_count(o.writes[0], hop.queries), has_count(o.writes[1], hop.kv)});
}

Problem copy_kv(const Operands& o) { return has_count(o.writes[0], rows(o.reads[0]) * last(o.writes[0])); }
Problem join_qkv(const Operands& o) { return has_count(o.writes[0], count(o.reads[0]) + count(o.reads[1])); }

// grad, param, states, clip?; every write, a copy's too, is the size of the parameters.
Problem optimizer(const Operands& o) {
  Problem problem = same_count(o.reads[0], o.reads[1]);
  const size_t states = updated_by(o.op) - 1;
  for (size_t i = 0; i < states && problem.empty(); i++) problem = same_count(o.reads[0], o.reads[2 + i]);
  for (const TensorType& type : o.writes)
    if (problem.empty()) problem = same_count(o.reads[0], type);
  if (problem.empty() && o.reads.size() > 2 + states) problem = has_count(o.reads.back(), 1);
  return problem;
}

Problem transfer(const Operands& o) {
  const TensorType &from = o.reads[0], &to = o.writes[0];
  return from.dtype == to.dtype ? same_count(from, to)
                                : fmt::format("{} and {} should have one type", text(from), text(to));
}

Problem scalars(const Operands& o) {
  Problem problem;
  for (const TensorType& type : o.writes)
    if (problem.empty()) problem = has_count(type, 1);
  return problem;
}

Problem clip_coefficient(const Operands& o) { return first({has_count(o.reads[0], 1), scalars(o)}); }

Problem values(const Operands& o) {
  return has_count(o.writes[0], static_cast<int64_t>(o.op.attrs.numbers("values").size()));
}

Problem init_params(const Operands& o) {
  const std::string axis = o.op.attrs.text("axis");
  const int64_t ranks = axis.empty() ? 1 : o.program.mesh.size(axis);
  int64_t end = 0;
  const std::vector<int64_t> starts = o.op.attrs.integers("starts"), counts = o.op.attrs.integers("counts");
  for (size_t i = 0; i < starts.size() && i < counts.size(); i++) end = std::max(end, starts[i] + counts[i]);
  return end <= count(o.writes[0]) * ranks ? ""
                                           : fmt::format("the parameters have {} elements, {} on {} rank{} is less",
                                                         end, text(o.writes[0]), ranks, ranks == 1 ? "" : "s");
}

Problem next_batch(const Operands& o) {
  const std::string axes = o.op.attrs.text("axis");
  int64_t ranks = 1;
  for (size_t at = 0; at < axes.size();) {
    const size_t comma = std::min(axes.find(',', at), axes.size());
    ranks *= o.program.mesh.size(axes.substr(at, comma - at));
    at = comma + 1;
  }
  for (const TensorType& type : o.writes) {
    const int64_t samples = type.shape.empty() ? 1 : type.shape[0];
    if (samples * ranks != o.body.data.global_batch)
      return fmt::format("{} has {} samples on each of {} ranks, a step has {}", text(type), samples, ranks,
                         o.body.data.global_batch);
  }
  return "";
}

struct ShapeRow {
  std::string_view op;
  size_t reads, writes;  // at least
  Problem (*rule)(const Operands&);
};

constexpr ShapeRow kShapeRows[] = {
    {"linear_dx", 2, 1, linear_dx},
    {"linear_dw", 2, 1, linear_dw},
    {"linear_gelu", 2, 2, linear_gelu},
    {"linear_dx_gelu", 3, 1, linear_dx_gelu},
    {"bias_grad", 1, 1, bias_grad},
    {"gelu_dx", 2, 1, elementwise},
    {"relu_dx", 2, 1, elementwise},
    {"layernorm_grad", 5, 3, norm_grad},
    {"rmsnorm_grad", 4, 2, norm_grad},
    {"add_layernorm", 4, 4, add_norm},
    {"layernorm_grad_add", 6, 3, norm_grad_add},
    {"add_rmsnorm", 3, 3, add_norm},
    {"rmsnorm_grad_add", 5, 2, norm_grad_add},
    {"attention_grad", 4, 1, attention_grad},
    {"attention_block", 2, 2, attention_block},
    {"attention_block_grad", 5, 2, attention_block_grad},
    {"copy_kv", 1, 1, copy_kv},
    {"join_qkv", 2, 1, join_qkv},
    {"route_grad", 3, 1, route_grad},
    {"dispatch_grad", 2, 1, dispatch_grad},
    {"combine_grad", 4, 2, combine_grad},
    {"expert_linear_dx", 2, 1, expert_linear_dx},
    {"expert_linear_dw", 2, 1, expert_linear_dw},
    {"embedding_grad", 2, 1, embedding_grad},
    {"positions_grad", 1, 1, positions_grad},
    {"cross_entropy_grad", 3, 1, cross_entropy_grad},
    {"cross_entropy_and_grad", 2, 3, cross_entropy_and_grad},
    {"mse_grad", 2, 1, elementwise},
    {"mean_square_grad", 1, 1, elementwise},
    {"mean_grad", 1, 1, elementwise},
    {"sgd", 2, 1, optimizer},
    {"adamw", 4, 3, optimizer},
    {"sgd_cast", 2, 2, optimizer},
    {"adamw_cast", 4, 4, optimizer},
    {"norm2", 1, 1, scalars},
    {"clip_coefficient", 1, 1, clip_coefficient},
    {"check_finite", 1, 1, scalars},
    {"load", 1, 1, transfer},
    {"store", 1, 1, transfer},
    {"values", 0, 1, values},
    {"init_params", 0, 1, init_params},
    {"next_batch", 0, 1, next_batch},
};

Problem by_inference(const Operands& o) {
  try {
    const Types expected = o.op.def->infer(o.reads, o.op.attrs);
    if (expected.size() != o.writes.size())
      return fmt::format("it has {} outputs, and {} are written", expected.size(), o.writes.size());
    for (size_t i = 0; i < expected.size(); i++) {
      if (expected[i].dtype == o.writes[i].dtype && count(expected[i]) == count(o.writes[i])) continue;
      return fmt::format("it makes {}, and {} is written", text(expected[i]), text(o.writes[i]));
    }
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

Problem problem_of(const BodyView& body, const Op& op) {
  const Program& program = *body.program;
  Operands o{program, *body.body, op, {}, {}};
  for (const int id : op.reads) o.reads.push_back(program.tensors[id].type());
  for (const int id : op.writes) o.writes.push_back(program.tensors[id].type());
  if (op.attrs.has("workspace") && !o.writes.empty()) o.writes.pop_back();
  for (const ShapeRow& row : kShapeRows) {
    if (row.op != op.def->name) continue;
    if (o.reads.size() < row.reads || o.writes.size() < row.writes)
      return fmt::format("it reads {} and writes {} tensors, {} and {} are the least", o.reads.size(), o.writes.size(),
                         row.reads, row.writes);
    return row.rule(o);
  }
  return op.def->infer != nullptr ? by_inference(o) : "";
}

}  // namespace

void shapes_fit(const JobView& view, Findings& findings) {
  if (!trains(*view.job)) return;
  for (const BodyView& body : view.bodies) {
    for (const OpRef ref : body.order.sequence()) {
      const Problem problem = problem_of(body, body.op(ref));
      if (problem.empty()) continue;
      findings.add("shapes do not fit", fmt::format("{}{}: {}", body.where(), body.describe(ref), problem),
                   body.op(ref).site);
    }
  }
}

}  // namespace prun::verify
