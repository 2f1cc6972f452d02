// See packed_gemm.h. C is computed in micro-tiles of kRows x (kVectors · kLanes) that stay in registers while a panel
// of A and a panel of B run through them.
//
// Surprising fact: the panels are longer than the first-level cache has room for. What costs most is not a line of a
// panel but one of C, which comes from far away each time that a sum is taken up again. All lines of a tile of C asked
// for at once keep those of panels waiting: a row at a time they cost a tenth less.
#include "kernels/cpu/gemm/packed_gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "device/bf16.h"
#include "kernels/cpu/gemm/finish_tile.h"
#include "kernels/cpu/gemm/pair_panels.h"
#include "kernels/cpu/gemm/register_tile.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/transpose.h"

namespace prun::cpu {
namespace {

constexpr int64_t kMostDepth = 768;      // of K at a time
constexpr int64_t kMostBlockRows = 336;  // of A at a time: 1 MiB, half of a second-level cache of 2 MiB
constexpr int64_t kBlockColumns = 1024;  // of B at a time: 3 MiB
constexpr int64_t kRoom = 16;            // floats behind A's panels, since copies store whole vectors

// K in equal parts.
int64_t depth_of(int64_t k) {
  const int64_t parts = (k + kMostDepth - 1) / kMostDepth;
  return round_up((k + parts - 1) / parts, kAsk);
}

template <int kLanes>
struct Vector {
  typedef float type __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
};

// A's element (r, p) lies at a[p · kPanelRows + r], B's row p at b[p · kVectors · kLanes].
template <int kLanes, int kRows, int kVectors, int kPanelRows>
PRUN_INLINE void micro_tile(const Tile& t) {
  using V = typename Vector<kLanes>::type;
  const float *a = t.a, *b = t.b;
  LinesAhead ahead = t.ahead;
  V sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sum[r][v] = V{};
  }
  const auto multiply = [&] {
    V row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = *reinterpret_cast<const V*>(b + v * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const float x = a[r];
      for (int v = 0; v < kVectors; ++v) sum[r][v] += x * row[v];
    }
    a += kPanelRows;
    b += kVectors * kLanes;
  };
  // C is added behind the sum. Its rows are asked for one at a time.
  const float* c = t.c;
  const float* const c_end = c + kRows * t.c_row;
  int64_t p = 0;
  for (; p + kAsk <= t.depth; p += kAsk) {
    __builtin_prefetch(ahead.line, 0, 2);
    ahead.line += ahead.step;
    if (c < c_end) {
      __builtin_prefetch(c, 1);
      if (kVectors * kLanes > 16) __builtin_prefetch(c + 16, 1);
      c += t.c_row;
    }
#pragma GCC unroll 8
    for (int q = 0; q < kAsk; ++q) multiply();
  }
  for (; p < t.depth; ++p) multiply();
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v)
      *reinterpret_cast<V*>(t.c + r * t.c_row + v * kLanes) =
          sum[r][v] + *reinterpret_cast<const V*>(t.from + r * t.from_row + v * kLanes);
  }
}

template <int kLanes, int kRows, int kVectors>
PRUN_INLINE void tile_of(Tile t, int64_t rows) {
  if (rows == kRows) return micro_tile<kLanes, kRows, kVectors, kRows>(t);
  const auto advance = [&](int64_t n) { t.a += n, t.c += n * t.c_row, t.from += n * t.from_row, rows -= n; };
  if (kRows > 8 && rows >= 8) {
    micro_tile<kLanes, 8, kVectors, kRows>(t);
    advance(8);
  }
  if (kRows > 4 && rows >= 4) {
    micro_tile<kLanes, 4, kVectors, kRows>(t);
    advance(4);
  }
  for (int64_t left = rows; left > 0; --left) {
    micro_tile<kLanes, 1, kVectors, kRows>(t);
    advance(1);
  }
}

void tile_default(const Tile& t, int64_t rows) { tile_of<4, 4, 2>(t, rows); }
constexpr TileKernel kDefault = {4, 8, tile_default};

#if defined(__x86_64__)
__attribute__((target("arch=x86-64-v3"))) void tile_v3(const Tile& t, int64_t rows) { tile_of<8, 6, 2>(t, rows); }
__attribute__((target("arch=x86-64-v4"))) void tile_v4(const Tile& t, int64_t rows) { tile_of<16, 14, 2>(t, rows); }
constexpr TileKernel kV3 = {6, 16, tile_v3}, kV4 = {14, 32, tile_v4};
#endif

