// Parts of pictures: the strip of memory below a rank's lanes, as SVG paths, and which lanes have a row.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

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

// The rows of pictures and text: which lanes are worth a row there. Messages of a pipeline are arrows between its
// ranks, receiving is the other side of sending, and collectives of scalars are too short to see.
struct PictureRow {
  int lane = 0;
  bool computes = false, opens = false;  // opens: the first of its rank
  std::string who, name;
  std::vector<Group> groups;  // that are drawn
};

struct PictureRows {
  std::vector<PictureRow> rows;
  bool arrows = false;  // of messages
};

// Of one step: the first that is whole, so that what is cold in the very first does not show.
PictureRows picture_rows(const Timeline& timeline);

// The kinds that rows show, in the order of kind_texts().
std::vector<BoxKind> kinds_of(const PictureRows& rows);

}  // namespace prun::draw
