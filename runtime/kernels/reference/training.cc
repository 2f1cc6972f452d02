// Optimizers and global-norm clipping, by the formulas in the documentation of torch.optim and of
// torch.nn.utils.clip_grad_norm_; checks for finite numbers; fingerprints.
#include <bit>
#include <cmath>

#include "device/share.h"
#include "kernels/reference/rules.h"
#include "kernels/reference/settings.h"
#include "prun/fingerprint.h"
#include "prun/sdk/update_program.h"

namespace prun::reference {
namespace {

// Leaves parameters and state unchanged, for a negative clip coefficient. `updated`: the number of both.
void keep_all(Call& c, size_t updated) {
  for (size_t i = 0; i < updated; ++i) c.writes[i].v = c.reads[1 + i].v;
}

void sgd_update(Call& c, size_t updated) {
  bool momentum = updated > 1, clip = c.reads.size() > (momentum ? 3u : 2u);
  if (clip && c.reads.back()[0] < 0) return keep_all(c, updated);
  double keep = c.attrs.number("momentum");
  bool nesterov = c.attrs.number("nesterov") != 0;
  const Settings settings(c, 0);
  for (int64_t i = 0; i < c.writes[0].count(); ++i) {
    const auto [lr, decay] = settings.at(i);
    double gradient = c.reads[0][i] * (clip ? c.reads.back()[0] : 1), p = c.reads[1][i];
    gradient += decay * p;
    double own = gradient;
    if (momentum) {
      gradient += keep * c.reads[2][i];
      c.writes[1][i] = gradient;
      if (nesterov) gradient = own + keep * gradient;
    }
    c.writes[0][i] = p - lr * gradient;
  }
}

void sgd(Call& c) { sgd_update(c, c.writes.size()); }

void adamw(Call& c) {
  double beta1 = c.attrs.number("beta1", 0.9), beta2 = c.attrs.number("beta2", 0.999);
  double eps = c.attrs.number("eps", 1e-8), t = static_cast<double>(c.memory.table->update + 1);
  bool clip = c.reads.size() > 4, l2 = c.attrs.number("l2") != 0;
  const Settings settings(c, 0.01);
  if (clip && c.reads[4][0] < 0) return keep_all(c, 3);
  for (int64_t i = 0; i < c.writes[0].count(); ++i) {
    const auto [lr, decay] = settings.at(i);
    double gradient = c.reads[0][i] * (clip ? c.reads[4][0] : 1) + (l2 ? decay * c.reads[1][i] : 0);
    double m = beta1 * c.reads[2][i] + (1 - beta1) * gradient;
    double v = beta2 * c.reads[3][i] + (1 - beta2) * gradient * gradient;
    double m_hat = m / (1 - std::pow(beta1, t)), v_hat = v / (1 - std::pow(beta2, t));
    double p = c.reads[1][i] * (l2 ? 1 : 1 - lr * decay);
    c.writes[0][i] = p - lr * m_hat / (std::sqrt(v_hat) + eps);
    c.writes[1][i] = m;
    c.writes[2][i] = v;
  }
}

// Chen et al., Symbolic Discovery of Optimization Algorithms, 2023.
void lion(Call& c) {
  double beta1 = c.attrs.number("beta1", 0.9), beta2 = c.attrs.number("beta2", 0.99);
  bool clip = c.reads.size() > 3;
  const Settings settings(c, 0);
  if (clip && c.reads[3][0] < 0) return keep_all(c, 2);
  for (int64_t i = 0; i < c.writes[0].count(); ++i) {
    const auto [lr, decay] = settings.at(i);
    double gradient = c.reads[0][i] * (clip ? c.reads[3][0] : 1), m = c.reads[2][i], p = c.reads[1][i];
    double direction = beta1 * m + (1 - beta1) * gradient;
    c.writes[0][i] = p - lr * ((direction > 0) - (direction < 0) + decay * p);
    c.writes[1][i] = beta2 * m + (1 - beta2) * gradient;
  }
}

// Evaluates the whole program for each element.
void pointwise_update(Call& c) {
  const size_t updated = c.writes.size();
  const bool clip = c.reads.size() > 1 + updated;
  if (clip && c.reads.back()[0] < 0) return keep_all(c, updated);
  const int inputs = static_cast<int>(updated) + 1;
  const auto program = sdk::parse_pointwise(c.attrs.text("program"), inputs + sdk::kUpdateSettings);
  const std::vector<int64_t> results = c.attrs.integers("results");
  const Settings settings(c, 0);
  std::vector<double> r(program->size());
  for (int64_t i = 0; i < c.writes[0].count(); ++i) {
    const auto [lr, decay] = settings.at(i);
    const double more[] = {lr, decay, static_cast<double>(c.memory.table->update + 1)};
    const auto value = [&](const sdk::PointwiseOperand& operand) {
      if (operand.kind == sdk::PointwiseOperand::number) return operand.value;
      if (operand.kind == sdk::PointwiseOperand::result) return r[operand.index];
      if (operand.index >= inputs) return more[operand.index - inputs];
      return c.reads[operand.index][i] * (clip && operand.index == 0 ? c.reads.back()[0] : 1);
    };
    for (size_t n = 0; n < program->size(); ++n) {
      const auto& in = (*program)[n].operands;
      r[n] = sdk::pointwise_value((*program)[n].code, value(in[0]), value(in[1]), value(in[2]));
    }
    for (size_t w = 0; w < updated; ++w) c.writes[w][i] = r[results[w]];
  }
}

void ema(Call& c) {
  const double share = c.memory.table->update == 0 ? 1 : 1 - c.attrs.number("decay");
  for (int64_t i = 0; i < c.writes[0].count(); ++i) {
    const double parameter = c.reads[0][i], average = c.reads[1][i];
    c.writes[0][i] = average + share * (parameter - average);
  }
}

// The copy, the last write, is rounded once: from the double, even if parameters are f32.
void sgd_cast(Call& c) {
  sgd_update(c, c.writes.size() - 1);
  c.writes.back().v = c.writes[0].v;
}
void adamw_cast(Call& c) {
  adamw(c);
  c.writes.back().v = c.writes[0].v;
}

// Weights are given per tensor, or for one flat vector per piece, from each start on.
void norm2(Call& c) {
  std::vector<double> weights = c.attrs.numbers("weights"), piece_weights = c.attrs.numbers("piece_weights");
  std::vector<int64_t> starts = c.attrs.integers("piece_starts");
  for (size_t i = 0; i < c.reads.size(); ++i) {
    const Array& x = c.reads[i];
    int64_t first = share_along(c.memory, c.attrs.text("axis")).index * x.count();
    for (int64_t e = 0; e < x.count(); ++e) {
      double weight = weights.empty() ? 1 : weights[i];
      for (size_t p = 0; p < starts.size(); ++p)
        if (first + e >= starts[p]) weight = piece_weights[p];
      c.writes[0][0] += weight * x[e] * x[e];
    }
  }
}

void clip_coefficient(Call& c) {
  double norm = std::sqrt(c.reads[0][0]);
  double max = c.attrs.number("max");
  c.writes[0][0] = max > 0 ? std::min(1.0, max / (norm + 1e-6)) : 1;
  if (c.attrs.integer("skip") != 0 && !std::isfinite(norm)) c.writes[0][0] = -1;
  c.writes[1][0] = norm;
}

void check_finite(Call& c) {
  bool infinite = c.attrs.integer("infinite") != 0, counted = c.attrs.integer("counted") != 0;
  if (c.attrs.has("root") && share_along(c.memory, c.attrs.text("axis")).index != c.attrs.integer("root")) return;
  for (size_t i = 0; i + (counted ? 1 : 0) < c.reads.size(); ++i) {
    int kinds = 0;
    int64_t count = c.reads[i].count();
    if (counted && i == 0) {
      count = 0;
      for (double share : c.reads.back().v) count += static_cast<int64_t>(share);
    }
    for (int64_t e = 0; e < count; ++e) {
      double x = c.reads[i][e];
      kinds |= std::isnan(x) ? 1 : std::isinf(x) && !infinite ? 2 : 0;
    }
    c.writes[0][0] += kinds << (2 * i);
  }
}

void fingerprint(Call& c) {
  for (size_t i = 0; i < c.reads.size(); ++i) {
    const Array& x = c.reads[i];
    uint64_t sum = 0;
    for (int64_t e = 0; e < x.count(); ++e) {
      const auto whole =
          x.dtype == Dtype::f64 ? std::bit_cast<uint64_t>(x[e]) : std::bit_cast<uint64_t>(static_cast<int64_t>(x[e]));
      const uint32_t single = std::bit_cast<uint32_t>(static_cast<float>(x[e]));
      if (dtype_bytes(x.dtype) == 8)
        sum += fingerprint_of(static_cast<uint32_t>(whole), 2 * e) +
               fingerprint_of(static_cast<uint32_t>(whole >> 32), 2 * e + 1);
      else
        sum += fingerprint_of(x.dtype == Dtype::i32    ? static_cast<uint32_t>(whole)
                              : x.dtype == Dtype::bf16 ? single >> 16
                                                       : single,
                              e);
    }
    c.writes[0][static_cast<int64_t>(i)] = static_cast<double>(sum & kFingerprintMask);
  }
}

}  // namespace

const Family training_rules = {{"sgd", sgd},
                               {"adamw", adamw},
                               {"sgd_cast", sgd_cast},
                               {"adamw_cast", adamw_cast},
                               {"lion", lion},
                               {"pointwise_update", pointwise_update},
                               {"ema", ema},
                               {"norm2", norm2},
                               {"clip_coefficient", clip_coefficient},
                               {"check_finite", check_finite},
                               {"fingerprint", fingerprint}};

}  // namespace prun::reference
