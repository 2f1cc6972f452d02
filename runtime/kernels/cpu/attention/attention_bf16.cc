// See attention_bf16.h. Scores of a strip lie in tiles of 16 queries by 16 keys, the probabilities in tiles of 16
// queries by 32 keys, each 16 apart as pairs, as the next product takes them.
#include "kernels/cpu/attention/attention_bf16.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "ir/types.h"

#if defined(__x86_64__)
#include "kernels/cpu/attention/attention_vectors.h"
#include "kernels/cpu/gemm/overlapped_tile.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/vectors.h"

namespace prun::cpu {
namespace {

constexpr int64_t kLower = kTile, kRight = 2 * kTile;  // from a tile of scores to that of the next queries, next keys
constexpr int64_t kPiece = 2;                          // blocks of 32 keys
constexpr int64_t kRowsOfPart = 4;                     // of 32 keys
constexpr float kTooLarge = 0x1p80f;                   // of a sum

// Of 32 keys, what 16 queries see.
enum class Seen : uint8_t { all, some, some_of_16 };

// Keys from `key` on that a query sees.
PRUN_AVX512_BF16 inline __mmask16 seeing(const Sight& sight, int64_t query, int64_t key) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(sight.keys(query + 1) - key, 0, kSide)) - 1);
}

// Probabilities of some queries, 2^(score · factor - shift), in two parts; adds to their sums of every 16th key.
template <Seen kSeen>
PRUN_AVX512_BF16 inline void weigh(float* scores, int64_t query, int64_t key, const Sight& sight, float factor,
                                   bool guess, PieceSoftmax::Sums& strip) {
  constexpr int64_t kRows = kRowsOfPart;
  constexpr int kVectors = kSeen == Seen::some_of_16 ? kRows : 2 * kRows;
  const __m512 times = _mm512_set1_ps(factor);
  __m512 x[kVectors];
#pragma GCC unroll 4
  for (int64_t r = 0; r < kRows; ++r) {
    if (guess) strip.shift[query + r] = factor * scores[r * kSide];
    const __m512 less = _mm512_set1_ps(strip.shift[query + r]);
    x[r] = _mm512_fmsub_ps(_mm512_load_ps(scores + r * kSide), times, less);
    if (kSeen != Seen::some_of_16)
      x[kVectors - kRows + r] = _mm512_fmsub_ps(_mm512_load_ps(scores + kRight + r * kSide), times, less);
  }
  exp2_of_each(x);
#pragma GCC unroll 4
  for (int64_t r = 0; r < kRows; ++r) {
    __m512 left = x[r], right = kSeen == Seen::some_of_16 ? _mm512_setzero_ps() : x[kVectors - kRows + r];
    if (kSeen != Seen::all) left = _mm512_maskz_mov_ps(seeing(sight, query + r, key), left);
    if (kSeen == Seen::some) right = _mm512_maskz_mov_ps(seeing(sight, query + r, key + kSide), right);
    const __m512 both = _mm512_add_ps(left, right);
    float* sums = strip.of_keys[query + r];
    _mm512_store_ps(sums, key == 0 ? both : _mm512_add_ps(_mm512_load_ps(sums), both));
    const TwoParts a = in_two(left), b = in_two(right);
    _mm512_store_si512(scores + r * kSide, paired(a.upper, b.upper));
    _mm512_store_si512(scores + kRight + r * kSide, paired(a.rest, b.rest));
  }
}

template <class F>
PRUN_AVX512_BF16 inline void by(Seen seen, const F& f) {
  if (seen == Seen::all)
    f.template operator()<Seen::all>();
  else if (seen == Seen::some)
    f.template operator()<Seen::some>();
  else
    f.template operator()<Seen::some_of_16>();
}

// The largest of each query's scores with every 16th key of a piece, or of those before.
PRUN_AVX512_BF16 void largest(const PieceSoftmax::Piece& piece, float (*most)[kSide]) {
  for (int64_t i = 0; i < 2 * piece.blocks; ++i) {
    const int64_t key = piece.key + i * kSide;
    const float* scores = piece.squares + i / 2 * kRegisterTile + i % 2 * kRight;
    for (int64_t r = 0; r < kStrip; ++r) {
      const __m512 found = _mm512_load_ps(scores + r / kSide * kLower + r % kSide * kSide),
                   before = _mm512_load_ps(most[r]);
      _mm512_store_ps(most[r], _mm512_mask_max_ps(before, seeing(piece.sight, r, key), before, found));
    }
  }
}

