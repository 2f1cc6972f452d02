// Tiles of bf16 as AMX multiplies them, and AVX512_BF16 can: pairs of neighbours in K are elements of four bytes. A
// tile of A holds 16 rows of 16 pairs, a tile of B 16 pairs of 16 columns.
#pragma once
#include <cstdint>

#include "device/bf16.h"

namespace prun::cpu {

inline constexpr int64_t kSide = 16;             // rows of a tile, and pairs or columns of one
inline constexpr int64_t kBlock = 2 * kSide;     // rows and columns of a square of sums; elements of K in a tile
inline constexpr int64_t kTile = kSide * kSide;  // pairs of a tile, 1 KiB
inline constexpr int64_t kSquare = kBlock * kBlock;
typedef uint32_t Pair __attribute__((may_alias));

enum class Lying : uint8_t {
  rows,     // K along rows of x, a row of a tile is one of x: A
  columns,  // K along rows of x, a column of a tile is a row of x: B
  paired,   // K down x, a row of a tile is two neighbours of x: B
  apart,    // K down x, a row of a tile is two of x that are 16 apart: B
  turned,   // K down x, a column of a tile is two rows of x: A
};

// A block of `high` x `wide` elements, at most 32 x 32 and zeros beyond, as two tiles: its rows 0 to 15 and 16 to 31
// where K lies along rows, otherwise its columns.
void copy_block(const bf16* x, int64_t x_row, int64_t high, int64_t wide, Lying lying, Pair* first, Pair* second);

// to[i · to_row + r] = from[r · from_row + i] for 16 rows of 16 elements of four bytes. Takes AVX-512.
void turn_tile(const Pair* from, int64_t from_row, Pair* to, int64_t to_row);

}  // namespace prun::cpu
