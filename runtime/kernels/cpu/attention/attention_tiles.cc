// See attention_tiles.h. The scores of a query block are stored in tiles of 16 queries by 16 keys, the probabilities in
// tiles of 16 queries by 32 keys, as pairs of keys that are 16 apart, the form that the GEMM with values reads.
#include "kernels/cpu/attention/attention_tiles.h"

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
constexpr int64_t kPiece = 2;                          // blocks of 32 keys in a piece
constexpr int64_t kRowsOfPart = 4;                     // queries in a part of a softmax
constexpr float kTooLarge = 0x1p80f;                   // limit of a sum

// The keys, of 32, that 16 queries attend to: all, some, or some of the first 16.
enum class Attended : uint8_t { all, some, some_of_16 };

// Returns a mask of the 16 keys from `key` on that a query attends to.
PRUN_AVX512_BF16 inline __mmask16 attended(const Mask& mask, int64_t query, int64_t key) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(mask.keys(query + 1) - key, 0, kSide)) - 1);
}

// Computes P = 2^(S · factor - shift) of some queries, split into hi and lo, and adds to their 16 partial sums.
template <Attended kAttended>
PRUN_AVX512_BF16 inline void probabilities(float* scores, int64_t query, int64_t key, const Mask& mask, float factor,
                                           bool first_shift, PieceSoftmax::Sums& block) {
  constexpr int64_t kRows = kRowsOfPart;
  constexpr int kVectors = kAttended == Attended::some_of_16 ? kRows : 2 * kRows;
  const __m512 times = _mm512_set1_ps(factor);
  __m512 x[kVectors];
#pragma GCC unroll 4
  for (int64_t r = 0; r < kRows; ++r) {
    if (first_shift) block.shift[query + r] = factor * scores[r * kSide];
    const __m512 less = _mm512_set1_ps(block.shift[query + r]);
    x[r] = _mm512_fmsub_ps(_mm512_load_ps(scores + r * kSide), times, less);
    if (kAttended != Attended::some_of_16)
      x[kVectors - kRows + r] = _mm512_fmsub_ps(_mm512_load_ps(scores + kRight + r * kSide), times, less);
  }
  exp2_of_each(x);
#pragma GCC unroll 4
  for (int64_t r = 0; r < kRows; ++r) {
    __m512 left = x[r], right = kAttended == Attended::some_of_16 ? _mm512_setzero_ps() : x[kVectors - kRows + r];
    if (kAttended != Attended::all) left = _mm512_maskz_mov_ps(attended(mask, query + r, key), left);
    if (kAttended == Attended::some) right = _mm512_maskz_mov_ps(attended(mask, query + r, key + kSide), right);
    const __m512 both = _mm512_add_ps(left, right);
    float* sums = block.of_keys[query + r];
    _mm512_store_ps(sums, key == 0 ? both : _mm512_add_ps(_mm512_load_ps(sums), both));
    const HiLo a = split_hi_lo(left), b = split_hi_lo(right);
    _mm512_store_si512(scores + r * kSide, pairs_of(a.hi, b.hi));
    _mm512_store_si512(scores + kRight + r * kSide, pairs_of(a.lo, b.lo));
  }
}

template <class F>
PRUN_AVX512_BF16 inline void with(Attended attends, const F& f) {
  if (attends == Attended::all)
    f.template operator()<Attended::all>();
  else if (attends == Attended::some)
    f.template operator()<Attended::some>();
  else
    f.template operator()<Attended::some_of_16>();
}

// Updates 16 partial maxima of each query with the scores of a piece.
PRUN_AVX512_BF16 void update_maxima(const PieceSoftmax::Piece& piece, float (*maxima)[kSide]) {
  for (int64_t i = 0; i < 2 * piece.key_blocks; ++i) {
    const int64_t key = piece.key + i * kSide;
    const float* scores = piece.scores + i / 2 * kRegisterTile + i % 2 * kRight;
    for (int64_t r = 0; r < kQueryBlock; ++r) {
      const __m512 found = _mm512_load_ps(scores + r / kSide * kLower + r % kSide * kSide),
                   before = _mm512_load_ps(maxima[r]);
      _mm512_store_ps(maxima[r], _mm512_mask_max_ps(before, attended(piece.mask, r, key), before, found));
    }
  }
}

