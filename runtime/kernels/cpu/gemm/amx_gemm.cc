// See amx_gemm.h, and pair_tiles.h for how its tiles lie.
//
// Surprising fact: a bias and rounding cost nothing: sums of a square get both while tiles add up those of the next.
// Tiles that begin with the bias, 16 times the same row, cost a tenth.
#include "kernels/cpu/gemm/amx_gemm.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "device/bf16.h"
#include "kernels/cpu/gemm/finish_tile.h"
#include "kernels/cpu/gemm/pair_tiles.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/kernel_choice.h"
#include "kernels/cpu/parallel.h"

#if defined(__x86_64__)

namespace prun::cpu {
namespace {

constexpr int64_t kPackedBytes = int64_t{1} << 20;  // of B at a time: half of a second-level cache of 2 MiB
constexpr int64_t kWholeDepth = 2048;               // of K in one part
constexpr int64_t kPartDepth = 1024;                // of a part of a longer K: more columns, so A is read less often

// K in equal parts, each in tiles, and the columns of B that are copied at a time. Between parts sums wait in memory,
// which changes none of their bits: in C where it has room for them, otherwise in scratch.
int64_t parts_of(const GemmShape& s) { return s.k <= kWholeDepth ? 1 : (s.k + kPartDepth - 1) / kPartDepth; }
bool sums_wait_apart(const GemmShape& s) { return s.output == Dtype::bf16 && parts_of(s) > 1; }
int64_t depth_of(const GemmShape& s) { return round_up((s.k + parts_of(s) - 1) / parts_of(s), kBlock); }
int64_t columns_of(const GemmShape& s) {
  const int64_t fit = kPackedBytes / (depth_of(s) * 2) / kBlock * kBlock;
  return std::min(std::max(fit, 4 * kBlock), round_up(s.n, kBlock));
}

// Whether C's lines are asked for before they are written: where C comes from behind the second-level cache, and a
// square's few steps end before its lines are there. With more steps asking is 2 to 9 % slower.
bool asks_for_c(const GemmShape& s) {
  constexpr int64_t kFewSteps = 8;
  return s.k <= kFewSteps * kBlock && s.m * s.n * dtype_bytes(s.output) > second_level_cache() / 2;
}

// Bytes of scratch per thread.
struct Layout {
  int64_t a, b, bias, sums, total;
  explicit Layout(const GemmShape& s) {
    a = 0;
    b = a + kBlock * depth_of(s) * 2;
    bias = b + columns_of(s) * depth_of(s) * 2;
    sums = bias + columns_of(s) * 4;
    total = sums + (sums_wait_apart(s) ? round_up(s.m, kBlock) * columns_of(s) : 2 * kRegisterTile) * 4;
  }
};

// Eight tiles of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {kSide, kSide, kSide, kSide, kSide, kSide, kSide, kSide};
};
const TileConfig kTiles;

// A part of K.
struct Depth {
  int64_t begin, end;
  int64_t steps() const { return (end - begin + kBlock - 1) / kBlock; }
};

// Rows [first, first + rows) of a part of a matrix in tiles, those of 16 rows one after the other, zeros beyond `all`
// rows and beyond the part; `rows` is a multiple of 32. `down`: the matrix lies as [K, all], not [all, K].
// `pairs_down`: a row of a tile has the same pair of 16 rows (B), not 16 pairs of a row (A).
void copy_tiles(const bf16* x, int64_t all, int64_t k, Depth part, bool down, bool pairs_down, int64_t first,
                int64_t rows, Pair* copies) {
  const int64_t steps = part.steps();
  const PairLayout layout = down         ? (pairs_down ? PairLayout::paired : PairLayout::transposed)
                            : pairs_down ? PairLayout::columns
                                         : PairLayout::rows;
  const auto copy = [&](int64_t r, int64_t p) {
    Pair* upper = copies + ((r - first) / kSide * steps + (p - part.begin) / kBlock) * kTile;
    const int64_t count = std::clamp<int64_t>(all - r, 0, kBlock), deep = std::min(part.end - p, kBlock);
    if (down)
      copy_block(x + p * all + r, all, deep, count, layout, upper, upper + steps * kTile);
    else
      copy_block(x + r * k + p, k, count, deep, layout, upper, upper + steps * kTile);
  };
  // In the order in which x lies.
  if (down) {
    for (int64_t p = part.begin; p < part.end; p += kBlock)
      for (int64_t r = first; r < first + rows; r += kBlock) copy(r, p);
  } else {
    for (int64_t r = first; r < first + rows; r += kBlock)
      for (int64_t p = part.begin; p < part.end; p += kBlock) copy(r, p);
  }
}

// A square of sums that still waits for its bias and for being rounded, to the nearest; none: null.
struct Unrounded {
  const float* sums = nullptr;
  int64_t sums_row = 0;
  const float* bias = nullptr;
  bf16* c = nullptr;
  int64_t c_row = 0;
};

PRUN_AMX inline void round_rows(Unrounded& square, int64_t rows) {
  const __m512 left = _mm512_loadu_ps(square.bias), right = _mm512_loadu_ps(square.bias + kSide);
  for (int64_t r = 0; r < rows; ++r, square.sums += square.sums_row, square.c += square.c_row) {
    const __m512bh rounded =
        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(square.sums + kSide) + right, _mm512_loadu_ps(square.sums) + left);
    std::memcpy(static_cast<void*>(square.c), &rounded, sizeof rounded);
  }
}

