// Whether weights of one model are another's: what shapes do not tell.
#pragma once
#include <string>

#include "ir/model_description.h"

namespace prun::checkpoint {

// In what the same weights compute something else, "heads is 4 there and 2 here"; "": in nothing that is known. Models
// without a name are a plan's own, of which only shapes are known.
std::string differing_model(const ModelDescription& there, const ModelDescription& here);

}  // namespace prun::checkpoint