template <class Of>
PRUN_AVX512_BF16 __m512 reduce_tile(const float* from) {
  __m512 rows[kSide];
#pragma GCC unroll 16
  for (int64_t r = 0; r < kSide; ++r) rows[r] = _mm512_load_ps(from + r * kSide);
  return reduce_rows<Of>(rows);
}

PRUN_AVX512_BF16 void shift_by(const float (*maxima)[kSide], float factor, float* shift) {
  for (int64_t i = 0; i < kQueryBlock; i += kSide)
    _mm512_store_ps(shift + i, _mm512_mul_ps(reduce_tile<Maximum>(maxima[i]), _mm512_set1_ps(factor)));
}

// Accumulates P·V of one or two key blocks into tile register SUM. A macro, because the intrinsics need the number of a
// register as a literal. Registers of values_in_tiles:
//
//      0, 1        accumulators, alternately: each is stored while the next is computed. Stores of four tiles at once
//                  would fill the store queue, on which the vector units then wait.
//      2, 3        V of the first and second key block
//      4, 5; 6, 7  P of the first and second key block, hi and lo
#define PRUN_VALUES_COLUMN(SUM, v, block, two, sums, row, add) \
  do {                                                         \
    if (add)                                                   \
      _tile_loadd(SUM, sums, row);                             \
    else                                                       \
      _tile_zero(SUM);                                         \
    _tile_loadd(2, v, 64);                                     \
    _tile_dpbf16ps(SUM, 4, 2);                                 \
    _tile_dpbf16ps(SUM, 5, 2);                                 \
    if (two) {                                                 \
      _tile_loadd(3, (v) + (block), 64);                       \
      _tile_dpbf16ps(SUM, 6, 3);                               \
      _tile_dpbf16ps(SUM, 7, 3);                               \
    }                                                          \
  } while (false)

// Computes result[32][lanes] = P·V, or += with `add`, of one or two blocks of 32 keys; `columns` tiles of values for
// each.
template <class Overlap>
PRUN_AMX void values_in_tiles(const float* p, int64_t key_blocks, const Pair* v, int64_t columns, float* result,
                              int64_t lanes, bool add, Overlap& overlap) {
  const int64_t row = 4 * lanes;
  for (int64_t half = 0; half < 2; ++half, result += kSide * lanes, p += kLower) {
    _tile_loadd(4, p, 64);
    _tile_loadd(5, p + kRight, 64);
    if (key_blocks == 2) {
      _tile_loadd(6, p + kRegisterTile, 64);
      _tile_loadd(7, p + kRegisterTile + kRight, 64);
    }
    for (int64_t i = 0; i < columns; i += 2) {
      float* to = result + i * kSide;
      PRUN_VALUES_COLUMN(0, v + i * kTile, columns * kTile, key_blocks == 2, to, row, add);
      overlap.step();
      if (i > 0) _tile_stored(1, to - kSide, row);
      PRUN_VALUES_COLUMN(1, v + (i + 1) * kTile, columns * kTile, key_blocks == 2, to + kSide, row, add);
      overlap.step();
      _tile_stored(0, to, row);
    }
    _tile_stored(1, result + (columns - 1) * kSide, row);
  }
}