template <class Of>
PRUN_AVX512_BF16 __m512 across_rows(const float* from) {
  __m512 rows[kSide];
#pragma GCC unroll 16
  for (int64_t r = 0; r < kSide; ++r) rows[r] = _mm512_load_ps(from + r * kSide);
  return across<Of>(rows);
}

PRUN_AVX512_BF16 void shift_by(const float (*most)[kSide], float factor, float* shift) {
  for (int64_t i = 0; i < kStrip; i += kSide)
    _mm512_store_ps(shift + i, _mm512_mul_ps(across_rows<Largest>(most[i]), _mm512_set1_ps(factor)));
}

// Products of a piece in tiles, of which each is stored beside the products of the next one: stores of four tiles at
// once fill the core's queue of stores, and vectors wait for it. Two sums are in turn in tiles 0 and 1.
//
// The intrinsics write a tile's number as text, so it cannot be a parameter of a function.
#define PRUN_WEIGH_COLUMN(SUM, v, block, two, sums, row, add) \
  do {                                                        \
    if (add)                                                  \
      _tile_loadd(SUM, sums, row);                            \
    else                                                      \
      _tile_zero(SUM);                                        \
    _tile_loadd(2, v, 64);                                    \
    _tile_dpbf16ps(SUM, 4, 2);                                \
    _tile_dpbf16ps(SUM, 5, 2);                                \
    if (two) {                                                \
      _tile_loadd(3, (v) + (block), 64);                      \
      _tile_dpbf16ps(SUM, 6, 3);                              \
      _tile_dpbf16ps(SUM, 7, 3);                              \
    }                                                         \
  } while (false)

// result[32][lanes] (+)= P·V of one or two blocks of 32 keys, whose values lie in `columns` tiles for each block.
template <class Beside>
PRUN_AMX void weigh_in_tiles(const float* squares, int64_t blocks, const Pair* v, int64_t columns, float* result,
                             int64_t lanes, bool add, Beside& beside) {
  const int64_t row = 4 * lanes;
  for (int64_t half = 0; half < 2; ++half, result += kSide * lanes, squares += kLower) {
    _tile_loadd(4, squares, 64);
    _tile_loadd(5, squares + kRight, 64);
    if (blocks == 2) {
      _tile_loadd(6, squares + kRegisterTile, 64);
      _tile_loadd(7, squares + kRegisterTile + kRight, 64);
    }
    for (int64_t i = 0; i < columns; i += 2) {
      float* to = result + i * kSide;
      PRUN_WEIGH_COLUMN(0, v + i * kTile, columns * kTile, blocks == 2, to, row, add);
      beside.step();
      if (i > 0) _tile_stored(1, to - kSide, row);
      PRUN_WEIGH_COLUMN(1, v + (i + 1) * kTile, columns * kTile, blocks == 2, to + kSide, row, add);
      beside.step();
      _tile_stored(0, to, row);
    }
    _tile_stored(1, result + (columns - 1) * kSide, row);
  }
}

// Scores of 32 queries, of a head of 64 elements at most, with `blocks` of 32 keys, of which `upper` are those that the
// first 16 queries see. Queries stay in tiles 4 to 7.
template <class Beside>
PRUN_AMX void score_in_tiles(const Pair* q, const Pair* k, int64_t blocks, int64_t upper, float* squares,
                             Beside& beside) {
  _tile_loadd(4, q, 64);
  _tile_loadd(5, q + kTile, 64);
  _tile_loadd(6, q + 2 * kTile, 64);
  _tile_loadd(7, q + 3 * kTile, 64);
  for (int64_t i = 0; i < 2 * blocks; ++i, k += 2 * kTile) {
    const bool sees = i * kSide < upper;
    float* to = squares + i / 2 * kRegisterTile + i % 2 * kRight;
    _tile_loadd(2, k, 64);
    _tile_loadd(3, k + kTile, 64);
    if (sees) {
      _tile_zero(0);
      _tile_dpbf16ps(0, 4, 2);
      _tile_dpbf16ps(0, 5, 3);
    }
    _tile_zero(1);
    _tile_dpbf16ps(1, 6, 2);
    _tile_dpbf16ps(1, 7, 3);
    beside.step();
    if (sees) _tile_stored(0, to, 64);
    _tile_stored(1, to + kLower, 64);
  }
}

