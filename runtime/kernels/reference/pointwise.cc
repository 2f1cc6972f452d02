// Element-wise ops, and the sums of the simple losses.
#include <cmath>
#include <numbers>

#include "device/share.h"
#include "kernels/reference/rules.h"
#include "prun/philox.h"

namespace prun::reference {

// Hendrycks and Gimpel, Gaussian Error Linear Units, 2016: x·Φ(x), or its approximation by tanh.
double gelu(double x, bool exact) {
  if (exact) return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double gelu_derivative(double x, bool exact) {
  if (exact)
    return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
  double c = std::sqrt(2 / std::numbers::pi), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

namespace {

bool exact(const Call& c) { return c.attrs.text("approximate", "tanh") == "none"; }
double scale(const Call& c) { return c.attrs.number("scale", 1); }  // scale of a loss

// Computes writes[0][i] = f(i).
template <class F>
void each(Call& c, F f) {
  for (int64_t i = 0; i < c.writes[0].count(); ++i) c.writes[0][i] = f(i);
}
// Computes writes[0] = scale·Σ f(i) over the elements of reads[0].
template <class F>
void sum(Call& c, F f) {
  double total = 0;
  for (int64_t i = 0; i < c.reads[0].count(); ++i) total += f(i);
  c.writes[0][0] = total * scale(c);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

void silu_mul_grad(Call& c) {
  const Array &gate = c.reads[0], &up = c.reads[1], &dy = c.reads[2];
  for (int64_t i = 0; i < gate.count(); ++i) {
    double s = sigmoid(gate[i]);
    c.writes[0][i] = dy[i] * up[i] * s * (1 + gate[i] * (1 - s));
    c.writes[1][i] = dy[i] * gate[i] * s;
  }
}

// Draws the random word of each element separately.
void dropout(Call& c) {
  const Array& x = c.reads[0];
  auto share = [&](const char* axes) { return share_along(c.memory, c.attrs.text(axes)); };
  int64_t batch = x.shape[0], length = x.shape.size() == 3 ? x.shape[1] : 1, width = x.last();
  int64_t whole = c.attrs.integer("width", width * share("split_axis").of), column = share("split_axis").index * width;
  int64_t sample = share("rows_axis").index * c.attrs.integer("samples", batch) + c.attrs.integer("first");
  TokenPositions at(c.memory, c.attrs, length);
  double p = c.attrs.number("p");
  uint64_t stream = philox::dropout_stream(c.memory.table->seed, static_cast<uint64_t>(c.attrs.integer("key")),
                                           static_cast<uint64_t>(c.memory.table->step));
  for (int64_t i = 0; i < x.count(); ++i) {
    int64_t row = i / width, place = at.of(row % length) * whole + column + i % width;
    uint32_t word =
        philox::dropout_word(stream, static_cast<uint64_t>(sample + row / length), static_cast<uint64_t>(place));
    c.writes[0][i] = word >= philox::dropout_bound(p) ? x[i] / (1 - p) : 0;
  }
}

}  // namespace

const Family pointwise_rules = {
    {"gelu", [](Call& c) { each(c, [&, e = exact(c)](int64_t i) { return gelu(c.reads[0][i], e); }); }},
    {"gelu_dx",
     [](Call& c) {
       each(c, [&, e = exact(c)](int64_t i) { return c.reads[1][i] * gelu_derivative(c.reads[0][i], e); });
     }},
    {"relu", [](Call& c) { each(c, [&](int64_t i) { return c.reads[0][i] < 0 ? 0 : c.reads[0][i]; }); }},
    {"relu_dx", [](Call& c) { each(c, [&](int64_t i) { return c.reads[0][i] > 0 ? c.reads[1][i] : 0; }); }},
    {"tanh", [](Call& c) { each(c, [&](int64_t i) { return std::tanh(c.reads[0][i]); }); }},
    {"tanh_dx",
     [](Call& c) { each(c, [&](int64_t i) { return c.reads[1][i] * (1 - c.reads[0][i] * c.reads[0][i]); }); }},
    {"silu_mul",
     [](Call& c) { each(c, [&](int64_t i) { return c.reads[0][i] * sigmoid(c.reads[0][i]) * c.reads[1][i]; }); }},
    {"silu_mul_grad", silu_mul_grad},
    {"expert_activation",
     [](Call& c) {
       each(c, [&, gated = c.reads.size() > 2, sum = c.attrs.integer("sum") != 0](int64_t i) {
         const double x = c.reads[0][i];
         if (sum) return x + c.reads[1][i];
         return gated ? x * sigmoid(x) * c.reads[1][i] : gelu(x, false);
       });
     }},
    {"expert_activation_grad",
     [](Call& c) {
       if (c.reads.size() > 3) return silu_mul_grad(c);
       each(c, [&](int64_t i) { return c.reads[1][i] * gelu_derivative(c.reads[0][i], false); });
     }},
    {"dropout", dropout},
    {"add", [](Call& c) { each(c, [&](int64_t i) { return c.reads[0][i] + c.reads[1][i]; }); }},
    {"mul", [](Call& c) { each(c, [&](int64_t i) { return c.reads[0][i] * c.reads[1][i]; }); }},
    {"scale", [](Call& c) { each(c, [&, f = c.attrs.number("factor", 1)](int64_t i) { return c.reads[0][i] * f; }); }},
    {"cast", [](Call& c) { each(c, [&](int64_t i) { return c.reads[0][i]; }); }},
    {"copy", [](Call& c) { each(c, [&](int64_t i) { return c.reads[0][i]; }); }},
    {"mse", [](Call& c) { sum(c, [&](int64_t i) { return std::pow(c.reads[0][i] - c.reads[1][i], 2); }); }},
    {"mse_grad",
     [](Call& c) { each(c, [&, f = 2 * scale(c)](int64_t i) { return f * (c.reads[0][i] - c.reads[1][i]); }); }},
    {"bce",
     [](Call& c) {
       sum(c, [&](int64_t i) {
         const double x = c.reads[0][i];
         return std::max(x, 0.0) - x * c.reads[1][i] + std::log1p(std::exp(-std::abs(x)));
       });
     }},
    {"bce_grad",
     [](Call& c) { each(c, [&, f = scale(c)](int64_t i) { return f * (sigmoid(c.reads[0][i]) - c.reads[1][i]); }); }},
    {"squares", [](Call& c) { sum(c, [&](int64_t i) { return c.reads[0][i] * c.reads[0][i]; }); }},
    {"squares_grad",
     [](Call& c) {
       each(c, [&, f = 2 * c.attrs.number("factor", 1)](int64_t i) { return f * c.reads[1][0] * c.reads[0][i]; });
     }},
    {"mean_square", [](Call& c) { sum(c, [&](int64_t i) { return c.reads[0][i] * c.reads[0][i]; }); }},
    {"mean_square_grad", [](Call& c) { each(c, [&, f = 2 * scale(c)](int64_t i) { return f * c.reads[0][i]; }); }},
    {"mean", [](Call& c) { sum(c, [&](int64_t i) { return c.reads[0][i]; }); }},
    {"mean_grad", [](Call& c) { each(c, [f = scale(c)](int64_t) { return f; }); }},
};

}  // namespace prun::reference
