// Parts of pictures: the strip of memory below a rank's lanes, as SVG paths, and the selection of lanes with a row.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "draw/timeline.h"

namespace prun::draw {

struct PictureArea {
  double left = 0, top = 0, width = 0, height = 0;
};

// Returns paths stacked from the bottom: persistent memory, gathered parameters, activations, all other memory. `most`:
// bytes at full height; `end`: time at full width. A pixel column shows its moment with the most bytes.
std::string memory_paths(const MemoryStrip& strip, const PictureArea& area, int64_t most, int64_t end);

// Formats with one decimal unless that is 0, identically on every machine.
std::string number(double value);

// Rows of pictures and text. Omitted lanes: pipeline messages, which are arrows between ranks; receives, which mirror
// the sends; and lanes that have only BoxKind::other.
struct PictureRow {
  int lane = 0;
  bool computes = false, opens = false;  // opens: first row of its rank
  std::string who, name;
  std::vector<Group> groups;  // the groups that are drawn
};

struct PictureRows {
  std::vector<PictureRow> rows;
  bool arrows = false;  // arrows for messages
};

// Returns the rows of all steps. A rank's first lane always has a row.
PictureRows picture_rows(const Timeline& timeline);

// Returns the kinds in the rows, in the order of kind_texts().
std::vector<BoxKind> kinds_of(const PictureRows& rows);

}  // namespace prun::draw
