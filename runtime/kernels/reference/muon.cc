// Muon by the formulas in the documentation of torch.optim.Muon: momentum, the orthogonalization of whole matrices by
// Newton-Schulz iterations, and the update.
#include <cmath>

#include "device/share.h"
#include "kernels/reference/rules.h"
#include "kernels/reference/settings.h"

namespace prun::reference {
namespace {

void muon_momentum(Call& c) {
  const bool clip = c.reads.size() > 3;
  if (clip && c.reads[3][0] < 0) {
    c.writes[1].v = c.reads[2].v;
    return;
  }
  const double kept = c.attrs.number("momentum", 0.95);
  const bool nesterov = c.attrs.number("nesterov", 1) != 0;
  for (int64_t i = 0; i < c.writes[0].count(); ++i) {
    const double g = c.reads[0][i] * (clip ? c.reads[3][0] : 1), m = kept * c.reads[2][i] + (1 - kept) * g;
    c.writes[1][i] = m;
    c.writes[0][i] = nesterov ? (1 - kept) * g + kept * m : m;
  }
}

struct Dense {
  int64_t rows, columns;
  std::vector<double> v;
  double& at(int64_t r, int64_t c) { return v[r * columns + c]; }
  double at(int64_t r, int64_t c) const { return v[r * columns + c]; }
};

Dense transposed(const Dense& x) {
  Dense y{x.columns, x.rows, std::vector<double>(x.v.size())};
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t c = 0; c < x.columns; ++c) y.at(c, r) = x.at(r, c);
  return y;
}

Dense product(const Dense& x, const Dense& y) {
  Dense z{x.rows, y.columns, std::vector<double>(x.rows * y.columns, 0)};
  for (int64_t r = 0; r < x.rows; ++r)
    for (int64_t k = 0; k < x.columns; ++k)
      for (int64_t c = 0; c < y.columns; ++c) z.at(r, c) += x.at(r, k) * y.at(k, c);
  return z;
}

Dense orthogonalized(Dense x, const Attrs& attrs) {
  const double a = attrs.number("a"), b = attrs.number("b"), c = attrs.number("c");
  const bool tall = x.rows > x.columns;
  if (tall) x = transposed(x);
  double square = 0;
  for (const double value : x.v) square += value * value;
  const double norm = std::sqrt(square), eps = attrs.number("norm_eps");
  for (double& value : x.v) value /= norm < eps ? eps : norm;
  for (int64_t step = 0; step < static_cast<int64_t>(attrs.number("steps")); ++step) {
    const Dense gram = product(x, transposed(x)), second = product(gram, gram);
    Dense polynomial = gram;
    for (size_t i = 0; i < polynomial.v.size(); ++i) polynomial.v[i] = b * gram.v[i] + c * second.v[i];
    const Dense more = product(polynomial, x);
    for (size_t i = 0; i < x.v.size(); ++i) x.v[i] = a * x.v[i] + more.v[i];
  }
  return tall ? transposed(x) : x;
}

// A joined matrix has its parts in sequence, here and in the chunk.
void orthogonalize(Call& c) {
  const std::vector<int64_t> of = c.attrs.integers("of"), starts = c.attrs.integers("starts"),
                             rows = c.attrs.integers("rows"), columns = c.attrs.integers("columns"),
                             joined = c.attrs.integers("joined"), owners = c.attrs.integers("owners"),
                             offsets = c.attrs.integers("offsets");
  const int64_t rank = share_along(c.memory, c.attrs.text("axes")).index;
  for (size_t i = 0; i < of.size(); ++i) {
    if (owners[i] != rank) continue;
    const Array& vector = c.reads[of[i]];
    const int64_t parts = vector.shape.size() > 1 ? vector.shape[0] : 1, apart = vector.count() / parts;
    Dense x{joined[i] == 1 ? rows[i] * parts : rows[i], joined[i] == 2 ? columns[i] * parts : columns[i], {}};
    x.v.resize(x.rows * x.columns);
    const auto each = [&](auto f) {
      for (int64_t p = 0; p < parts; ++p)
        for (int64_t r = 0; r < rows[i]; ++r)
          for (int64_t k = 0; k < columns[i]; ++k)
            f(p * apart + starts[i] + r * columns[i] + k, offsets[i] + (p * rows[i] + r) * columns[i] + k,
              joined[i] == 1   ? x.at(p * rows[i] + r, k)
              : joined[i] == 2 ? x.at(r, p * columns[i] + k)
                               : x.at(r, k));
    };
    each([&](int64_t from, int64_t, double& value) { value = vector[from]; });
    x = orthogonalized(std::move(x), c.attrs);
    each([&](int64_t, int64_t to, const double& value) { c.writes[0][to] = value; });
  }
}

void muon(Call& c) {
  c.writes[0].v = c.reads[1].v;
  if (c.reads.size() > 2 && c.reads[2][0] < 0) return;
  const std::vector<int64_t> starts = c.attrs.integers("matrix_starts"), counts = c.attrs.integers("matrix_counts"),
                             places = c.attrs.integers("matrix_places");
  const std::vector<double> scales = c.attrs.numbers("matrix_scales");
  const Settings settings(c, 0);
  const int64_t part = share_along(c.memory, c.attrs.text("joined_axis")).index;
  const int64_t first = share_along(c.memory, c.attrs.text("axis")).index * c.attrs.integer("shard");
  for (size_t m = 0; m < starts.size(); ++m)
    for (int64_t e = 0; e < counts[m]; ++e) {
      const int64_t i = starts[m] + e - first;
      if (i < 0 || i >= c.writes[0].count()) continue;
      const auto [lr, decay] = settings.at(i);
      c.writes[0][i] = c.reads[1][i] * (1 - lr * decay) - lr * scales[m] * c.reads[0][places[m] + part * counts[m] + e];
    }
}

}  // namespace

const Family muon_rules = {{"muon_momentum", muon_momentum}, {"orthogonalize", orthogonalize}, {"muon", muon}};

}  // namespace prun::reference
