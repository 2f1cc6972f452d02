// What is worth knowing of a GPU before a job: its modes, its memory's errors, which other GPUs it reaches and how.
#pragma once
#include "prun/health.h"

namespace prun::cuda {

// Opens the GPU, so in a process of its own. Throws Failure.
void examine_device(int index, prun_health_report& report);

}  // namespace prun::cuda
