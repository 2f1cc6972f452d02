// From the words behind `prun draw` to what is drawn: plans, traces, programs, rows of metrics, folders of runs.
#pragma once
#include "draw/drawing.h"
#include "draw/settings.h"

namespace prun::draw {

// Throws usage_error for what is none of them, and as build_job for plans.
Drawing read_inputs(DrawOptions& options);

}  // namespace prun::draw