const TileKernel& float_tiles() {
#if defined(__x86_64__)
  switch (instruction_set()) {
    case InstructionSet::avx512:
      return kV4;
    case InstructionSet::avx2:
      return kV3;
    case InstructionSet::any:
      break;
  }
  return kDefault;
#else
  return kDefault;
#endif
}

// A's block takes half of the second-level cache, through which C and B stream, or an eighth more: rows are cut in
// equal blocks, since for a last one of a few rows B would be read once more. Sums do not depend on it.
int64_t block_rows(int64_t m, int64_t depth, int64_t step) {
  const int64_t half = second_level_cache() / 2 / (depth * static_cast<int64_t>(sizeof(float)));
  const int64_t fit = std::clamp(half, step, kMostBlockRows);
  const int64_t blocks = std::max((m - fit / 8 + fit - 1) / fit, int64_t{1});
  return std::min(round_up((m + blocks - 1) / blocks, step), kMostBlockRows);
}

// As a whole: GCC cannot know that x and the panels are apart, and would copy element by element.
template <int kStep, class T>
PRUN_INLINE void copy_piece(const T* from, float* to) {
  if constexpr (std::is_same_v<T, float>) {
    std::memcpy(to, from, kStep * sizeof(float));
  } else {
    float piece[kStep];
    for (int j = 0; j < kStep; ++j) piece[j] = load(from[j]);
    std::memcpy(to, piece, sizeof piece);
  }
}

// Panels of kStep columns of a matrix: row p of a panel at [p · kStep]. So lie B, and A's panels of rows. This for a
// plain B and an A stored transposed ([k, m]). A last panel is padded with zeros. Rows are copied whole, four at a
// time: panel by panel each line would be fetched by itself, from another page. `sums`, if any: the columns' sums.
template <int kStep, class T>
PRUN_CLONES void copy_panels(const T* x, int64_t x_row, int64_t columns, int64_t depth, float* to, float* sums) {
  constexpr int64_t kTogether = 4;
  for (int64_t top = 0; top < depth; top += kTogether) {
    const int64_t bottom = top + kTogether < depth ? top + kTogether : depth;
    int64_t first = 0;
    float* panel = to;
    for (; first + kStep <= columns; first += kStep, panel += panel_size(kStep, depth)) {
      for (int64_t p = top; p < bottom; ++p) copy_piece<kStep>(x + p * x_row + first, panel + p * kStep);
      if (sums != nullptr && bottom - top == kTogether) {
        const float* line = panel + top * kStep;
        for (int j = 0; j < kStep; ++j)
          sums[first + j] += (line[j] + line[kStep + j]) + (line[2 * kStep + j] + line[3 * kStep + j]);
      } else if (sums != nullptr) {
        for (int64_t p = top; p < bottom; ++p)
          for (int j = 0; j < kStep; ++j) sums[first + j] += panel[p * kStep + j];
      }
    }
    if (first == columns) continue;
    for (int64_t p = top; p < bottom; ++p) {
      const T* from = x + p * x_row + first;
      float* line = panel + p * kStep;
      for (int64_t j = 0; j < kStep; ++j) line[j] = first + j < columns ? load(from[j]) : 0.0f;
      for (int64_t j = 0; sums != nullptr && first + j < columns; ++j) sums[first + j] += line[j];
    }
  }
}

// The same panels of a matrix that lies the other way: a plain A, and a B stored transposed ([n, k]). In squares of 8,
// the last of a line first, as where kStep is no multiple of 8 it stores over what belongs to the next line's first.
template <int kStep, class T>
PRUN_CLONES void copy_transposed(const T* x, int64_t x_row, int64_t columns, int64_t depth, float* to) {
  constexpr int kLast = (kStep - 1) / 8 * 8;
  const int64_t squares = depth / 8 * 8;
  for (int64_t first = 0; first < columns; first += kStep, to += panel_size(kStep, depth)) {
    const int64_t count = columns - first < kStep ? columns - first : kStep;
    for (int64_t p = 0; p < squares; p += 8) {
      for (int j = kLast; j >= 0; j -= 8) {
        Eight rows[8];
        for (int i = 0; i < 8; ++i) {
          rows[i] = Eight{};
          if (j + i < count) load_eight(x + (first + j + i) * x_row + p, rows[i]);
        }
        transpose(rows);
        for (int i = 0; i < 8; ++i) *reinterpret_cast<Eight*>(to + (p + i) * kStep + j) = rows[i];
      }
    }
    for (int64_t p = squares; p < depth; ++p)
      for (int64_t j = 0; j < kStep; ++j) to[p * kStep + j] = j < count ? load(x[(first + j) * x_row + p]) : 0.0f;
  }
}

