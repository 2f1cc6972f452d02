// See attention_tiles.h. Scores and their gradients are stored with a row for each key and a column for each query.
// Rounded to bf16, the rows are the A of dv = Pᵀ·dO and dk = dSᵀ·Q; two rows as pairs are the B of dqᵀ = Kᵀ·dSᵀ.
#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "ir/types.h"
#include "kernels/cpu/attention/attention_tiles.h"

#if defined(__x86_64__)
#include "kernels/cpu/attention/attention_vectors.h"
#include "kernels/cpu/gemm/overlapped_tile.h"

namespace prun::cpu {
namespace {

constexpr int64_t kLower = 2 * kTile, kRight = kTile;  // from a tile of scores to the next 16 keys, the next 16 queries
constexpr int64_t kQueryBlocks = Bf16Backward::kQueries / kQueryBlock;

// Statistics of the queries of a block: log-sum-exps in powers of two, and Σ out·dout.
struct QueryStatistics {
  alignas(64) float shift[kQueryBlock];
  alignas(64) float dots[kQueryBlock];
};

// Returns a bit for each query of a block: set if it attends to a key.
uint32_t attending(const Mask& mask, int64_t key) {
  const int64_t masked =
      mask.step == 0 ? (key < mask.attended ? 0 : kQueryBlock) : std::max<int64_t>(key - mask.attended + 1, 0);
  return masked >= kQueryBlock ? 0u : 0xffffffffu << masked;
}

// Converts f32 tiles of S and dP, 32 keys by a query block, to P and dS in bf16, both split into hi and lo. Computes a
// few keys at a time, overlapped with GEMMs.
class ScoreGradients {
 public:
  const float *scores, *dp;
  Pair *p_rows, *ds_rows;  // two tiles, `next_rows` apart; lo is `lo_of_rows` after hi
  int64_t next_rows, lo_of_rows;
  Pair* ds_pairs;  // two tiles, `next_pairs` apart
  int64_t next_pairs, lo_of_pairs;
  const QueryStatistics* rows;
  float factor;
  Mask mask;
  int64_t first_key;
  int64_t at = kBlock;       // keys that are done
  int64_t keys_of_step = 2;  // an even number
  Prefetcher* prefetch;
  int64_t lines_of_keys;  // cache lines to prefetch per two keys

  void in_steps(int64_t steps) {
    keys_of_step = std::max<int64_t>(2, round_up((kBlock + steps - 1) / std::max<int64_t>(steps, 1), 2));
  }
  PRUN_AVX512_BF16 PRUN_INLINE void step() { advance(std::min(kBlock, at + keys_of_step)); }
  PRUN_AVX512_BF16 void finish() { advance(kBlock); }

