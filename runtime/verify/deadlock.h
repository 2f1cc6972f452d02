// Whether the ranks of a job can all come to an end, under one class of transports.
#pragma once
#include "verify/view.h"

namespace prun::verify {

// `credits`: how many sends of a pair and lane may be under way before their receives begin; 0 is a rendezvous.
bool everything_ends(const JobView& view, int credits);

}  // namespace prun::verify