// copy_block() of columns. Whole ones are turned by 16, as their rows were asked for before.
void copy_columns(const HeadRows& from, int64_t high, int64_t wide, Pair* first, Pair* second) {
  const bool even = from.stride % 2 == 0 && reinterpret_cast<uintptr_t>(from.data) % sizeof(Pair) == 0;
  if (high < kBlock || wide < kBlock || !even)
    return copy_block(from.data, from.stride, high, wide, PairLayout::columns, first, second);
  const Pair* pairs = reinterpret_cast<const Pair*>(from.data);
  transpose_tile(pairs, from.stride / 2, first, kSide);
  transpose_tile(pairs + kSide * from.stride / 2, from.stride / 2, second, kSide);
}

template <class Factor>
PRUN_AVX512_BF16 void round_each(const float* from, int64_t lanes, const Factor& factor, bf16* to, int64_t stride,
                                 int64_t rows, int64_t head) {
  for (int64_t r = 0; r < rows; ++r) {
    const __m512 times = _mm512_set1_ps(factor(r));
    const auto product = [&](int64_t i)
                             PRUN_AVX512_BF16 { return _mm512_mul_ps(times, _mm512_loadu_ps(from + r * lanes + i)); };
    int64_t i = 0;
    for (; i + kBlock <= head; i += kBlock)
      _mm512_storeu_si512(to + r * stride + i, (__m512i)_mm512_cvtne2ps_pbh(product(i + kSide), product(i)));
    for (; i < head; i += kSide) {
      const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(product(i));
      const int64_t count = std::min(head - i, kSide);
      _mm256_mask_storeu_epi16(to + r * stride + i, static_cast<__mmask16>((1u << count) - 1), rounded);
    }
  }
}

}  // namespace

void round_rows(const float* from, int64_t lanes, float factor, bf16* to, int64_t stride, int64_t rows, int64_t head) {
  round_each(
      from, lanes, [&](int64_t) { return factor; }, to, stride, rows, head);
}
void round_rows(const float* from, int64_t lanes, const float* factors, bf16* to, int64_t stride, int64_t rows,
                int64_t head) {
  round_each(
      from, lanes, [&](int64_t r) { return factors[r]; }, to, stride, rows, head);
}

PRUN_AVX512_BF16 bool PieceSoftmax::Sums::finish() {
  const __m512 limit = _mm512_set1_ps(kTooLarge);
  unsigned small = 0;
  for (int64_t i = 0; i < kStrip; i += kSide) {
    const __m512 sum = across_rows<Sum>(of_keys[i]);
    small += _mm512_cmp_ps_mask(sum, limit, _CMP_LT_OQ) == 0xffff;
    const auto log = (__m512)log2_f32((Floats<kSide>)sum);
    _mm512_store_ps(lse + i,
                    _mm512_mul_ps(_mm512_add_ps(_mm512_load_ps(shift + i), log), _mm512_set1_ps(1.0f / kLog2E)));
    _mm512_store_ps(inverse + i, _mm512_div_ps(_mm512_set1_ps(1.0f), sum));
  }
  return small == kStrip / kSide;
}

void PieceSoftmax::begin(const Piece& piece, float factor, int64_t steps, int64_t lines, Prefetcher& ahead) {
  piece_ = piece, factor_ = factor, ahead_ = &ahead;
  at_ = 0, end_ = piece.blocks * (kStrip / kRowsOfPart), done_ = 0, steps_ = steps;
  lines_of_part_ = end_ == 0 ? 0 : (lines + end_ - 1) / end_;
}

PRUN_AVX512_BF16 void PieceSoftmax::part() {
  if (at_ == end_) return;
  if (lines_of_part_ > 0) ahead_->fetch(lines_of_part_);
  constexpr int64_t kParts = kSide / kRowsOfPart;
  const int64_t block = at_ / (2 * kParts), half = at_ / kParts % 2, row = at_ % kParts * kRowsOfPart;
  ++at_;
  const int64_t key = piece_.key + block * kBlock, first = half * kSide, most = piece_.sight.keys(first + kSide) - key;
  const bool all = piece_.sight.keys(first + 1) - key >= kBlock;
  const Seen seen = all ? Seen::all : most > kSide ? Seen::some : Seen::some_of_16;
  float* scores = piece_.squares + block * kRegisterTile + half * kLower + row * kSide;
  by(seen, [&]<Seen kSeen>() PRUN_AVX512_BF16 {
    weigh<kSeen>(scores, first + row, key, piece_.sight, factor_, piece_.guess && key == 0, *piece_.sums);
  });
}

int64_t bf16_forward_floats(int64_t keys, int64_t head) {
  const int64_t all = round_up(keys, kBlock), lanes = round_up(head, kBlock);
  return all * lanes + kStrip * (lanes / 2 + 2 * kPiece * kBlock + lanes);  // k and v; q, scores of two pieces, result
}

