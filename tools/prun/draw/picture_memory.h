// The strip of memory below a rank's lanes, as SVG paths.
#pragma once
#include <cstdint>
#include <string>

#include "draw/timeline.h"

namespace prun::draw {

struct PictureArea {
  double left = 0, top = 0, width = 0, height = 0;
};

// What is kept from step to step at the bottom, then what is gathered, activations and all else. `most`: the bytes that
// fill the height; `end`: the time that fills the width. A column of a pixel shows its moment with the most bytes.
std::string memory_paths(const MemoryStrip& strip, const PictureArea& area, int64_t most, int64_t end);

// With one decimal, and none that is 0: the same text wherever it is made.
std::string number(double value);

}  // namespace prun::draw