// Computes scores of 32 queries of a head of at most 64 elements with blocks of 32 keys; the first 16 queries attend to
// `upper` keys. Registers: 0 and 1 accumulators, 2 and 3 keys, 4 to 7 queries.
template <class Overlap>
PRUN_AMX void scores_in_tiles(const Pair* q, const Pair* k, int64_t key_blocks, int64_t upper, float* scores,
                              Overlap& overlap) {
  _tile_loadd(4, q, 64);
  _tile_loadd(5, q + kTile, 64);
  _tile_loadd(6, q + 2 * kTile, 64);
  _tile_loadd(7, q + 3 * kTile, 64);
  for (int64_t i = 0; i < 2 * key_blocks; ++i, k += 2 * kTile) {
    const bool attends = i * kSide < upper;
    float* to = scores + i / 2 * kRegisterTile + i % 2 * kRight;
    _tile_loadd(2, k, 64);
    _tile_loadd(3, k + kTile, 64);
    if (attends) {
      _tile_zero(0);
      _tile_dpbf16ps(0, 4, 2);
      _tile_dpbf16ps(0, 5, 3);
    }
    _tile_zero(1);
    _tile_dpbf16ps(1, 6, 2);
    _tile_dpbf16ps(1, 7, 3);
    overlap.step();
    if (attends) _tile_stored(0, to, 64);
    _tile_stored(1, to + kLower, 64);
  }
}

// Copies a block as copy_block() does to columns. Whole blocks are transposed 16 rows at a time, because their rows
// were prefetched.
void pack_columns(const Bf16Rows& from, int64_t high, int64_t wide, Pair* first, Pair* second) {
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
  for (int64_t i = 0; i < kQueryBlock; i += kSide) {
    const __m512 sum = reduce_tile<Sum>(of_keys[i]);
    small += _mm512_cmp_ps_mask(sum, limit, _CMP_LT_OQ) == 0xffff;
    const auto log = (__m512)log2_f32((Floats<kSide>)sum);
    _mm512_store_ps(lse + i,
                    _mm512_mul_ps(_mm512_add_ps(_mm512_load_ps(shift + i), log), _mm512_set1_ps(1.0f / kLog2E)));
    _mm512_store_ps(inverse + i, _mm512_div_ps(_mm512_set1_ps(1.0f), sum));
  }
  return small == kQueryBlock / kSide;
}

void PieceSoftmax::begin(const Piece& piece, float factor, int64_t steps, int64_t lines, Prefetcher& prefetch) {
  piece_ = piece, factor_ = factor, prefetch_ = &prefetch;
  at_ = 0, end_ = piece.key_blocks * (kQueryBlock / kRowsOfPart), done_ = 0, steps_ = steps;
  lines_of_part_ = end_ == 0 ? 0 : (lines + end_ - 1) / end_;
}

PRUN_AVX512_BF16 void PieceSoftmax::part() {
  if (at_ == end_) return;
  if (lines_of_part_ > 0) prefetch_->fetch(lines_of_part_);
  constexpr int64_t kParts = kSide / kRowsOfPart;
  const int64_t block = at_ / (2 * kParts), half = at_ / kParts % 2, row = at_ % kParts * kRowsOfPart;
  ++at_;
  const int64_t key = piece_.key + block * kBlock, first = half * kSide, most = piece_.mask.keys(first + kSide) - key;
  const bool all = piece_.mask.keys(first + 1) - key >= kBlock;
  const Attended attends = all ? Attended::all : most > kSide ? Attended::some : Attended::some_of_16;
  float* scores = piece_.scores + block * kRegisterTile + half * kLower + row * kSide;
  with(attends, [&]<Attended kAttended>() PRUN_AVX512_BF16 {
    probabilities<kAttended>(scores, first + row, key, piece_.mask, factor_, piece_.first_shift && key == 0,
                             *piece_.sums);
  });
}

int64_t bf16_forward_floats(int64_t keys, int64_t head) {
  const int64_t all = round_up(keys, kBlock), lanes = round_up(head, kBlock);
  // k and v; q, scores of two pieces, result
  return all * lanes + kQueryBlock * (lanes / 2 + 2 * kPiece * kBlock + lanes);
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
  result_ = floats(kQueryBlock * lanes_);
  q_ = pairs(kQueryBlock * lanes_ / 2);
  k_ = {pairs(all * lanes_ / 2), nullptr, 0};
  v_ = {pairs(all * lanes_ / 2), nullptr, 0};
  if (begin == end) return;
  softmaxed_ = item(begin, 0, 0, 0);
  scored_ = after(softmaxed_);
  NoOverlap nothing;
  multiply_keys(softmaxed_, scores_, nothing);
  std::swap(scores_, other_scores_);
  Prefetcher none;
  advance(0, none);
}

