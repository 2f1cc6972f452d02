// See attention_bf16.h. Scores and their gradients lie with queries side by side, a row for each key: rounded as they
// are, rows are what dv and dk are products of, and with the rows of two keys as pairs what dq is a product of.
#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "ir/types.h"
#include "kernels/cpu/attention/attention_bf16.h"

#if defined(__x86_64__)
#include "kernels/cpu/attention/attention_vectors.h"
#include "kernels/cpu/gemm/overlapped_tile.h"

namespace prun::cpu {
namespace {

constexpr int64_t kLower = 2 * kTile,
                  kRight = kTile;  // of a square of scores: to the next 16 keys, the next 16 queries
constexpr int64_t kStrips = Bf16Backward::kQueries / kStrip;

// What a strip's queries have in vectors of 16: log-sum-exps in powers of two, and Σ out·dout.
struct StripRows {
  alignas(64) float shift[kStrip];
  alignas(64) float along[kStrip];
};

// A bit for each query of a strip that sees a key.
uint32_t seeing(const Sight& sight, int64_t key) {
  const int64_t blind = sight.more == 0 ? (key < sight.seen ? 0 : kStrip) : std::max<int64_t>(key - sight.seen + 1, 0);
  return blind >= kStrip ? 0u : 0xffffffffu << blind;
}

// Of 32 keys by a strip: f32 tiles of scores and of gradients of probabilities become P and dS in bf16, both in two
// parts. A few keys at a time, beside squares of sums.
class ScoreGradients {
 public:
  const float *scores, *dp;
  Pair *p_rows, *ds_rows;  // two tiles, `next_rows` apart
  int64_t next_rows, rest_of_rows;
  Pair* ds_pairs;  // two tiles, `next_pairs` apart
  int64_t next_pairs, rest_of_pairs;
  const StripRows* rows;
  float factor;
  Sight sight;
  int64_t first_key;
  int64_t at = kBlock;       // keys that are done
  int64_t keys_of_step = 2;  // an even number
  Prefetcher* ahead;
  int64_t lines_of_keys;  // that are asked for beside two keys

  void in_steps(int64_t steps) {
    keys_of_step = std::max<int64_t>(2, round_up((kBlock + steps - 1) / std::max<int64_t>(steps, 1), 2));
  }
  PRUN_AVX512_BF16 PRUN_INLINE void step() { go_on(std::min(kBlock, at + keys_of_step)); }
  PRUN_AVX512_BF16 void finish() { go_on(kBlock); }