Bf16Forward::Bf16Forward(const Shape& shape, int64_t begin, int64_t end, const void* heads, HeadOf head_of,
                         float* scratch)
    : shape_(shape),
      factor_(shape.scale * kLog2E),
      end_(end),
      heads_(heads),
      head_of_(head_of),
      lanes_(round_up(shape.head, kBlock)),
      steps_(lanes_ / kBlock) {
  const int64_t all = round_up(shape.keys, kBlock);
  const auto floats = [&](int64_t count) { return scratch += count, scratch - count; };
  const auto pairs = [&](int64_t count) { return reinterpret_cast<Pair*>(floats(count)); };
  scores_ = floats(kPiece * kRegisterTile), other_scores_ = floats(kPiece * kRegisterTile);
  result_ = floats(kStrip * lanes_);
  q_ = pairs(kStrip * lanes_ / 2);
  k_ = {pairs(all * lanes_ / 2), nullptr, 0};
  v_ = {pairs(all * lanes_ / 2), nullptr, 0};
  if (begin == end) return;
  next_ = item(begin, 0, 0, 0);
  last_ = behind(next_);
  NoOverlap nothing;
  score(next_, scores_, nothing);
  std::swap(scores_, other_scores_);
  Prefetcher none;
  turn(0, none);
}

Bf16Forward::Item Bf16Forward::item(int64_t head, int64_t strip, int64_t first, int64_t number) const {
  Item made{.head = head, .strip = strip, .first = first, .number = number};
  if (head == end_) return made;
  const int64_t blocks = (sight_of(strip).keys(rows_of(strip)) + kBlock - 1) / kBlock;
  made.blocks = std::min(kPiece, blocks - first);
  made.last = first + made.blocks == blocks;
  made.rows = head_of_(heads_, head);
  return made;
}

Bf16Forward::Item Bf16Forward::behind(const Item& before) const {
  if (!before.last) return item(before.head, before.strip, before.first + before.blocks, before.number);
  if ((before.strip + 1) * kStrip < shape_.queries) return item(before.head, before.strip + 1, 0, before.number + 1);
  return item(std::min(before.head + 1, end_), 0, 0, before.number + 1);
}

PieceSoftmax::Piece Bf16Forward::piece_of(const Item& item, float* squares, bool guess) {
  return {squares, item.blocks, item.first * kBlock, sight_of(item.strip), &sums_[item.number % 2], guess};
}

void Bf16Forward::copy_keys(const Item& item) {
  if (item.blocks == 0) return;
  if (k_.of != item.rows.k.data) k_.of = item.rows.k.data, k_.blocks = 0;
  for (int64_t& i = k_.blocks; i < item.first + item.blocks; ++i) {
    for (int64_t j = 0; j < steps_; ++j) {
      Pair* left = k_.tiles + (2 * i * steps_ + j) * kTile;
      copy_columns({item.rows.k.from(i * kBlock).data + j * kBlock, item.rows.k.stride},
                   std::min(kBlock, shape_.keys - i * kBlock), std::min(kBlock, shape_.head - j * kBlock), left,
                   left + steps_ * kTile);
    }
  }
}

void Bf16Forward::copy_values(const Item& item) {
  if (item.blocks == 0) return;
  if (v_.of != item.rows.v.data) v_.of = item.rows.v.data, v_.blocks = 0;
  for (int64_t& i = v_.blocks; i < item.first + item.blocks; ++i) {
    for (int64_t j = 0; j < steps_; ++j) {
      Pair* left = v_.tiles + 2 * (i * steps_ + j) * kTile;
      copy_block(item.rows.v.from(i * kBlock).data + j * kBlock, item.rows.v.stride,
                 std::min(kBlock, shape_.keys - i * kBlock), std::min(kBlock, shape_.head - j * kBlock),
                 PairLayout::apart, left, left + kTile);
    }
  }
}

void Bf16Forward::copy_queries(const Item& item) {
  if (item.blocks == 0 || q_of_ == item.number) return;
  q_of_ = item.number;
  const HeadRows q = item.rows.q.from(item.strip * kStrip);
  for (int64_t j = 0; j < steps_; ++j)
    copy_block(q.data + j * kBlock, q.stride, rows_of(item.strip), std::min(kBlock, shape_.head - j * kBlock),
               PairLayout::rows, q_ + j * kTile, q_ + (steps_ + j) * kTile);
}