 private:
  PRUN_AVX512_BF16 PRUN_INLINE void advance(int64_t end) {
    const bool whole = mask.attended >= first_key + kBlock;
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
  __m512 ds[2][2], ds_lo[2][2];
  if (lines_of_keys > 0) prefetch->fetch(lines_of_keys);
#pragma GCC unroll 2
  for (int64_t odd = 0; odd < 2; ++odd, s_at += kSide, dp_at += kSide, p_at += kSide, ds_at += kSide) {
    const uint32_t attends = kMasked ? attending(mask, first_key + at + odd) : 0;
    __m512 p[2];
#pragma GCC unroll 2
    for (int64_t half = 0; half < 2; ++half) {
      const __m512 shift = _mm512_load_ps(rows->shift + half * kSide), dots = _mm512_load_ps(rows->dots + half * kSide);
      p[half] = exp2_of(_mm512_fmsub_ps(_mm512_loadu_ps(s_at + half * kRight), times, shift));
      if (kMasked) p[half] = _mm512_maskz_mov_ps(static_cast<__mmask16>(attends >> half * kSide), p[half]);
      ds[odd][half] = _mm512_mul_ps(p[half], _mm512_sub_ps(_mm512_loadu_ps(dp_at + half * kRight), dots));
      ds_lo[odd][half] = lo_of(ds[odd][half]);
    }
    _mm512_storeu_si512(p_at, pairs_of(p[0], p[1]));
    _mm512_storeu_si512(p_at + lo_of_rows, pairs_of(lo_of(p[0]), lo_of(p[1])));
    _mm512_storeu_si512(ds_at, pairs_of(ds[odd][0], ds[odd][1]));
    _mm512_storeu_si512(ds_at + lo_of_rows, pairs_of(ds_lo[odd][0], ds_lo[odd][1]));
  }
#pragma GCC unroll 2
  for (int64_t half = 0; half < 2; ++half) {
    Pair* to = ds_pairs + half * next_pairs + at / 2 * kSide;
    _mm512_storeu_si512(to, pairs_of(ds[0][half], ds[1][half]));
    _mm512_storeu_si512(to + lo_of_pairs, pairs_of(ds_lo[0][half], ds_lo[1][half]));
  }
}

// Transposes a query block: to[query][lane] = from[lane][query].
void transpose_block(const float* from, int64_t lanes, float* to) {
  for (int64_t i = 0; i < lanes; i += kSide)
    for (int64_t r = 0; r < kQueryBlock; r += kSide)
      transpose_tile(reinterpret_cast<const Pair*>(from + i * kQueryBlock + r), kQueryBlock,
                     reinterpret_cast<Pair*>(to + r * lanes + i), lanes);
}

// Computes to[r] = Σ a·b over row r; 0 from `rows` on.
PRUN_AVX512_BF16 void dots(const Bf16Rows& a, const Bf16Rows& b, int64_t rows, int64_t head, float* to) {
  for (int64_t first = 0; first < kQueryBlock; first += kSide, to += kSide) {
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
    _mm512_storeu_ps(to, reduce_rows<Sum>(sum));
  }
}

int64_t query_blocks_of(int64_t queries) {
  return std::min(Bf16Backward::kQueries, round_up(queries, kQueryBlock)) / kQueryBlock;
}

}  // namespace

int64_t bf16_backward_floats(int64_t keys, int64_t queries, int64_t head) {
  const int64_t all = round_up(keys, kBlock), lanes = round_up(head, kBlock), blocks = query_blocks_of(queries);
  return all * lanes * 7 / 2                                           // k, v and k transposed; dk and dv
         + blocks * kQueryBlock * (lanes * 2 + 4 * kQueryBlock + all)  // queries and dout, twice; P and dS, hi and lo
         + 4 * kRegisterTile + (blocks + 1) * kQueryBlock * lanes;     // S and dP, two of each; dq and its transpose
}

Bf16Backward::Bf16Backward(const Bf16Rows& k, const Bf16Rows& v, int64_t keys, int64_t queries, int64_t head,
                           float* scratch)
    : head_(head),
      lanes_(round_up(head, kBlock)),
      steps_(lanes_ / kBlock),
      key_blocks_(round_up(keys, kBlock) / kBlock),
      query_blocks_(query_blocks_of(queries)) {
  const int64_t all = key_blocks_ * kBlock;
  const auto floats = [&](int64_t count) { return scratch += count, scratch - count; };
  const auto pairs = [&](int64_t count) { return reinterpret_cast<Pair*>(floats(count)); };
  for (Pair** to : {&k_, &v_, &k_transposed_}) *to = pairs(all * lanes_ / 2);
  for (Pair** to : {&q_, &dout_, &q_down_, &dout_down_}) *to = pairs(query_blocks_ * kQueryBlock * lanes_ / 2);
  for (StepGradients& step : step_) step = {pairs(query_blocks_ * kRegisterTile), pairs(query_blocks_ * kRegisterTile)};
  ds_pairs_ = pairs(query_blocks_ * kQueryBlock * all);
  scores_ = floats(4 * kRegisterTile);
  dq_transposed_ = floats(query_blocks_ * kQueryBlock * lanes_);
  dq_ = floats(kQueryBlock * lanes_);
  for (float** to : {&dk_, &dv_}) *to = floats(all * lanes_);
  for (int64_t i = 0; i < key_blocks_; ++i) {
    const Bf16Rows k_here = k.from(i * kBlock), v_here = v.from(i * kBlock);
    for (int64_t j = 0; j < steps_; ++j) {
      const int64_t high = std::min(kBlock, keys - i * kBlock), wide = std::min(kBlock, head - j * kBlock);
      const int64_t row = (2 * i * steps_ + j) * kTile, column = (2 * j * key_blocks_ + i) * kTile;
      copy_block(k_here.data + j * kBlock, k.stride, high, wide, PairLayout::rows, k_ + row, k_ + row + steps_ * kTile);
      copy_block(v_here.data + j * kBlock, v.stride, high, wide, PairLayout::rows, v_ + row, v_ + row + steps_ * kTile);
      copy_block(k_here.data + j * kBlock, k.stride, high, wide, PairLayout::transposed, k_transposed_ + column,
                 k_transposed_ + column + key_blocks_ * kTile);
    }
  }
}

void Bf16Backward::pack_queries(const Bf16Rows& from, int64_t rows, Pair* columns, Pair* down) {
  for (int64_t s = 0; s * kQueryBlock < rows; ++s) {
    for (int64_t j = 0; j < steps_; ++j) {
      const bf16* x = from.from(s * kQueryBlock).data + j * kBlock;
      const int64_t high = std::min(kQueryBlock, rows - s * kQueryBlock), wide = std::min(kBlock, head_ - j * kBlock);
      Pair *left = columns + (2 * s * steps_ + j) * kTile, *first = down + (2 * j * query_blocks_ + s) * kTile;
      copy_block(x, from.stride, high, wide, PairLayout::columns, left, left + steps_ * kTile);
      copy_block(x, from.stride, high, wide, PairLayout::apart, first, first + query_blocks_ * kTile);
    }
  }
}

void Bf16Backward::queries(const Bf16Rows& q, const Bf16Rows& out, const Bf16Rows& dout, int64_t rows, const Mask& mask,
                           float scale, const float* lse, Prefetcher& prefetch) {
  pack_queries(q, rows, q_, q_down_);
  pack_queries(dout, rows, dout_, dout_down_);
  QueryStatistics statistics[kQueryBlocks];
  const int64_t blocks = (rows + kQueryBlock - 1) / kQueryBlock;
  for (int64_t s = 0; s < blocks; ++s) {
    const int64_t begin = s * kQueryBlock, count = std::min(kQueryBlock, rows - begin);
    dots(out.from(begin), dout.from(begin), count, head_, statistics[s].dots);
    for (int64_t i = 0; i < kQueryBlock; ++i)  // P of rows without a query is 0
      statistics[s].shift[i] = i < count ? lse[begin + i] * kLog2E : std::numeric_limits<float>::infinity();
  }
  int64_t first = 0;  // the first query block that attends to a key of the step
  for (int64_t s = 0; s < blocks; ++s) {
    attended_[s] = (mask.keys(std::min(rows, (s + 1) * kQueryBlock)) + kBlock - 1) / kBlock;
  }
  ScoreGradients overlap;
  overlap.prefetch = &prefetch;
  const int64_t twos = std::accumulate(attended_, attended_ + blocks, int64_t{0}) * kBlock / 2;
  overlap.lines_of_keys = (prefetch.lines() + twos - 1) / twos;
  // S and dP of this block and of the previous one.
  float *scores = scores_, *other_scores = scores_ + 2 * kRegisterTile;
  KeyGradients gradients{0, 0, 0, 2 * steps_};
  for (int64_t i = 0; i < attended_[blocks - 1]; ++i) {
    while (attended_[first] <= i) ++first;
    const PairTiles k{k_ + 2 * i * steps_ * kTile, steps_ * kTile}, v{v_ + 2 * i * steps_ * kTile, steps_ * kTile};
    const StepGradients& step = step_[i % 2];
    for (int64_t s = first; s < blocks; ++s) {
      const int64_t at = 2 * s * steps_ * kTile;
      multiply_overlapped(k, {q_ + at, steps_ * kTile}, steps_, {scores, kSide, kRight, kLower}, false, overlap);
      multiply_overlapped(v, {dout_ + at, steps_ * kTile}, steps_, {scores + kRegisterTile, kSide, kRight, kLower},
                          false, overlap);
      overlap.finish();
      if (s == first && i > 0) gradients.next = 0;  // P and dS of the previous step are now complete
      overlap.scores = scores, overlap.dp = scores + kRegisterTile;
      overlap.p_rows = step.p + s * kTile, overlap.ds_rows = step.ds + s * kTile;
      overlap.next_rows = query_blocks_ * kTile, overlap.lo_of_rows = 2 * query_blocks_ * kTile;
      overlap.ds_pairs = ds_pairs_ + (2 * s * key_blocks_ + i) * kTile;
      overlap.next_pairs = key_blocks_ * kTile, overlap.lo_of_pairs = lo_of_pairs();
      overlap.rows = statistics + s, overlap.factor = scale * kLog2E;
      overlap.mask = mask.from(s * kQueryBlock);
      overlap.first_key = i * kBlock, overlap.at = 0;
      const int64_t share = (2 * steps_ - gradients.next + blocks - s - 1) / (blocks - s);
      overlap.in_steps(2 * share * (gradients.end - gradients.first) + 2 * steps_);
      add_key_gradients(gradients, share, overlap);
      std::swap(scores, other_scores);
    }
    gradients = {i, first, blocks, 2 * steps_};
  }
  overlap.in_steps(2 * std::accumulate(attended_, attended_ + blocks - 1, int64_t{0}) * steps_);
  for (int64_t s = 0; s + 1 < blocks; ++s) multiply_dq(s, overlap);
  overlap.finish();
  NoOverlap nothing;
  gradients.next = 0;
  add_key_gradients(gradients, 2 * steps_, nothing);
  multiply_dq(blocks - 1, nothing);
  added_ = std::max(added_, attended_[blocks - 1]);
}

void Bf16Backward::finish() {
  for (float* to : {dk_, dv_}) std::fill(to + added_ * kBlock * lanes_, to + key_blocks_ * kBlock * lanes_, 0.0f);
}

template <class Overlap>
void Bf16Backward::add_key_gradients(KeyGradients& gradients, int64_t tiles, Overlap& overlap) {
  const int64_t row = query_blocks_ * kTile, count = gradients.end - gradients.first;
  const StepGradients& step = step_[gradients.step % 2];
  for (const int64_t end = gradients.next + tiles; gradients.next < end; ++gradients.next) {
    const int64_t j = gradients.next / 2;
    const bool of_v = gradients.next % 2 == 0;
    const int64_t to = gradients.step * kBlock * lanes_ + j * kBlock,
                  from = (2 * j * query_blocks_ + gradients.first) * kTile;
    multiply_overlapped({(of_v ? step.p : step.ds) + gradients.first * kTile, row, 2 * row},
                        {(of_v ? dout_down_ : q_down_) + from, row}, count,
                        {(of_v ? dv_ : dk_) + to, lanes_, kSide, kSide * lanes_}, gradients.step < added_, overlap);
  }
}

template <class Overlap>
void Bf16Backward::multiply_dq(int64_t query_block, Overlap& overlap) {
  for (int64_t j = 0; j < steps_; ++j)
    multiply_overlapped(
        {k_transposed_ + 2 * j * key_blocks_ * kTile, key_blocks_ * kTile},
        {ds_pairs_ + 2 * query_block * key_blocks_ * kTile, key_blocks_ * kTile, lo_of_pairs()}, attended_[query_block],
        {dq_transposed_ + (query_block * lanes_ + j * kBlock) * kQueryBlock, kQueryBlock, kSide, kSide * kQueryBlock},
        false, overlap);
}

const float* Bf16Backward::dq(int64_t query_block) {
  transpose_block(dq_transposed_ + query_block * lanes_ * kQueryBlock, lanes_, dq_);
  return dq_;
}

}  // namespace prun::cpu

#else

namespace prun::cpu {

int64_t bf16_backward_floats(int64_t, int64_t, int64_t) { return 0; }
Bf16Backward::Bf16Backward(const Bf16Rows&, const Bf16Rows&, int64_t, int64_t, int64_t, float*) {
  PRUN_CHECK(false, "no bf16");
}
void Bf16Backward::queries(const Bf16Rows&, const Bf16Rows&, const Bf16Rows&, int64_t, const Mask&, float, const float*,
                           Prefetcher&) {}
void Bf16Backward::finish() {}
const float* Bf16Backward::dq(int64_t) { return nullptr; }

}  // namespace prun::cpu

#endif