Bf16Forward::Item Bf16Forward::item(int64_t head, int64_t query_block, int64_t first, int64_t number) const {
  Item made{.head = head, .query_block = query_block, .first = first, .number = number};
  if (head == end_) return made;
  const int64_t all = (mask_of(query_block).keys(rows_of(query_block)) + kBlock - 1) / kBlock;
  made.key_blocks = std::min(kPiece, all - first);
  made.last = first + made.key_blocks == all;
  made.rows = head_of_(heads_, head);
  return made;
}

Bf16Forward::Item Bf16Forward::after(const Item& before) const {
  if (!before.last) return item(before.head, before.query_block, before.first + before.key_blocks, before.number);
  if ((before.query_block + 1) * kQueryBlock < shape_.queries)
    return item(before.head, before.query_block + 1, 0, before.number + 1);
  return item(std::min(before.head + 1, end_), 0, 0, before.number + 1);
}

PieceSoftmax::Piece Bf16Forward::piece_of(const Item& item, float* scores, bool first_shift) {
  return {scores,     item.key_blocks, item.first * kBlock, mask_of(item.query_block), &sums_[item.number % 2],
          first_shift};
}

void Bf16Forward::pack_keys(const Item& item) {
  if (item.key_blocks == 0) return;
  if (k_.source != item.rows.k.data) k_.source = item.rows.k.data, k_.blocks = 0;
  for (int64_t& i = k_.blocks; i < item.first + item.key_blocks; ++i) {
    for (int64_t j = 0; j < steps_; ++j) {
      Pair* left = k_.tiles + (2 * i * steps_ + j) * kTile;
      pack_columns({item.rows.k.from(i * kBlock).data + j * kBlock, item.rows.k.stride},
                   std::min(kBlock, shape_.keys - i * kBlock), std::min(kBlock, shape_.head - j * kBlock), left,
                   left + steps_ * kTile);
    }
  }
}

void Bf16Forward::pack_values(const Item& item) {
  if (item.key_blocks == 0) return;
  if (v_.source != item.rows.v.data) v_.source = item.rows.v.data, v_.blocks = 0;
  for (int64_t& i = v_.blocks; i < item.first + item.key_blocks; ++i) {
    for (int64_t j = 0; j < steps_; ++j) {
      Pair* left = v_.tiles + 2 * (i * steps_ + j) * kTile;
      copy_block(item.rows.v.from(i * kBlock).data + j * kBlock, item.rows.v.stride,
                 std::min(kBlock, shape_.keys - i * kBlock), std::min(kBlock, shape_.head - j * kBlock),
                 PairLayout::apart, left, left + kTile);
    }
  }
}

void Bf16Forward::pack_queries(const Item& item) {
  if (item.key_blocks == 0 || q_of_ == item.number) return;
  q_of_ = item.number;
  const Bf16Rows q = item.rows.q.from(item.query_block * kQueryBlock);
  for (int64_t j = 0; j < steps_; ++j)
    copy_block(q.data + j * kBlock, q.stride, rows_of(item.query_block), std::min(kBlock, shape_.head - j * kBlock),
               PairLayout::rows, q_ + j * kTile, q_ + (steps_ + j) * kTile);
}

template <class Overlap>
void Bf16Forward::multiply_keys(const Item& item, float* scores, Overlap& overlap) {
  if (item.key_blocks == 0) return;
  pack_keys(item);
  pack_queries(item);
  if (has_amx() && steps_ == 2)
    return scores_in_tiles(q_, k_.tiles + 4 * item.first * kTile, item.key_blocks,
                           mask_of(item.query_block).keys(kSide) - item.first * kBlock, scores, overlap);
  for (int64_t i = 0; i < item.key_blocks; ++i)
    multiply_overlapped({q_, steps_ * kTile}, {k_.tiles + 2 * (item.first + i) * steps_ * kTile, steps_ * kTile},
                        steps_, {scores + i * kRegisterTile, kSide, kRight, kLower}, false, overlap);
}

