// The GEMMs of linear and its two derivatives, three nested loops each, and their fusions with gelu.
#include <cmath>

#include "kernels/reference/rules.h"

namespace prun::reference {

double gelu(double x, bool exact);  // pointwise.cc
double gelu_derivative(double x, bool exact);

namespace {

// The weight [K,N], or transposed [N,K], as element (k, n).
struct Weight {
  const Array& w;
  bool transposed;
  int64_t k() const { return w.shape[transposed ? 1 : 0]; }
  int64_t n() const { return w.shape[transposed ? 0 : 1]; }
  int64_t at(int64_t row, int64_t column) const { return transposed ? column * k() + row : row * n() + column; }
};

void linear(Call& c) {
  const Array& x = c.reads[0];
  Weight w{c.reads[1], c.attrs.integer("transpose") != 0};
  std::string act = c.attrs.text("act");
  int64_t rows = x.count() / w.k();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t n = 0; n < w.n(); ++n) {
      double sum = c.reads.size() > 2 ? c.reads[2][n] : 0;
      for (int64_t k = 0; k < w.k(); ++k) sum += x[r * w.k() + k] * w.w[w.at(k, n)];
      if (act == "relu") sum = sum > 0 ? sum : 0;
      if (act == "gelu") sum = gelu(sum, c.attrs.text("approximate", "tanh") == "none");
      c.writes[0][r * w.n() + n] = sum;
    }
}

void linear_dx(Call& c) {
  const Array& dy = c.reads[0];
  Weight w{c.reads[1], c.attrs.integer("transpose") != 0};
  int64_t rows = dy.count() / w.n();
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < w.k(); ++k) {
      double sum = 0;
      for (int64_t n = 0; n < w.n(); ++n) sum += dy[r * w.n() + n] * w.w[w.at(k, n)];
      c.writes[0][r * w.k() + k] = sum;
    }
}

void linear_dw(Call& c) {
  const Array &x = c.reads[0], &dy = c.reads[1];
  Array& dw = c.writes[0];
  Weight w{dw, c.attrs.integer("transpose") != 0};
  int64_t rows = x.count() / w.k();
  for (int64_t k = 0; k < w.k(); ++k)
    for (int64_t n = 0; n < w.n(); ++n) {
      double sum = 0;
      for (int64_t r = 0; r < rows; ++r) sum += x[r * w.k() + k] * dy[r * w.n() + n];
      dw[w.at(k, n)] = sum;
    }
  if (c.writes.size() < 2) return;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t n = 0; n < w.n(); ++n) c.writes[1][n] += dy[r * w.n() + n];
}

void linear_dw_add(Call& c) {
  linear_dw(c);
  add_sums(c);
}

void linear_gelu(Call& c) {
  linear(c);
  c.writes[1].v = c.writes[0].v;
  for (double& y : c.writes[0].v) y = gelu(y, false);
}

void linear_dx_gelu(Call& c) {
  linear_dx(c);
  for (int64_t i = 0; i < c.writes[0].count(); ++i) c.writes[0][i] *= gelu_derivative(c.reads[2][i], false);
}

}  // namespace

const Family matrix_rules = {{"linear", linear},           {"linear_dx", linear_dx},
                             {"linear_dw", linear_dw},     {"linear_dw_add", linear_dw_add},
                             {"linear_gelu", linear_gelu}, {"linear_dx_gelu", linear_dx_gelu}};

}  // namespace prun::reference
