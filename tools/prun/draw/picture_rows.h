// The rows of pictures and text: which lanes are worth a row there. Messages of a pipeline are arrows between its
// ranks, receiving is the other side of sending, and collectives of scalars are too short to see.
#pragma once
#include <string>
#include <vector>

#include "draw/timeline.h"

namespace prun::draw {

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