template <class Beside>
void Bf16Forward::score(const Item& item, float* squares, Beside& beside) {
  if (item.blocks == 0) return;
  copy_keys(item);
  copy_queries(item);
  if (has_amx() && steps_ == 2)
    return score_in_tiles(q_, k_.tiles + 4 * item.first * kTile, item.blocks,
                          sight_of(item.strip).keys(kSide) - item.first * kBlock, squares, beside);
  for (int64_t i = 0; i < item.blocks; ++i)
    multiply_overlapped({q_, steps_ * kTile}, {k_.tiles + 2 * (item.first + i) * steps_ * kTile, steps_ * kTile},
                        steps_, {squares + i * kRegisterTile, kSide, kRight, kLower}, false, beside);
}

template <class Beside>
void Bf16Forward::weigh_values(const Item& item, const float* squares, Beside& beside) {
  if (item.blocks == 0) return;
  copy_values(item);
  if (has_amx())
    return weigh_in_tiles(squares, item.blocks, v_.tiles + 2 * item.first * steps_ * kTile, 2 * steps_, result_, lanes_,
                          item.first > 0, beside);
  const Pair* p = reinterpret_cast<const Pair*>(squares);
  for (int64_t j = 0; j < steps_; ++j)
    multiply_overlapped({p, kLower, kRight, kRegisterTile},
                        {v_.tiles + 2 * (item.first * steps_ + j) * kTile, kTile, 0, 2 * steps_ * kTile}, item.blocks,
                        {result_ + j * kBlock, lanes_, kSide, kSide * lanes_}, item.first > 0, beside);
}

// How often products call step().
int64_t Bf16Forward::steps_of(const Item& weighed, const Item& scored) const {
  const int64_t values = weighed.blocks == 0 ? 0 : 4 * steps_;
  return values + scored.blocks * std::max<int64_t>(steps_, 2);
}

void Bf16Forward::turn(int64_t lines, Prefetcher& ahead) {
  softmax_.begin(piece_of(next_, other_scores_, true), factor_, steps_of(now_, last_), lines, ahead);
  // Tiles that vectors have just stored are loaded late.
  copy_keys(last_), copy_queries(last_);
  weigh_values(now_, scores_, softmax_);
  copy_values(next_);
  score(last_, scores_, softmax_);
  softmax_.finish();
  if (next_.last) finish_sums(next_);
  std::swap(scores_, other_scores_);
  now_ = next_;
  next_ = last_;
  last_ = behind(last_);
}

void Bf16Forward::finish_sums(const Item& item) {
  if (item.blocks > 0 && !sums_[item.number % 2].finish()) again(item);
}

// A strip whose largest scores are needed: all of it but the product of the last probabilities and values.
void Bf16Forward::again(const Item& last) {
  PieceSoftmax::Sums& sums = sums_[last.number % 2];
  NoOverlap nothing;
  Prefetcher none;
  alignas(64) float most[kStrip][kSide];
  std::fill(&most[0][0], &most[0][0] + kStrip * kSide, -std::numeric_limits<float>::infinity());
  const auto each = [&](const auto& f) {
    for (Item at = item(last.head, last.strip, 0, last.number); at.first <= last.first; at = behind(at)) {
      score(at, other_scores_, nothing);
      f(at);
      if (at.last) break;
    }
  };
  each([&](const Item& at) { largest(piece_of(at, other_scores_, false), most); });
  shift_by(most, factor_, sums.shift);
  each([&](const Item& at) {
    softmax_.begin(piece_of(at, other_scores_, false), factor_, 1, 0, none);
    softmax_.finish();
    if (!at.last) weigh_values(at, other_scores_, nothing);
  });
  sums.finish();
}

Bf16Forward::Result Bf16Forward::next(Prefetcher& ahead) {
  const PieceSoftmax::Sums& sums = sums_[now_.number % 2];
  for (bool last = false; !last;) {
    last = now_.last;
    turn(last ? ahead.lines() : ahead.lines() / 2, ahead);
  }
  return {result_, sums.inverse, sums.lse};
}

}  // namespace prun::cpu

#else

namespace prun::cpu {

void round_rows(const float*, int64_t, float, bf16*, int64_t, int64_t, int64_t) {}
void round_rows(const float*, int64_t, const float*, bf16*, int64_t, int64_t, int64_t) {}
int64_t bf16_forward_floats(int64_t, int64_t) { return 0; }
Bf16Forward::Bf16Forward(const Shape& shape, int64_t, int64_t, const void*, HeadOf, float*)
    : shape_(shape), factor_(0) {
  PRUN_CHECK(false, "no bf16");
}
Bf16Forward::Result Bf16Forward::next(Prefetcher&) { return {}; }

}  // namespace prun::cpu

#endif