// Panels of `step` columns of x, or of x transposed.
template <class T>
void copy(bool transposed, const T* x, int64_t x_row, int64_t columns, int64_t depth, int64_t step, float* to,
          float* sums) {
  const auto panels = [&]<int kStep>(std::integral_constant<int, kStep>) {
    transposed ? copy_transposed<kStep>(x, x_row, columns, depth, to)
               : copy_panels<kStep>(x, x_row, columns, depth, to, sums);
  };
  switch (step) {
    case 4:
      return panels(std::integral_constant<int, 4>());
    case 6:
      return panels(std::integral_constant<int, 6>());
    case 8:
      return panels(std::integral_constant<int, 8>());
    case 14:
      return panels(std::integral_constant<int, 14>());
    case 16:
      return panels(std::integral_constant<int, 16>());
    case 32:
      return panels(std::integral_constant<int, 32>());
    default:
      PRUN_CHECK(false, fmt::format("no panels of {}", step));
  }
}

// bf16 results cannot hold partial sums: C's partial sums are then kept in scratch.
bool keeps_sums_apart(const GemmShape& s) { return s.output == Dtype::bf16 && s.k > kMostDepth; }

// Floats of scratch per thread, for this k and any smaller. Room for the largest tiles on every machine, so that a
// program takes the same memory wherever it is compiled.
struct Layout {
  int64_t a, b, bias, sums, total;
  explicit Layout(const GemmShape& s) {
    constexpr int64_t kTileRows = 14, kTileColumns = 32, kLeastStep = 4;
    const int64_t columns = round_up(std::min(s.n, kBlockColumns), kTileColumns);
    const int64_t rows = std::min(s.m, kMostBlockRows) + kTileRows - 1;
    const int64_t depth = std::min(round_up(s.k, kAsk), kMostDepth);
    a = 0;
    b = a + round_up(rows * depth + rows / kLeastStep * kBetweenPanels + kRoom, 16);
    bias = b + round_up(columns * depth + columns / kLeastStep * kBetweenPanels + kRoom, 16);
    sums = bias + columns;
    total = sums + (keeps_sums_apart(s) ? round_up(s.m * columns, 16) : kTileRows * kTileColumns);
  }
};

// With kPairs an element of a panel is two neighbours in K.
template <class In, class Out, bool kPairs>
class Product {
 public:
  static constexpr int64_t kElement = kPairs ? 2 : 1;
  static const TileKernel& kernel() { return kPairs ? kPairTiles : float_tiles(); }
  Product(const GemmShape& shape, const In* a, const In* b, const In* bias, Out* c, float* scratch, bool add,
          float* sums)
      : s_(shape),
        layout_(shape),
        k_((shape.k + kElement - 1) / kElement),
        depth_(depth_of(k_)),
        rows_(block_rows(shape.m, depth_, kernel().rows)),
        a_(a),
        b_(b),
        bias_(bias),
        c_(c),
        scratch_(scratch),
        add_(add),
        sums_(sums) {}

  // Columns [begin, end) of C, with this scratch.
  void columns(int64_t begin, int64_t end) const {
    for (int64_t j = begin; j < end; j += kBlockColumns) {
      const int64_t width = std::min(kBlockColumns, end - j);
      copy_bias(j, width);
      for (int64_t p = 0; p < k_; p += depth_) {
        const int64_t depth = std::min(depth_, k_ - p);
        float sums[kBlockColumns];  // of a part of K, so that rounding errors of long sums stay small
        if (sums_ != nullptr) std::fill_n(sums, width, 0.0f);
        float* const sums_to = sums_ == nullptr ? nullptr : sums;
        if (!kPairs) panels_of_b(j, 0, width, p, depth, sums_to);
        for (int64_t i = 0; i < s_.m; i += rows_) block(i, std::min(rows_, s_.m - i), j, width, p, depth, sums_to);
        for (int64_t i = 0; sums_ != nullptr && i < width; ++i) sums_[j + i] = sums[i] + (p == 0 ? 0.0f : sums_[j + i]);
      }
    }
  }

