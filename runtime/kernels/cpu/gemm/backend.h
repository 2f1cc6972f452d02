// A backend of the GEMM driver: a micro-kernel for one instruction set with its tile, its panel layout and its
// blocking. The driver (driver.h) serves all backends; gemm.cc has the table from which a GEMM selects its backend.
//
// Panels consist of elements of four bytes: a float, or a pair of bf16 neighbours in K. `depth` always counts such
// elements along K.
#pragma once
#include <cstdint>

#include "device/bf16.h"
#include "ir/types.h"
#include "kernels/cpu/gemm/gemm.h"

namespace prun::cpu {

// Cache lines for the micro-kernel to prefetch: in each step `lines` of them, `row` bytes apart; the next step's are
// `step` bytes further. A step is kPrefetchDepth of `depth`, on AMX a tile of K. `c` points to the rows of C that are
// written next; null if the micro-kernel finds them itself.
struct Prefetch {
  const char* line = nullptr;
  int64_t row = 0, step = 0, lines = 0;
  const char* c = nullptr;
  int64_t c_row = 0, c_lines = 0;
};
constexpr int64_t kPrefetchDepth = 8;

// A tile of bf16 results whose accumulators are still to be rounded; the AMX kernel does so during its next tile.
struct Unrounded {
  const float* accumulators = nullptr;  // null: nothing to round
  int64_t accumulators_row = 0;
  const float* bias = nullptr;
  bf16* c = nullptr;
  int64_t c_row = 0;
};

// One micro-tile of C: c = A·B + bias, or c += A·B with `add`. Strides are in elements.
struct Tile {
  int64_t depth;
  const float *a, *b;
  int64_t a_row = 0;  // 0: A is a panel; otherwise elements between A's rows, which are read in place
  const float* bias;  // bias of the columns; null only if `add` or Backend::adds_bias_last is set
  float* c;
  int64_t c_row;
  bool add;
  bf16* rounded = nullptr;  // receives the result in bf16 instead of c
  int64_t rounded_row = 0;
  Unrounded* unrounded = nullptr;
  Prefetch prefetch = {};
};

// The source of panels: `count` rows (of A) or columns (of B) with `depth` elements of K each.
struct PanelSource {
  const void* x;
  Dtype dtype;
  int64_t row;           // elements from a row of x to the next
  bool k_along_rows;     // K runs along rows of x, not down its columns
  int64_t count, depth;  // both in elements of x
};

struct Blocking {
  int64_t depth;    // elements of K per part
  int64_t rows;     // rows of A per block
  int64_t columns;  // columns of B per block
};

// Offsets in a thread's scratch, and its total size, in floats.
struct GemmScratch {
  int64_t a, b, bias, accumulators, total;
};

struct Position;        // prefetch_plan.h
struct ColumnPrefetch;  // prefetch_plan.h

struct Backend {
  const char* name;
  int64_t rows, columns;  // size of a micro-tile
  int64_t pair;           // elements of K in an element of a panel, 1 or 2
  // A panel of `step` rows or columns has step · depth elements, with the depth rounded up to `depth_step`, and `gap`
  // more.
  int64_t depth_step, gap;
  bool packs_b_late;    // a panel of B is packed just before its first use; otherwise all panels of a block at once
  bool whole_tiles;     // the micro-kernel writes all rows of a tile, including those beyond C
  bool rounds;          // the micro-kernel writes bf16 results itself
  bool adds_bias_last;  // the bias is added to the last part of K; otherwise to the first
  bool overlaps;        // rounding is overlapped with the next tile
  bool sums_columns;    // pack_b computes sums of B's columns
  Blocking (*blocking)(const GemmShape&);
  GemmScratch (*scratch)(const GemmShape&);
  // Whether a bf16 C needs scratch for partial sums, because bf16 would round them.
  bool (*keeps_sums_apart)(const GemmShape&);
  bool (*reads_a_in_place)(const GemmShape&, int64_t rows_left);
  void (*pack_a)(const PanelSource&, float* to);
  void (*pack_b)(const PanelSource&, float* to, float* column_sums);
  void (*tile)(const Tile&, int64_t rows);
  void (*finish)(Unrounded&);  // rounds the last tile if `overlaps`; null: nothing to do
  void (*open)();              // claims this thread's registers; null: nothing to do
  void (*close)();
  ColumnPrefetch (*prefetch)(const Position&);

  int64_t panel_size(int64_t step, int64_t depth) const {
    return step * ((depth + depth_step - 1) / depth_step * depth_step) + gap;
  }
};

extern const Backend kFloatPanels, kFloatPanelsAvx2, kFloatPanelsAvx512;  // float_panels.cc
extern const Backend kPairPanels;                                         // pair_panels.cc: needs AVX512_BF16
extern const Backend kAmxTiles;                                           // amx_tiles.cc: needs AMX

// Returns the panel backend of this shape: the one of a GEMM that uses neither AMX tiles nor oneDNN.
const Backend& panel_backend(const GemmShape& shape);

}  // namespace prun::cpu
