// The optimizers, the running average of parameters, and the two ops of global-norm clipping. compile/optimize.cc
// creates them; they are not part of a model. Variants with _cast also write a copy of the parameters in the compute
// dtype.
#include <algorithm>
#include <map>

#include "ir/ops/rules.h"

namespace prun::ops {
namespace {

constexpr std::string_view kMomentum[] = {"momentum"}, kMoments[] = {"m", "v"}, kLionSlots[] = {"m"};
constexpr OptimizerNumber kSgdNumbers[] = {{"momentum"}, {"nesterov"}},
                          kAdamwNumbers[] = {{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"l2"}},
                          kLionNumbers[] = {{"beta1", 0.9}, {"beta2", 0.99}};
constexpr OptimizerTraits kSgd = {kMomentum, kSgdNumbers, "momentum", &sgd_cast},
                          kSgdCast = {kMomentum, kSgdNumbers, "momentum", nullptr, true},
                          kAdamw = {kMoments, kAdamwNumbers, "", &adamw_cast},
                          kAdamwCast = {kMoments, kAdamwNumbers, "", nullptr, true}, kLion = {kLionSlots, kLionNumbers},
                          kProgrammed = {.programmed = true};
// The usual coefficients are those of Jordan et al., Muon, 2024.
constexpr OptimizerNumber kMuonNumbers[] = {{"momentum", 0.95}, {"nesterov", 1}, {"steps", 5},       {"a", 3.4445},
                                            {"b", -4.775},      {"c", 2.0315},   {"norm_eps", 1e-7}, {"adjust"}};
constexpr OptimizerTraits kMuon = {.slots = kMomentum, .numbers = kMuonNumbers, .direction = &muon_momentum},
                          kMuonMomentum = {.slots = kMomentum, .casts = false, .prepares = true};
// eps1 is the epsilon of f32, which torch.optim.Adafactor takes for f32 parameters.
constexpr OptimizerNumber kAdafactorNumbers[] = {{"beta2_decay", -0.8}, {"eps1", 0x1p-23}, {"eps2", 1e-3}, {"d", 1}};
constexpr OptimizerTraits kAdafactor = {.numbers = kAdafactorNumbers, .factored = true},
                          kFactors = {.prepares = true, .factored = true};

// Returns the cost of the rank with the most work: per iteration the GEMMs X·X', (X·X')² and their product with X.
Cost cost_orthogonalize(const std::vector<TensorType>& inputs, const std::vector<TensorType>& outputs,
                        const Attrs& attrs) {
  const std::vector<int64_t> owners = attrs.integers("owners"), rows = attrs.integers("rows"),
                             columns = attrs.integers("columns");
  std::map<int64_t, double> flops;
  double most = 0;
  for (size_t i = 0; i < owners.size(); ++i) {
    const double m = static_cast<double>(std::min(rows[i], columns[i])),
                 n = static_cast<double>(std::max(rows[i], columns[i]));
    most = std::max(most, flops[owners[i]] += attrs.number("steps", 5) * (4 * m * m * n + 2 * m * m * m));
  }
  Cost cost = cost_of(most, inputs, outputs);
  cost.model = 0;
  return cost;
}

// factor_means does not read the parameters, its second input.
Cost cost_factor_means(const Types& inputs, const Types& outputs, const Attrs&) {
  return cost_of(2 * count(inputs[0]), {inputs[0]}, outputs);
}

}  // namespace
const OpDef sgd = {.name = "sgd", .role = OpRole::optimizer, .optimizer = &kSgd, .cost = per_output<4>};
const OpDef sgd_cast = {.name = "sgd_cast", .role = OpRole::optimizer, .optimizer = &kSgdCast, .cost = per_output<4>};
const OpDef adamw = {.name = "adamw", .role = OpRole::optimizer, .optimizer = &kAdamw, .cost = per_output<14>};
const OpDef adamw_cast = {
    .name = "adamw_cast", .role = OpRole::optimizer, .optimizer = &kAdamwCast, .cost = per_output<14>};
const OpDef lion = {.name = "lion", .role = OpRole::optimizer, .optimizer = &kLion, .cost = per_output<10>};
const OpDef pointwise_update = {
    .name = "pointwise_update", .role = OpRole::optimizer, .optimizer = &kProgrammed, .cost = per_output<14>};
const OpDef muon = {.name = "muon", .role = OpRole::optimizer, .optimizer = &kMuon, .cost = per_output<4>};
const OpDef muon_momentum = {
    .name = "muon_momentum", .role = OpRole::optimizer, .optimizer = &kMuonMomentum, .cost = per_output<4>};
const OpDef orthogonalize = {
    .name = "orthogonalize", .role = OpRole::clipping, .shapes = "direction, ... -> chunk", .cost = cost_orthogonalize};
const OpDef factor_means = {
    .name = "factor_means", .role = OpRole::optimizer, .optimizer = &kFactors, .cost = cost_factor_means};
const OpDef factor_norms = {
    .name = "factor_norms", .role = OpRole::optimizer, .optimizer = &kFactors, .cost = per_input<4>};
const OpDef adafactor = {
    .name = "adafactor", .role = OpRole::optimizer, .optimizer = &kAdafactor, .cost = per_output<8>};
const OpDef ema = {.name = "ema",
                   .role = OpRole::average,
                   .shapes = "param, average as param -> average as param",
                   .cost = per_output<3>};
const OpDef norm2 = {.name = "norm2", .role = OpRole::clipping, .shapes = "grad, ... -> sum #1", .cost = per_input<2>};
const OpDef clip_coefficient = {.name = "clip_coefficient",
                                .role = OpRole::clipping,
                                .side_first = 1,
                                .shapes = "sum #1 -> coefficient #1, norm #1",
                                .cost = per_output<4>};

}  // namespace prun::ops