 private:
  // Panels of `step` of columns [first, first + columns) of x, which are rows where it is `transposed`, `all` in all,
  // from element p of K on.
  void panels_of(bool transposed, const In* x, int64_t all, int64_t first, int64_t columns, int64_t p, int64_t step,
                 float* to, float* sums) const {
    const int64_t begin = p * kElement, depth = std::min(depth_ * kElement, s_.k - begin);
    const In* from = transposed ? x + first * s_.k + begin : x + begin * all + first;
    const int64_t row = transposed ? s_.k : all;
    if constexpr (kPairs)
      copy_pair_panels(transposed, from, row, columns, depth, step, reinterpret_cast<Pair*>(to), sums);
    else
      copy(transposed, from, row, columns, depth, step, to, sums);
  }
  void copy_bias(int64_t j, int64_t width) const {
    float* to = scratch_ + layout_.bias;
    std::memset(to, 0, round_up(width, kernel().columns) * sizeof(float));
    for (int64_t i = 0; s_.bias && i < width; ++i) to[i] = load(bias_[j + i]);
  }
  // Rows of pairs are multiplied where they lie, unless they all lie in one set of the first-level cache.
  bool reads_a_in_place() const {
    constexpr int64_t kSets = 4096;
    return kPairs && !s_.transpose_a && s_.k % kElement == 0 && s_.k * static_cast<int64_t>(sizeof(In)) % kSets != 0;
  }
  static int64_t panel_of(int64_t column, int64_t depth) {
    return column / kernel().columns * panel_size(kernel().columns, depth);
  }
  float* b_panel(int64_t jj, int64_t depth) const { return scratch_ + layout_.b + panel_of(jj, depth); }
  // Columns [j + jj, j + jj + width) of B.
  void panels_of_b(int64_t j, int64_t jj, int64_t width, int64_t p, int64_t depth, float* sums) const {
    panels_of(s_.transpose_b, b_, s_.n, j + jj, width, p, kernel().columns, b_panel(jj, depth),
              sums == nullptr ? nullptr : sums + jj);
  }
  // What the first `tiles` tiles of a column ask for, each of them `step` bytes behind the one before.
  struct Shares {
    LinesAhead first;
    int64_t step, tiles;
    LinesAhead of(int64_t tile) const {
      LinesAhead ahead = first;
      if (tile >= tiles) return {first.line};
      ahead.line += tile * step;
      return ahead;
    }
  };
  static Shares copied_ahead(const float* panel, int64_t depth) {
    constexpr int64_t kLine = 64, kLines = kPairs ? 4 : 1;
    const LinesAhead lines = {reinterpret_cast<const char*>(panel), kLine, 2 * kLine, kLines * kLine};
    return {lines, depth / kAsk * lines.step, kernel().columns * kAsk * 4 / lines.step};
  }
  // What a panel of pairs is copied from: pieces of rows that are a line each, or four rows at once where it lies by
  // columns.
  Shares source_ahead(int64_t j, int64_t p, int64_t depth) const {
    const In* from = b_ + (s_.transpose_b ? j * s_.k + p * kElement : p * kElement * s_.n + j);
    const int64_t row = (s_.transpose_b ? s_.k : s_.n) * static_cast<int64_t>(sizeof(In));
    const LinesAhead rows = {reinterpret_cast<const char*>(from), row, 2 * row, 4 * row};
    if (!s_.transpose_b) return {rows, depth / kAsk * 4 * row, kElement * kAsk / 4};
    return {{rows.line, row, 2 * row, kAsk * 4}, 4 * row, kernel().columns / 4};
  }
  // B's panels of pairs are copied one at a time, each before the first rows of A need it: tiles of the panel before
  // have asked for it. Those of floats, twice as many for as many multiplications, have all been copied.
  void block(int64_t i, int64_t rows, int64_t j, int64_t width, int64_t p, int64_t depth, float* sums) const {
    const TileKernel& k = kernel();
    float* a = scratch_ + layout_.a;
    if (!reads_a_in_place()) panels_of(!s_.transpose_a, a_, s_.m, i, rows, p, k.rows, a, nullptr);
    for (int64_t jj = 0; jj < width; jj += k.columns) {
      const int64_t next = jj + k.columns, wide = std::min(k.columns, width - jj);
      const bool to_copy = kPairs && i == 0;
      if (to_copy) panels_of_b(j, jj, wide, p, depth, sums);
      const Shares ahead = to_copy && next < width ? source_ahead(j + next, p, depth)
                                                   : copied_ahead(b_panel(next < width ? next : 0, depth), depth);
      for (int64_t ii = 0; ii < rows; ii += k.rows) {
        Tile t;
        t.ahead = ahead.of(ii / k.rows);
        t.depth = depth;
        t.a = a + ii / k.rows * panel_size(k.rows, depth);
        if (reads_a_in_place()) {
          t.a = reinterpret_cast<const float*>(a_ + (i + ii) * s_.k + p * kElement);
          t.a_row = s_.k / kElement;
        }
        t.b = b_panel(jj, depth);
        tile(t, i + ii, std::min(k.rows, rows - ii), j, jj, wide, p);
      }
    }
  }
  // One micro-tile at row i, column j + jj of C. A tile that hangs over C's edge, or whose C is no f32, is made in
  // scratch.
  void tile(Tile& t, int64_t i, int64_t rows, int64_t j, int64_t jj, int64_t width, int64_t p) const {
    const TileKernel& k = kernel();
    const bool first = p == 0 && !add_, last = p + t.depth == k_;
    Out* c = c_ + i * s_.n + j + jj;
    bool direct = false;
    if constexpr (std::is_same_v<Out, float>) direct = width == k.columns;
    if (direct) {
      t.c = reinterpret_cast<float*>(c);
      t.c_row = s_.n;
    } else if (keeps_sums_apart(s_)) {
      t.c_row = round_up(std::min(s_.n, kBlockColumns), k.columns);
      t.c = scratch_ + layout_.sums + i * t.c_row + jj;
    } else {
      t.c = scratch_ + layout_.sums;
      t.c_row = k.columns;
      if (!first) load_tile(c, t.c, rows, width);
    }
    t.from = first ? scratch_ + layout_.bias + jj : t.c;
    t.from_row = first ? 0 : t.c_row;
    const Activation activation = last ? s_.activation : Activation::none;
    if constexpr (kPairs && std::is_same_v<Out, bf16>) {
      if (last && activation == Activation::none && width == k.columns) {
        t.rounded = c;
        t.c_row = s_.n;
      }
    }
    k.tile(t, rows);
    if (t.rounded != nullptr) return;
    const bool partial_elsewhere = !direct && keeps_sums_apart(s_) && !last;
    if (partial_elsewhere || (direct && activation == Activation::none)) return;
    finish_tile(t.c, t.c_row, c, s_.n, rows, width, activation);
  }
  void load_tile(const Out* c, float* to, int64_t rows, int64_t width) const {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < width; ++j) to[r * kernel().columns + j] = load(c[r * s_.n + j]);
    }
  }

  const GemmShape& s_;
  Layout layout_;
  int64_t k_, depth_, rows_;  // elements of K, of a part of it, and rows of a block of A
  const In *a_, *b_, *bias_;
  Out* c_;
  float* scratch_;
  bool add_;
  float* sums_;
};

