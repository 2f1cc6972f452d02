#pragma once
#include "job/generation.h"
#include "option_table.h"

namespace prun {

void declare_generation(OptionTable& table, GenerationSettings& settings);

}  // namespace prun
