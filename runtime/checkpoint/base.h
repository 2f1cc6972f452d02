// The base of LoRA adapters: the weights below them, which training does not change. A checkpoint of adapters records
// the folder of the base and its digest, and omits its tensors.
#pragma once
#include <string>

#include "checkpoint/index.h"
#include "checkpoint/weights.h"

namespace prun::checkpoint {

// Returns the SHA-256 of all tensors as their files store them: names, dtypes, shapes and elements. Sharding a folder's
// files anew does not change it. Reads everything, with a thread per core.
std::string base_digest(const Weights& base);

// Throws checkpoint_invalid, naming both, if `digest` of the folder `base` is not that of the adapters' base.
void require_base(const std::string& folder, const Adapters& adapters, const std::string& digest,
                  const std::string& base);

// Whether the path is a checkpoint of adapters.
bool holds_adapters(const std::string& path);
// Opens a checkpoint with the tensors of its adapters' base. `base`: its folder; "" = the one that the checkpoint
// names. Throws checkpoint_invalid, also for a base that is missing.
Weights open_with_base(const std::string& folder, Take take, const std::string& base = "");
// Opens a checkpoint as the weights of a model without adapters: A·B is added to the weights of their layers. Throws
// checkpoint_invalid and, if `verified`, for another base than the adapters'.
Weights open_merged(const std::string& folder, const std::string& base = "", bool verified = true,
                    Take take = Take::parameters);

}  // namespace prun::checkpoint
