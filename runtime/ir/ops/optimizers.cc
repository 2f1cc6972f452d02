// The optimizers, the running average of parameters, and the two ops of global-norm clipping. compile/optimize.cc
// creates them; they are not part of a model. Variants with _cast also write a copy of the parameters in the compute
// dtype.
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
                          kAdamwCast = {kMoments, kAdamwNumbers, "", nullptr, true}, kLion = {kLionSlots, kLionNumbers};

}  // namespace
const OpDef sgd = {.name = "sgd", .role = OpRole::optimizer, .optimizer = &kSgd, .cost = per_output<4>};
const OpDef sgd_cast = {.name = "sgd_cast", .role = OpRole::optimizer, .optimizer = &kSgdCast, .cost = per_output<4>};
const OpDef adamw = {.name = "adamw", .role = OpRole::optimizer, .optimizer = &kAdamw, .cost = per_output<14>};
const OpDef adamw_cast = {
    .name = "adamw_cast", .role = OpRole::optimizer, .optimizer = &kAdamwCast, .cost = per_output<14>};
const OpDef lion = {.name = "lion", .role = OpRole::optimizer, .optimizer = &kLion, .cost = per_output<10>};
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
