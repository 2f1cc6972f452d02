// Whether weights of one model are another's: their tensors, and what shapes do not tell.
#pragma once
#include <map>
#include <string>

#include "checkpoint/weights.h"
#include "ir/model_description.h"
#include "ir/types.h"

namespace prun::checkpoint {

// In what the same weights compute something else, "heads is 4 there and 2 here"; "": in nothing that is known. Models
// without a name are a plan's own, of which only shapes are known.
std::string differing_model(const ModelDescription& there, const ModelDescription& here);
// The first tensor that one of both sides lacks, or that has another shape: "w is [8] there and [9] here"; "": none.
std::string differing_tensor(const Weights& there, const std::map<std::string, Shape>& here);

// "prun.models.llama { vocab = 32000, ... }": what a plan writes to have this model.
std::string model_text(const ModelDescription& model);

}  // namespace prun::checkpoint