PRUN_AMX void add_bias(const float* bias, float* sums, int64_t sums_row) {
  for (int64_t r = 0; r < kBlock; ++r, sums += sums_row)
    for (int64_t i = 0; i < kBlock; ++i) sums[i] += bias[i];
}

// Lines of 64 bytes that are needed next, some of those that a step will read asked for in each step. Beyond the matrix
// nothing happens.
struct Ahead {
  const std::byte* line;
  int64_t lines, row, step;  // bytes from a line to the next, and from those of a step to the next step's
};

// The square of C that is written next, a share of its 32 rows asked for in each step.
struct NextOfC {
  const std::byte* row = nullptr;  // null: it need not be
  int64_t stride = 0, lines = 0;   // bytes from a row to the next, and lines of one
};

// 32 rows of A, copied or where they lie.
struct Rows {
  const Pair* first;
  int64_t row, step, lower;  // pairs from a row to the next, from a tile to the next of K, to the lower tiles
};

// Adds the products of `steps` tiles of K to a square of sums, tiles 0 to 3. In each of the first steps `kRows` rows of
// another square are rounded: vectors and tiles are multiplied by units of their own.
template <int kRows>
PRUN_AMX void add_products(const Rows& a, const Pair* b, int64_t steps, Unrounded other, Ahead ahead, NextOfC next) {
  const Pair *upper = a.first, *lower = upper + a.lower, *right = b + steps * kTile;
  const int64_t a_bytes = a.row * 4, a_step = a.step,
                rows_of_c = next.row == nullptr ? 0 : (kBlock + steps - 1) / steps;
  for (int64_t p = 0; p < steps; ++p, upper += a_step, lower += a_step, b += kTile, right += kTile) {
    _tile_loadd(4, upper, a_bytes);
    _tile_loadd(6, b, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, lower, a_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
    if constexpr (kRows > 0)
      if (p < kBlock / kRows) round_rows(other, kRows);
    for (int64_t i = 0; i < ahead.lines; ++i) __builtin_prefetch(ahead.line + i * ahead.row, 0, 2);
    ahead.line += ahead.step;
    for (int64_t i = 0; i < rows_of_c; ++i, next.row += next.stride)
      for (int64_t j = 0; j < next.lines; ++j) __builtin_prefetch(next.row + j * kAlignBytes, 0, 2);
  }
}

// A square of C: 2 x 2 tiles of sums over `steps` tiles of K, added to those that are there. Rounds `other` meanwhile.
PRUN_AMX void square(const Rows& a, const Pair* b, int64_t steps, float* c, int64_t c_row, bool add,
                     const Unrounded& other, const Ahead& ahead, const NextOfC& next) {
  const int64_t c_bytes = c_row * 4;
  if (add) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + kSide, c_bytes);
    _tile_loadd(2, c + kSide * c_row, c_bytes);
    _tile_loadd(3, c + kSide * c_row + kSide, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  if (other.sums == nullptr)
    add_products<0>(a, b, steps, other, ahead, next);
  else if (steps >= 32)
    add_products<1>(a, b, steps, other, ahead, next);
  else if (steps >= 16)
    add_products<2>(a, b, steps, other, ahead, next);
  else if (steps >= 8)
    add_products<4>(a, b, steps, other, ahead, next);
  else
    add_products<kBlock>(a, b, steps, other, ahead, next);
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + kSide, c_bytes);
  _tile_stored(2, c + kSide * c_row, c_bytes);
  _tile_stored(3, c + kSide * c_row + kSide, c_bytes);
}