 private:
  PRUN_AVX512_BF16 PRUN_INLINE void go_on(int64_t end) {
    const bool whole = sight.seen >= first_key + kBlock;
    for (; at < end; at += 2) whole ? two_keys<false>() : two_keys<true>();
  }
  template <bool kMasked>
  PRUN_AVX512_BF16 PRUN_INLINE void two_keys();
};

template <bool kMasked>
PRUN_AVX512_BF16 PRUN_INLINE void ScoreGradients::two_keys() {
  const __m512 times = _mm512_set1_ps(factor);
  const int64_t tile = at / kSide, key = at % kSide;
  const float *s_at = scores + tile * kLower + key * kSide, *dp_at = dp + tile * kLower + key * kSide;
  Pair *p_at = p_rows + tile * next_rows + key * kSide, *ds_at = ds_rows + tile * next_rows + key * kSide;
  __m512 ds[2][2], ds_rest[2][2];
  if (lines_of_keys > 0) ahead->fetch(lines_of_keys);
#pragma GCC unroll 2
  for (int64_t odd = 0; odd < 2; ++odd, s_at += kSide, dp_at += kSide, p_at += kSide, ds_at += kSide) {
    const uint32_t sees = kMasked ? seeing(sight, first_key + at + odd) : 0;
    __m512 p[2];
#pragma GCC unroll 2
    for (int64_t half = 0; half < 2; ++half) {
      const __m512 shift = _mm512_load_ps(rows->shift + half * kSide),
                   along = _mm512_load_ps(rows->along + half * kSide);
      p[half] = exp2_of(_mm512_fmsub_ps(_mm512_loadu_ps(s_at + half * kRight), times, shift));
      if (kMasked) p[half] = _mm512_maskz_mov_ps(static_cast<__mmask16>(sees >> half * kSide), p[half]);
      ds[odd][half] = _mm512_mul_ps(p[half], _mm512_sub_ps(_mm512_loadu_ps(dp_at + half * kRight), along));
      ds_rest[odd][half] = rounded_rest_of(ds[odd][half]);
    }
    _mm512_storeu_si512(p_at, paired(p[0], p[1]));
    _mm512_storeu_si512(p_at + rest_of_rows, paired(rounded_rest_of(p[0]), rounded_rest_of(p[1])));
    _mm512_storeu_si512(ds_at, paired(ds[odd][0], ds[odd][1]));
    _mm512_storeu_si512(ds_at + rest_of_rows, paired(ds_rest[odd][0], ds_rest[odd][1]));
  }
#pragma GCC unroll 2
  for (int64_t half = 0; half < 2; ++half) {
    Pair* to = ds_pairs + half * next_pairs + at / 2 * kSide;
    _mm512_storeu_si512(to, paired(ds[0][half], ds[1][half]));
    _mm512_storeu_si512(to + rest_of_pairs, paired(ds_rest[0][half], ds_rest[1][half]));
  }
}

// to[query][lane] = from[lane][query], for a strip.
void turn_strip(const float* from, int64_t lanes, float* to) {
  for (int64_t i = 0; i < lanes; i += kSide)
    for (int64_t r = 0; r < kStrip; r += kSide)
      transpose_tile(reinterpret_cast<const Pair*>(from + i * kStrip + r), kStrip,
                     reinterpret_cast<Pair*>(to + r * lanes + i), lanes);
}

// to[r] = Σ a·b over row r, 0 from `rows` on.
PRUN_AVX512_BF16 void dots(const HeadRows& a, const HeadRows& b, int64_t rows, int64_t head, float* to) {
  for (int64_t first = 0; first < kStrip; first += kSide, to += kSide) {
    __m512 sum[kSide];
    for (int64_t r = 0; r < kSide; ++r) {
      sum[r] = _mm512_setzero_ps();
      if (first + r >= rows) continue;
      for (int64_t i = 0; i < head; i += kBlock) {
        const __mmask32 here = head - i < kBlock ? (1u << (head - i)) - 1 : 0xffffffffu;
        const __m512i x = _mm512_maskz_loadu_epi16(here, a.from(first + r).data + i);
        const __m512i y = _mm512_maskz_loadu_epi16(here, b.from(first + r).data + i);
        sum[r] = _mm512_dpbf16_ps(sum[r], (__m512bh)x, (__m512bh)y);
      }
    }
    _mm512_storeu_ps(to, across<Sum>(sum));
  }
}

int64_t strips_of(int64_t queries) { return std::min(Bf16Backward::kQueries, round_up(queries, kStrip)) / kStrip; }

}  // namespace

int64_t bf16_backward_floats(int64_t keys, int64_t queries, int64_t head) {
  const int64_t all = round_up(keys, kBlock), lanes = round_up(head, kBlock), strips = strips_of(queries);
  return all * lanes * 7 / 2                                   // k, v and k turned; dk and dv
         + strips * kStrip * (lanes * 2 + 4 * kStrip + all)    // queries and dout, both ways; P and dS in two parts
         + 4 * kRegisterTile + (strips + 1) * kStrip * lanes;  // scores and gradients of probabilities; dq, both ways
}

Bf16Backward::Bf16Backward(const HeadRows& k, const HeadRows& v, int64_t keys, int64_t queries, int64_t head,
                           float* scratch)
    : head_(head),
      lanes_(round_up(head, kBlock)),
      steps_(lanes_ / kBlock),
      room_(round_up(keys, kBlock) / kBlock),
      strips_(strips_of(queries)) {
  const int64_t all = room_ * kBlock;
  const auto floats = [&](int64_t count) { return scratch += count, scratch - count; };
  const auto pairs = [&](int64_t count) { return reinterpret_cast<Pair*>(floats(count)); };
  for (Pair** to : {&k_, &v_, &k_turned_}) *to = pairs(all * lanes_ / 2);
  for (Pair** to : {&q_, &dout_, &q_paired_, &dout_paired_}) *to = pairs(strips_ * kStrip * lanes_ / 2);
  for (Rows& rows : rows_) rows = {pairs(strips_ * kRegisterTile), pairs(strips_ * kRegisterTile)};
  ds_pairs_ = pairs(strips_ * kStrip * all);
  scores_ = floats(4 * kRegisterTile);
  dq_turned_ = floats(strips_ * kStrip * lanes_);
  dq_ = floats(kStrip * lanes_);
  for (float** to : {&dk_, &dv_}) *to = floats(all * lanes_);
  for (int64_t i = 0; i < room_; ++i) {
    const HeadRows k_here = k.from(i * kBlock), v_here = v.from(i * kBlock);
    for (int64_t j = 0; j < steps_; ++j) {
      const int64_t high = std::min(kBlock, keys - i * kBlock), wide = std::min(kBlock, head - j * kBlock);
      const int64_t row = (2 * i * steps_ + j) * kTile, column = (2 * j * room_ + i) * kTile;
      copy_block(k_here.data + j * kBlock, k.stride, high, wide, PairLayout::rows, k_ + row, k_ + row + steps_ * kTile);
      copy_block(v_here.data + j * kBlock, v.stride, high, wide, PairLayout::rows, v_ + row, v_ + row + steps_ * kTile);
      copy_block(k_here.data + j * kBlock, k.stride, high, wide, PairLayout::transposed, k_turned_ + column,
                 k_turned_ + column + room_ * kTile);
    }
  }
}

void Bf16Backward::copy_queries(const HeadRows& from, int64_t rows, Pair* columns, Pair* paired) {
  for (int64_t s = 0; s * kStrip < rows; ++s) {
    for (int64_t j = 0; j < steps_; ++j) {
      const bf16* x = from.from(s * kStrip).data + j * kBlock;
      const int64_t high = std::min(kStrip, rows - s * kStrip), wide = std::min(kBlock, head_ - j * kBlock);
      Pair *left = columns + (2 * s * steps_ + j) * kTile, *first = paired + (2 * j * strips_ + s) * kTile;
      copy_block(x, from.stride, high, wide, PairLayout::columns, left, left + steps_ * kTile);
      copy_block(x, from.stride, high, wide, PairLayout::apart, first, first + strips_ * kTile);
    }
  }
}

void Bf16Backward::queries(const HeadRows& q, const HeadRows& out, const HeadRows& dout, int64_t rows,
                           const Sight& sight, float scale, const float* lse, Prefetcher& ahead) {
  copy_queries(q, rows, q_, q_paired_);
  copy_queries(dout, rows, dout_, dout_paired_);
  StripRows of_strip[kStrips];
  const int64_t strips = (rows + kStrip - 1) / kStrip;
  for (int64_t s = 0; s < strips; ++s) {
    const int64_t begin = s * kStrip, count = std::min(kStrip, rows - begin);
    dots(out.from(begin), dout.from(begin), count, head_, of_strip[s].along);
    for (int64_t i = 0; i < kStrip; ++i)  // exp of what no query has is 0
      of_strip[s].shift[i] = i < count ? lse[begin + i] * kLog2E : std::numeric_limits<float>::infinity();
  }
  int64_t first = 0;  // that sees a key of the step
  const auto sight_of = [&](int64_t s) { return Sight{sight.seen + s * kStrip * sight.more, sight.more}; };
  for (int64_t s = 0; s < strips; ++s) {
    seen_[s] = (sight.keys(std::min(rows, (s + 1) * kStrip)) + kBlock - 1) / kBlock;
  }
  ScoreGradients beside;
  beside.ahead = &ahead;
  const int64_t twos = std::accumulate(seen_, seen_ + strips, int64_t{0}) * kBlock / 2;
  beside.lines_of_keys = (ahead.lines() + twos - 1) / twos;
  float *scores = scores_, *other_scores = scores_ + 2 * kRegisterTile;
  Sums sums{0, 0, 0, 2 * steps_};
  for (int64_t i = 0; i < seen_[strips - 1]; ++i) {
    while (seen_[first] <= i) ++first;
    const PairTiles k{k_ + 2 * i * steps_ * kTile, steps_ * kTile}, v{v_ + 2 * i * steps_ * kTile, steps_ * kTile};
    const Rows& rows_here = rows_[i % 2];
    for (int64_t s = first; s < strips; ++s) {
      const int64_t at = 2 * s * steps_ * kTile;
      multiply_overlapped(k, {q_ + at, steps_ * kTile}, steps_, {scores, kSide, kRight, kLower}, false, beside);
      multiply_overlapped(v, {dout_ + at, steps_ * kTile}, steps_, {scores + kRegisterTile, kSide, kRight, kLower},
                          false, beside);
      beside.finish();
      if (s == first && i > 0) sums.next = 0;  // what the step before has made of all strips
      beside.scores = scores, beside.dp = scores + kRegisterTile;
      beside.p_rows = rows_here.p + s * kTile, beside.ds_rows = rows_here.ds + s * kTile;
      beside.next_rows = strips_ * kTile, beside.rest_of_rows = 2 * strips_ * kTile;
      beside.ds_pairs = ds_pairs_ + (2 * s * room_ + i) * kTile;
      beside.next_pairs = room_ * kTile, beside.rest_of_pairs = rest_of_pairs();
      beside.rows = of_strip + s, beside.factor = scale * kLog2E;
      beside.sight = sight_of(s);
      beside.first_key = i * kBlock, beside.at = 0;
      const int64_t share = (2 * steps_ - sums.next + strips - s - 1) / (strips - s);
      beside.in_steps(2 * share * (sums.end - sums.first) + 2 * steps_);
      add_keys(sums, share, beside);
      std::swap(scores, other_scores);
    }
    sums = {i, first, strips, 2 * steps_};
  }
  beside.in_steps(2 * std::accumulate(seen_, seen_ + strips - 1, int64_t{0}) * steps_);
  for (int64_t s = 0; s + 1 < strips; ++s) add_dq(s, beside);
  beside.finish();
  NoOverlap nothing;
  sums.next = 0;
  add_keys(sums, 2 * steps_, nothing);
  add_dq(strips - 1, nothing);
  added_ = std::max(added_, seen_[strips - 1]);
}

void Bf16Backward::finish() {
  for (float* to : {dk_, dv_}) std::fill(to + added_ * kBlock * lanes_, to + room_ * kBlock * lanes_, 0.0f);
}

template <class Beside>
void Bf16Backward::add_keys(Sums& sums, int64_t squares, Beside& beside) {
  const int64_t row = strips_ * kTile, count = sums.end - sums.first;
  const Rows& rows = rows_[sums.step % 2];
  for (const int64_t end = sums.next + squares; sums.next < end; ++sums.next) {
    const int64_t j = sums.next / 2;
    const bool of_v = sums.next % 2 == 0;
    const int64_t to = sums.step * kBlock * lanes_ + j * kBlock, from = (2 * j * strips_ + sums.first) * kTile;
    multiply_overlapped({(of_v ? rows.p : rows.ds) + sums.first * kTile, row, 2 * row},
                        {(of_v ? dout_paired_ : q_paired_) + from, row}, count,
                        {(of_v ? dv_ : dk_) + to, lanes_, kSide, kSide * lanes_}, sums.step < added_, beside);
  }
}

template <class Beside>
void Bf16Backward::add_dq(int64_t strip, Beside& beside) {
  for (int64_t j = 0; j < steps_; ++j)
    multiply_overlapped({k_turned_ + 2 * j * room_ * kTile, room_ * kTile},
                        {ds_pairs_ + 2 * strip * room_ * kTile, room_ * kTile, rest_of_pairs()}, seen_[strip],
                        {dq_turned_ + (strip * lanes_ + j * kBlock) * kStrip, kStrip, kSide, kSide * kStrip}, false,
                        beside);
}

const float* Bf16Backward::dq(int64_t strip) {
  turn_strip(dq_turned_ + strip * lanes_ * kStrip, lanes_, dq_);
  return dq_;
}

}  // namespace prun::cpu

#else

namespace prun::cpu {

int64_t bf16_backward_floats(int64_t, int64_t, int64_t) { return 0; }
Bf16Backward::Bf16Backward(const HeadRows&, const HeadRows&, int64_t, int64_t, int64_t, float*) {
  PRUN_CHECK(false, "no bf16");
}
void Bf16Backward::queries(const HeadRows&, const HeadRows&, const HeadRows&, int64_t, const Sight&, float,
                           const float*, Prefetcher&) {}
void Bf16Backward::finish() {}
const float* Bf16Backward::dq(int64_t) { return nullptr; }

}  // namespace prun::cpu

#endif