template <class In, class Out, bool kPairs = false>
void run(const GemmShape& s, const void* a, const void* b, const void* bias, void* c, void* scratch, bool add,
         float* sums) {
  using Made = Product<In, Out, kPairs>;
  const int64_t step = Made::kernel().columns, panels = (s.n + step - 1) / step;
  const int64_t threads = std::min<int64_t>(s.threads, panels);
  const int64_t share = round_up(Layout(s).total, 16);
  parallel_for(static_cast<int>(threads), threads, [&](int64_t i, int) {
    const Made product(s, static_cast<const In*>(a), static_cast<const In*>(b), static_cast<const In*>(bias),
                       static_cast<Out*>(c), static_cast<float*>(scratch) + i * share, add, sums);
    product.columns(panels * i / threads * step, std::min(s.n, panels * (i + 1) / threads * step));
  });
}

}  // namespace

int64_t packed_gemm_scratch_bytes(const GemmShape& shape) {
  return shape.threads * round_up(Layout(shape).total, 16) * static_cast<int64_t>(sizeof(float));
}

void packed_gemm(const GemmShape& s, const void* a, const void* b, const void* bias, void* c, void* scratch, bool add,
                 float* sums) {
  PRUN_CHECK(sums == nullptr || !s.transpose_b, "sums of columns of a B that lies by columns");
  PRUN_CHECK(!add || (s.output == Dtype::f32 && !s.bias), "sums are added to an f32 C without a bias");
  if (s.input == Dtype::f32 && s.output == Dtype::f32) return run<float, float>(s, a, b, bias, c, scratch, add, sums);
  if (s.input == Dtype::bf16 && multiplies_pairs()) {
    if (s.output == Dtype::f32) return run<bf16, float, true>(s, a, b, bias, c, scratch, add, sums);
    return run<bf16, bf16, true>(s, a, b, bias, c, scratch, add, sums);
  }
  if (s.input == Dtype::bf16 && s.output == Dtype::f32) return run<bf16, float>(s, a, b, bias, c, scratch, add, sums);
  if (s.input == Dtype::bf16 && s.output == Dtype::bf16) return run<bf16, bf16>(s, a, b, bias, c, scratch, add, sums);
  run<float, bf16>(s, a, b, bias, c, scratch, add, sums);
}

}  // namespace prun::cpu
