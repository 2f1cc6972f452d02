// The layout of bf16 GEMM operands in AMX tiles, and the copies that produce it. Two neighbours in K form a pair, an
// element of four bytes; AVX512_BF16 multiplies the same pairs.
//
//      tile of A: 16 rows of C            tile of B: 16 columns of C
//              K pair 0 .. 15                     column 0 .. 15
//      row  0  |aa|aa|..|aa|            K pair  0 |bb|bb|..|bb|
//       ..     |aa|aa|..|aa|              ..      |bb|bb|..|bb|
//      row 15  |aa|aa|..|aa|            K pair 15 |bb|bb|..|bb|
#pragma once
#include <cstdint>

#include "device/bf16.h"

namespace prun::cpu {

inline constexpr int64_t kSide = 16;             // rows of a tile, and its pairs or columns
inline constexpr int64_t kBlock = 2 * kSide;     // rows and columns of a register tile; elements of K in a tile
inline constexpr int64_t kTile = kSide * kSide;  // pairs of a tile, 1 KiB
inline constexpr int64_t kRegisterTile = kBlock * kBlock;  // accumulators of a register tile
typedef uint32_t Pair __attribute__((may_alias));

// The conversion of a block of the source x to tiles of A or B.
enum class PairLayout : uint8_t {
  rows,        // A: K runs along rows of x; a row of the tile is a row of x
  columns,     // B: K runs along rows of x; a column of the tile is a row of x
  paired,      // B: K runs down x; a row of the tile has two neighbouring rows of x
  apart,       // B: K runs down x; a row of the tile has two rows of x that are 16 apart
  transposed,  // A: K runs down x; a column of the tile has two rows of x
};

// Copies a block of `high` x `wide` elements, at most 32 x 32 and padded with zeros, to two tiles: its rows 0 to 15 and
// 16 to 31 where K runs along rows, otherwise its columns.
void copy_block(const bf16* x, int64_t x_row, int64_t high, int64_t wide, PairLayout layout, Pair* first, Pair* second);

// Transposes 16 rows of 16 elements of four bytes: to[i · to_row + r] = from[r · from_row + i]. Needs AVX-512.
void transpose_tile(const Pair* from, int64_t from_row, Pair* to, int64_t to_row);

}  // namespace prun::cpu
