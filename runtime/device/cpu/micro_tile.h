// A micro-tile of C, whose sums stay in registers while a panel of A and a panel of B run through them, and what
// computes one: in f32 or, where the CPU multiplies pairs of bf16, in those.
#pragma once
#include <cstdint>

#include "device/bf16.h"

namespace prun::cpu {

constexpr int64_t kAsk = 8;  // rows of a panel of B between two lines that are asked for

// C is `from` (rows `from_row` apart; 0 repeats the bias or zeros) and A·B. Rows of panels are elements of four bytes:
// a float, or a pair of neighbours in K.
struct Tile {
  int64_t depth;
  const float *a, *b, *from;
  int64_t from_row;
  float* c;
  int64_t c_row;
  bf16* rounded = nullptr;  // what C becomes instead, its rows c_row apart: only of pairs
  const float* next;        // a part of the next panel of B, asked for while this tile is computed
  int64_t next_step;        // floats between the lines that are asked for: 16, or 0 for the same one again
};

// For one instruction set.
struct TileKernel {
  int64_t rows, columns;                         // of a micro-tile
  void (*tile)(const Tile& tile, int64_t rows);  // up to `rows` rows of a micro-tile
};

}  // namespace prun::cpu
