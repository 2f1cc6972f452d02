// The critical path: from the box that ends last back to the first, each time to the box that the one before waited for
// longest: the op before on its stream, the op at the other end of an edge, the last member to come to a collective.
#pragma once
#include <vector>

#include "draw/timeline.h"

namespace prun::draw {

std::vector<int> critical_path(const Timeline& timeline);

// How the path's time divides, in nanoseconds by kind; the last entry is time in which none of its boxes was at work.
std::vector<int64_t> critical_shares(const Timeline& timeline);

}  // namespace prun::draw