template <class Out>
class Product {
 public:
  Product(const GemmShape& shape, const void* a, const void* b, const void* bias, void* c, std::byte* scratch)
      : s_(shape),
        layout_(shape),
        a_(static_cast<const bf16*>(a)),
        b_(static_cast<const bf16*>(b)),
        bias_(static_cast<const bf16*>(bias)),
        c_(static_cast<Out*>(c)),
        scratch_(scratch) {}

  // Columns [begin, end) of C; `begin` is a multiple of 32.
  void columns(int64_t begin, int64_t end) {
    open_tiles();
    for (Piece here = piece(begin, 0, end); here.width > 0; here = behind(here, end)) {
      if (here.part.begin == 0) widen_bias(here);
      copy_b(here, at<Pair>(layout_.b));
      for (int64_t i = 0; i < s_.m; i += kBlock) rows(i, here);
      if (here.part.end < s_.k) continue;
      if (unrounded_.sums != nullptr) round_rows(unrounded_, kBlock);
      unrounded_ = {};
    }
    close_tiles();
  }

 private:
  static constexpr int64_t kElement = sizeof(Out);

  // The columns of B that are multiplied at a time.
  struct Piece {
    int64_t j, width;
    Depth part;
  };
  Piece piece(int64_t j, int64_t depth_begin, int64_t end) const {
    return {j, std::min(columns_of(s_), end - j), {depth_begin, std::min(depth_begin + depth_of(s_), s_.k)}};
  }
  Piece behind(const Piece& here, int64_t end) const {
    return here.part.end < s_.k ? piece(here.j, here.part.end, end) : piece(here.j + columns_of(s_), 0, end);
  }
  static int64_t squares(int64_t length) { return (length + kBlock - 1) / kBlock; }

  void widen_bias(const Piece& here) {
    float* to = at<float>(layout_.bias);
    for (int64_t i = 0; i < round_up(here.width, kBlock); ++i)
      to[i] = s_.bias && i < here.width ? to_float(bias_[here.j + i]) : 0;
  }
  void copy_b(const Piece& here, Pair* to) const {
    copy_tiles(b_, s_.n, s_.k, here.part, !s_.transpose_b, true, here.j, round_up(here.width, kBlock), to);
  }

  template <class T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(scratch_ + offset);
  }

  // Where they lie, unless they lie the other way, over an edge, or all in one set of the first-level cache.
  Rows rows_of_a(int64_t i, Depth part) const {
    if (!s_.transpose_a && s_.m - i >= kBlock && s_.k % kBlock == 0 && s_.k * 2 % 4096 != 0)
      return {reinterpret_cast<const Pair*>(a_ + i * s_.k + part.begin), s_.k / 2, kSide, kSide * s_.k / 2};
    Pair* to = at<Pair>(layout_.a);
    copy_tiles(a_, s_.m, s_.k, part, s_.transpose_a, false, i, kBlock, to);
    return {to, kSide, kTile, part.steps() * kTile};
  }

  // The 32 rows of A behind those of `i`, a share of them in each of `squares` squares; of the next columns the first.
  Ahead rows_ahead(int64_t i, int64_t squares, Depth part) const {
    const int64_t next = i + kBlock < s_.m ? i + kBlock : 0, share = (kBlock + squares - 1) / squares;
    if (s_.transpose_a)
      return {reinterpret_cast<const std::byte*>(a_ + part.begin * s_.m + next), share, s_.m * 2, kBlock * s_.m * 2};
    return {reinterpret_cast<const std::byte*>(a_ + next * s_.k + part.begin), share, s_.k * 2, kBlock * 2};
  }

  // A square of C: where it begins, what it takes of a square, and what is multiplied for it.
  struct Place {
    Out* c;
    int64_t high, wide;
    const float* bias;
    const Pair* b;
    Ahead ahead;
    NextOfC next;
    bool whole() const { return high == kBlock && wide == kBlock; }
  };

  void rows(int64_t i, const Piece& here) {
    const Depth part = here.part;
    const Rows a = rows_of_a(i, part);
    Place place{c_ + i * s_.n + here.j,
                std::min(kBlock, s_.m - i),
                0,
                at<float>(layout_.bias),
                at<Pair>(layout_.b),
                rows_ahead(i, squares(here.width), part),
                {nullptr, s_.n * kElement, kBlock * kElement / kAlignBytes}};
    const bool asks = asks_for_c(s_);
    for (int64_t jj = 0; jj < here.width; jj += kBlock) {
      place.wide = std::min(kBlock, here.width - jj);
      Out* const next = jj + kBlock < here.width ? place.c + kBlock : c_ + (i + kBlock) * s_.n + here.j;
      place.next.row = reinterpret_cast<const std::byte*>(asks ? next : nullptr);
      if constexpr (std::is_same_v<Out, float>)
        add_square(a, place, part);
      else
        round_square(a, place, part,
                     sums_wait_apart(s_)   ? i * columns_of(s_) + jj
                     : unrounded_in_first_ ? kRegisterTile
                                           : 0);
      place.c += kBlock, place.bias += kBlock, place.b += 2 * part.steps() * kTile;
      place.ahead.line += place.ahead.lines * place.ahead.row;
    }
  }

  // f32 sums wait in C; those over its edge are computed aside.
  void add_square(const Rows& a, const Place& place, Depth part) {
    const bool add = part.begin > 0, last = part.end == s_.k, whole = place.whole();
    float* c = place.c;
    float* sums = whole ? c : at<float>(layout_.sums);
    const int64_t sums_row = whole ? s_.n : kBlock;
    if (add && !whole) {
      std::fill(sums, sums + kRegisterTile, 0.0f);
      for (int64_t r = 0; r < place.high; ++r) std::copy_n(c + r * s_.n, place.wide, sums + r * kBlock);
    }
    square(a, place.b, part.steps(), sums, sums_row, add, {}, place.ahead, place.next);
    if (last && s_.bias) add_bias(place.bias, sums, sums_row);
    const Activation activation = last ? s_.activation : Activation::none;
    if (whole && activation == Activation::none) return;
    finish_tile(sums, sums_row, c, s_.n, place.high, place.wide, activation);
  }

  // Sums of bf16 results, `offset` behind the beginning of all that wait.
  void round_square(const Rows& a, const Place& place, Depth part, int64_t offset) {
    float* sums = at<float>(layout_.sums) + offset;
    const int64_t sums_row = sums_wait_apart(s_) ? columns_of(s_) : kBlock;
    square(a, place.b, part.steps(), sums, sums_row, part.begin > 0, unrounded_, place.ahead, place.next);
    unrounded_ = {};
    if (part.end < s_.k) return;
    if (place.whole() && s_.activation == Activation::none) {
      unrounded_ = {sums, sums_row, place.bias, place.c, s_.n};
      unrounded_in_first_ = !unrounded_in_first_;
      return;
    }
    if (s_.bias) add_bias(place.bias, sums, sums_row);
    finish_tile(sums, sums_row, place.c, s_.n, place.high, place.wide, s_.activation);
  }

  const GemmShape& s_;
  Layout layout_;
  const bf16 *a_, *b_;
  const bf16* bias_;
  Out* c_;
  std::byte* scratch_;
  Unrounded unrounded_;  // in one of the two squares of sums
  bool unrounded_in_first_ = false;
};