template <class Overlap>
void Bf16Forward::multiply_values(const Item& item, const float* scores, Overlap& overlap) {
  if (item.key_blocks == 0) return;
  pack_values(item);
  if (has_amx())
    return values_in_tiles(scores, item.key_blocks, v_.tiles + 2 * item.first * steps_ * kTile, 2 * steps_, result_,
                           lanes_, item.first > 0, overlap);
  const Pair* p = reinterpret_cast<const Pair*>(scores);
  for (int64_t j = 0; j < steps_; ++j)
    multiply_overlapped({p, kLower, kRight, kRegisterTile},
                        {v_.tiles + 2 * (item.first * steps_ + j) * kTile, kTile, 0, 2 * steps_ * kTile},
                        item.key_blocks, {result_ + j * kBlock, lanes_, kSide, kSide * lanes_}, item.first > 0,
                        overlap);
}

// Returns the number of step() calls by the GEMMs of a stage.
int64_t Bf16Forward::steps_of(const Item& values, const Item& keys) const {
  const int64_t of_values = values.key_blocks == 0 ? 0 : 4 * steps_;
  return of_values + keys.key_blocks * std::max<int64_t>(steps_, 2);
}

// Advances the pipeline by a step (diagram in the header).
void Bf16Forward::advance(int64_t lines, Prefetcher& prefetch) {
  softmax_.begin(piece_of(softmaxed_, other_scores_, true), factor_, steps_of(weighed_, scored_), lines, prefetch);
  // Packs well before the GEMM, because loading a tile that vectors have just stored stalls.
  pack_keys(scored_), pack_queries(scored_);
  multiply_values(weighed_, scores_, softmax_);
  pack_values(softmaxed_);
  multiply_keys(scored_, scores_, softmax_);
  softmax_.finish();
  if (softmaxed_.last) finish_sums(softmaxed_);
  std::swap(scores_, other_scores_);
  weighed_ = softmaxed_;
  softmaxed_ = scored_;
  scored_ = after(scored_);
}

void Bf16Forward::finish_sums(const Item& item) {
  if (item.key_blocks > 0 && !sums_[item.number % 2].finish()) recompute(item);
}

// Recomputes a query block with its maxima as shifts, except the last GEMM with values, which the next stage runs.
void Bf16Forward::recompute(const Item& last) {
  PieceSoftmax::Sums& sums = sums_[last.number % 2];
  NoOverlap nothing;
  Prefetcher none;
  alignas(64) float maxima[kQueryBlock][kSide];
  std::fill(&maxima[0][0], &maxima[0][0] + kQueryBlock * kSide, -std::numeric_limits<float>::infinity());
  const auto each = [&](const auto& f) {
    for (Item at = item(last.head, last.query_block, 0, last.number); at.first <= last.first; at = after(at)) {
      multiply_keys(at, other_scores_, nothing);
      f(at);
      if (at.last) break;
    }
  };
  each([&](const Item& at) { update_maxima(piece_of(at, other_scores_, false), maxima); });
  shift_by(maxima, factor_, sums.shift);
  each([&](const Item& at) {
    softmax_.begin(piece_of(at, other_scores_, false), factor_, 1, 0, none);
    softmax_.finish();
    if (!at.last) multiply_values(at, other_scores_, nothing);
  });
  sums.finish();
}

Bf16Forward::Result Bf16Forward::next(Prefetcher& prefetch) {
  const PieceSoftmax::Sums& sums = sums_[weighed_.number % 2];
  for (bool last = false; !last;) {
    last = weighed_.last;
    advance(last ? prefetch.lines() : prefetch.lines() / 2, prefetch);
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
