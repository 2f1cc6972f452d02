// Ops that go element by element, and the sums of the simple losses.
#include <cmath>
#include <numbers>

#include "device/reference/rules.h"

namespace prun::reference {

// Hendrycks and Gimpel, Gaussian Error Linear Units, 2016: x·Φ(x), or its approximation by tanh.
double gelu(double x, bool exact) {
  if (exact) return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

namespace {

double gelu_derivative(double x, bool exact) {
  if (exact)
    return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
  double c = std::sqrt(2 / std::numbers::pi), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

bool exact(const Call& c) { return c.attrs.text("approximate", "tanh") == "none"; }
double scale(const Call& c) { return c.attrs.number("scale", 1); }  // of a loss

// writes[0][i] = f(i)
template <class F>
void each(Call& c, F f) {
  for (int64_t i = 0; i < c.writes[0].count(); ++i) c.writes[0][i] = f(i);
}
// writes[0] = scale·Σ f(i) over the elements of reads[0]
template <class F>
void sum(Call& c, F f) {
  double total = 0;
  for (int64_t i = 0; i < c.reads[0].count(); ++i) total += f(i);
  c.writes[0][0] = total * scale(c);
}

const Rule kRules[] = {
    {"gelu", [](Call& c) { each(c, [&, e = exact(c)](int64_t i) { return gelu(c.reads[0][i], e); }); }},
    {"gelu_dx",
     [](Call& c) {
       each(c, [&, e = exact(c)](int64_t i) { return c.reads[1][i] * gelu_derivative(c.reads[0][i], e); });
     }},
    {"relu", [](Call& c) { each(c, [&](int64_t i) { return c.reads[0][i] < 0 ? 0 : c.reads[0][i]; }); }},
    {"relu_dx", [](Call& c) { each(c, [&](int64_t i) { return c.reads[0][i] > 0 ? c.reads[1][i] : 0; }); }},
    {"add", [](Call& c) { each(c, [&](int64_t i) { return c.reads[0][i] + c.reads[1][i]; }); }},
    {"mul", [](Call& c) { each(c, [&](int64_t i) { return c.reads[0][i] * c.reads[1][i]; }); }},
    {"scale", [](Call& c) { each(c, [&, f = c.attrs.number("factor", 1)](int64_t i) { return c.reads[0][i] * f; }); }},
    {"cast", [](Call& c) { each(c, [&](int64_t i) { return c.reads[0][i]; }); }},
    {"copy", [](Call& c) { each(c, [&](int64_t i) { return c.reads[0][i]; }); }},
    {"mse", [](Call& c) { sum(c, [&](int64_t i) { return std::pow(c.reads[0][i] - c.reads[1][i], 2); }); }},
    {"mse_grad",
     [](Call& c) { each(c, [&, f = 2 * scale(c)](int64_t i) { return f * (c.reads[0][i] - c.reads[1][i]); }); }},
    {"mean_square", [](Call& c) { sum(c, [&](int64_t i) { return c.reads[0][i] * c.reads[0][i]; }); }},
    {"mean_square_grad", [](Call& c) { each(c, [&, f = 2 * scale(c)](int64_t i) { return f * c.reads[0][i]; }); }},
    {"mean", [](Call& c) { sum(c, [&](int64_t i) { return c.reads[0][i]; }); }},
    {"mean_grad", [](Call& c) { each(c, [f = scale(c)](int64_t) { return f; }); }},
};

}  // namespace

std::span<const Rule> pointwise_rules() { return kRules; }

}  // namespace prun::reference
