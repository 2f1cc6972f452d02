#pragma once
#include "definer.h"
#include "job/generation.h"

namespace prun {

void define_generation_options(Definer& define, GenerationSettings& settings);

}  // namespace prun