// C's columns in shares, one a thread; each begins with a multiple of 32.
template <class Out>
void run(const GemmShape& s, const void* a, const void* b, const void* bias, void* c, void* scratch) {
  const int64_t panels = (s.n + kBlock - 1) / kBlock, threads = std::min<int64_t>(s.threads, panels);
  const int64_t share = round_up(Layout(s).total, kAlignBytes);
  parallel_for(static_cast<int>(threads), threads, [&](int64_t i, int) {
    Product<Out>(s, a, b, bias, c, static_cast<std::byte*>(scratch) + i * share)
        .columns(panels * i / threads * kBlock, std::min(s.n, panels * (i + 1) / threads * kBlock));
  });
}

}  // namespace

bool tiles_are_allowed() {
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

bool has_amx() { return kernels() == Kernels::tiles; }

PRUN_AMX void open_tiles() { _tile_loadconfig(&kTiles); }
PRUN_AMX void close_tiles() { _tile_release(); }

bool takes_amx(const GemmShape& s) { return s.input == Dtype::bf16 && s.m >= kBlock && s.n >= kSide && has_amx(); }

int64_t amx_gemm_scratch_bytes(const GemmShape& s) { return s.threads * round_up(Layout(s).total, kAlignBytes); }

void amx_gemm(const GemmShape& s, const void* a, const void* b, const void* bias, void* c, void* scratch) {
  if (s.output == Dtype::f32) return run<float>(s, a, b, bias, c, scratch);
  run<bf16>(s, a, b, bias, c, scratch);
}

}  // namespace prun::cpu

#else

namespace prun::cpu {

bool tiles_are_allowed() { return false; }
bool has_amx() { return false; }
void open_tiles() {}
void close_tiles() {}
bool takes_amx(const GemmShape&) { return false; }
int64_t amx_gemm_scratch_bytes(const GemmShape&) { return 0; }
void amx_gemm(const GemmShape&, const void*, const void*, const void*, void*, void*) { PRUN_CHECK(false, "no AMX"); }

}  // namespace prun::cpu

#endif
