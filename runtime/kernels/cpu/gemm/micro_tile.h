// A micro-tile of C, whose sums stay in registers while a panel of A and a panel of B run through them, and what
// computes one: in f32 or, where the CPU multiplies pairs of bf16, in those.
#pragma once
#include <cstdint>

#include "device/bf16.h"

namespace prun::cpu {

constexpr int64_t kAsk = 8;  // rows of a panel of B between lines that are asked for

// Elements from a panel of `step` columns to the next. A line lies between two panels: without it those of a depth of
// 512 begin a multiple of 4,096 bytes apart, and rows copied into many of them compete for one set of the first-level
// cache.
constexpr int64_t kBetweenPanels = 16;
constexpr int64_t panel_size(int64_t step, int64_t depth) { return step * depth + kBetweenPanels; }

// Lines of 64 bytes that are needed soon, asked for every kAsk rows of a tile: of floats one, of pairs, which tiles ask
// for before they are copied, four: at `line`, `second` and `third` bytes behind it, and both.
struct LinesAhead {
  const char* line = nullptr;
  int64_t second = 0, third = 0, step = 0;
};

// C is `from` (rows `from_row` apart; 0 repeats the bias or zeros) and A·B. Rows of panels are elements of four bytes:
// a float, or a pair of neighbours in K.
struct Tile {
  int64_t depth;
  const float *a, *b, *from;
  int64_t from_row;
  int64_t a_row = 0;  // A's rows where they lie, so many elements apart, instead of a panel: only of pairs
  float* c;
  int64_t c_row;
  bf16* rounded = nullptr;  // what C becomes instead, its rows c_row apart: only of pairs
  LinesAhead ahead;
};

// For one instruction set.
struct TileKernel {
  int64_t rows, columns;                         // of a micro-tile
  void (*tile)(const Tile& tile, int64_t rows);  // up to `rows` rows of a micro-tile
};

}  // namespace prun::cpu
