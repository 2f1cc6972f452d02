// pointwise, reduce_dims, softmax, matmul and cumsum.
#include <algorithm>
#include <cmath>
#include <span>

#include "ir/pointwise.h"
#include "kernels/reference/rules.h"
#include "prun/sdk/key_rules.h"

namespace prun::reference {
namespace {

// Takes the tensor of which the op writes a part from the reads. Returns the number of the others.
size_t begin_with_parts(Call& c) {
  if (c.attrs.integer("continues") == 0) return c.reads.size();
  c.writes[0].v = c.reads.back().v;
  return c.reads.size() - 1;
}

void pointwise(Call& c) {
  const int inputs = static_cast<int>(begin_with_parts(c));
  const sdk::PointwiseProgram program = pointwise_program(c.attrs, static_cast<size_t>(inputs));
  const std::vector<int64_t> masks = c.attrs.has("over") ? c.attrs.integers("over") : std::vector<int64_t>();
  std::vector<std::span<const int64_t>> shapes;
  shapes.reserve(inputs);
  for (int k = 0; k < inputs; ++k) shapes.emplace_back(c.reads[k].shape);
  const Shape whole = c.attrs.integers("whole"), shape = whole.empty() ? c.writes[0].shape : c.attrs.integers("shape");
  const sdk::PointwiseLayout layout = sdk::pointwise_layout(shape, shapes, masks, c.attrs.text("views"), whole);
  std::vector<double> x(inputs), r(program.size());
  for (int64_t i = 0; i < element_count(shape); ++i) {
    for (int k = 0; k < inputs; ++k) x[k] = c.reads[k][layout.offsets[k] + sdk::pointwise_position(layout, k, i)];
    for (size_t n = 0; n < program.size(); ++n) {
      double in[3];
      for (int o = 0; o < 3; ++o) {
        const sdk::PointwiseOperand& operand = program[n].operands[o];
        in[o] = operand.kind == sdk::PointwiseOperand::input    ? x[operand.index]
                : operand.kind == sdk::PointwiseOperand::result ? r[operand.index]
                                                                : operand.value;
      }
      r[n] = sdk::pointwise_value(program[n].code, in[0], in[1], in[2]);
    }
    c.writes[0][whole.empty() ? i : layout.offsets[inputs] + sdk::pointwise_position(layout, inputs, i)] = r.back();
  }
}

// Visits elements in order and finds each one's place in the result from its index in each dim.
void reduce_dims(Call& c) {
  const Array& x = c.reads[0];
  Array& y = c.writes[0];
  const std::vector<int64_t> dims = c.attrs.integers("dims");
  const size_t rank = x.shape.size();
  std::vector<int64_t> stride(rank, 0);
  int64_t next = 1, reduced = 1;
  for (size_t d = rank; d-- > 0;) {
    if (std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) != dims.end()) {
      reduced *= x.shape[d];
    } else {
      stride[d] = next;
      next *= x.shape[d];
    }
  }
  const std::string op = c.attrs.text("op");
  std::vector<bool> seen(y.v.size(), false);
  for (int64_t i = 0; i < x.count(); ++i) {
    int64_t place = 0, rest = i;
    for (size_t d = rank; d-- > 0; rest /= x.shape[d]) place += rest % x.shape[d] * stride[d];
    if (op != "max")
      y[place] += x[i];
    else if (!seen[place] || x[i] > y[place] || x[i] != x[i])
      y[place] = x[i];
    seen[place] = true;
  }
  if (op == "mean")
    for (double& value : y.v) value /= static_cast<double>(reduced);
}

void softmax(Call& c) {
  const Array& x = c.reads[0];
  const bool log = c.attrs.integer("log") != 0;
  const int64_t n = x.last();
  const sdk::KeyRules rules{n, c.attrs.integer("causal") != 0, c.attrs.integer("window")};
  const int64_t queries = x.shape.size() > 1 ? x.shape[x.shape.size() - 2] : 1;
  for (int64_t r = 0; r < x.rows(); ++r) {
    const sdk::KeyRange seen = rules.of(r % queries, nullptr);
    double most = -INFINITY, sum = 0;
    for (int64_t i = seen.first; i < seen.end; ++i) most = std::max(most, x[r * n + i]);
    for (int64_t i = seen.first; i < seen.end; ++i) sum += std::exp(x[r * n + i] - most);
    for (int64_t i = seen.first; i < seen.end; ++i) {
      const double shifted = x[r * n + i] - most;
      c.writes[0][r * n + i] = log ? shifted - std::log(sum) : std::exp(shifted) / sum;
    }
  }
}

void softmax_grad(Call& c) {
  const Array &y = c.reads[0], &dy = c.reads[1];
  const bool log = c.attrs.integer("log") != 0;
  const int64_t n = y.last();
  for (int64_t r = 0; r < y.rows(); ++r) {
    double sum = 0;
    for (int64_t i = r * n; i < (r + 1) * n; ++i) sum += log ? dy[i] : dy[i] * y[i];
    for (int64_t i = r * n; i < (r + 1) * n; ++i)
      c.writes[0][i] = log ? dy[i] - std::exp(y[i]) * sum : y[i] * (dy[i] - sum);
  }
}

// Reads and writes element by element, by the strides of views.
void matmul(Call& c) {
  begin_with_parts(c);
  Array& y = c.writes[0];
  const size_t rank = y.shape.size();
  const std::vector<sdk::OperandView> views = sdk::parse_operand_views(c.attrs.text("views")).value();
  sdk::ViewedElements at[3];
  const Array* const arrays[3] = {&c.reads[0], &c.reads[1], &y};
  for (int i = 0; i < 3; ++i) {
    sdk::OperandView whole{i, {}};
    for (size_t d = 0; d < arrays[i]->shape.size(); ++d) whole.dims.push_back({static_cast<int>(d)});
    const sdk::OperandView* view = sdk::view_of_operand(views, i);
    at[i] = sdk::viewed_elements(view == nullptr ? whole : *view, arrays[i]->shape, rank).value();
  }
  const bool ta = c.attrs.integer("transpose_a") != 0, tb = c.attrs.integer("transpose_b") != 0;
  const size_t a_row = rank - (ta ? 1 : 2), a_inner = rank - (ta ? 2 : 1), b_column = rank - (tb ? 2 : 1),
               b_inner = rank - (tb ? 1 : 2);
  for (int64_t i = 0; i < element_count(at[2].sizes); ++i) {
    int64_t rest = i, from_a = at[0].offset, from_b = at[1].offset, to = at[2].offset;
    for (size_t d = rank; d-- > 0; rest /= at[2].sizes[d]) {
      const int64_t index = rest % at[2].sizes[d];
      to += index * at[2].strides[d];
      if (d == rank - 1) {
        from_b += index * at[1].strides[b_column];
      } else if (d == rank - 2) {
        from_a += index * at[0].strides[a_row];
      } else {
        from_a += index * at[0].strides[d];
        from_b += index * at[1].strides[d];
      }
    }
    double sum = 0;
    for (int64_t j = 0; j < at[0].sizes[a_inner]; ++j)
      sum += c.reads[0][from_a + j * at[0].strides[a_inner]] * c.reads[1][from_b + j * at[1].strides[b_inner]];
    y[to] = sum;
  }
}

void cumsum(Call& c) {
  const Array& x = c.reads[0];
  const auto dim = static_cast<size_t>(c.attrs.integer("dim"));
  const bool reverse = c.attrs.integer("reverse") != 0;
  int64_t inner = 1;
  for (size_t d = dim + 1; d < x.shape.size(); ++d) inner *= x.shape[d];
  const int64_t n = x.shape[dim];
  for (int64_t i = 0; i < x.count(); ++i) {
    const int64_t at = reverse ? x.count() - 1 - i : i, place = at / inner % n;
    const bool first = place == (reverse ? n - 1 : 0);
    c.writes[0][at] = x[at] + (first ? 0 : c.writes[0][reverse ? at + inner : at - inner]);
  }
}

}  // namespace

const Family arithmetic_rules = {{"pointwise", pointwise},       {"reduce_dims", reduce_dims}, {"softmax", softmax},
                                 {"softmax_grad", softmax_grad}, {"matmul", matmul},           {"cumsum", cumsum}};

}  // namespace prun::reference
