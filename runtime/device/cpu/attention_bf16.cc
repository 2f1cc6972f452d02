// See attention_bf16.h. Scores of a strip lie in tiles of 16 queries by 16 keys, the probabilities in tiles of 16
// queries by 32 keys, as the next product takes them.
#include "device/cpu/attention_bf16.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "ir/types.h"

#if defined(__x86_64__)
#include "device/cpu/attention_vectors.h"
#include "device/cpu/vector_math.h"
#include "device/cpu/vectors.h"

namespace prun::cpu {
namespace {

constexpr int64_t kLower = kTile, kRight = 2 * kTile;  // from a tile of scores to that of the next queries, next keys

// -inf for keys that a query does not see, in the square at `step` of 32 keys.
PRUN_AVX512_BF16 void hide(float* square, int64_t step, const Sight& sight) {
  const __m512 least = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (int64_t query = 0; query < kBlock; ++query) {
    float* row = square + query / kSide * kLower + query % kSide * kSide;
    const int64_t sees = sight.keys(query + 1) - step * kBlock;
    for (int64_t half = 0; half < 2; ++half) {
      const int64_t here = std::clamp<int64_t>(sees - half * kSide, 0, kSide);
      if (here < kSide) _mm512_mask_storeu_ps(row + half * kRight, static_cast<__mmask16>(0xffffu << here), least);
    }
  }
}

// The largest of each of 16 queries' scores.
PRUN_AVX512_BF16 __m512 largest(const float* scores, int64_t steps) {
  __m512 most[kSide];
#pragma GCC unroll 16
  for (int r = 0; r < kSide; ++r) most[r] = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < steps; ++i, scores += kSquare) {
#pragma GCC unroll 16
    for (int r = 0; r < kSide; ++r) {
      const __m512 left = _mm512_loadu_ps(scores + r * kSide), right = _mm512_loadu_ps(scores + kRight + r * kSide);
      most[r] = _mm512_max_ps(most[r], _mm512_max_ps(left, right));
    }
  }
  return across<Largest>(most);
}

// Probabilities of 16 queries, 2^(score · factor - shift), rounded into tiles; their sums.
PRUN_AVX512_BF16 __m512 weigh(const float* scores, int64_t steps, float factor, const float* shift, Pair* to,
                              int64_t rest) {
  const __m512 times = _mm512_set1_ps(factor);
  __m512 sum[kSide];
#pragma GCC unroll 16
  for (int r = 0; r < kSide; ++r) sum[r] = _mm512_setzero_ps();
  for (int64_t i = 0; i < steps; ++i, scores += kSquare, to += kTile) {
#pragma GCC unroll 16
    for (int r = 0; r < kSide; ++r) {
      const __m512 less = _mm512_set1_ps(shift[r]);
      const __m512 left = exp2_of(_mm512_fmsub_ps(_mm512_loadu_ps(scores + r * kSide), times, less));
      const __m512 right = exp2_of(_mm512_fmsub_ps(_mm512_loadu_ps(scores + kRight + r * kSide), times, less));
      sum[r] = _mm512_add_ps(sum[r], _mm512_add_ps(left, right));
      const __m512 left_cut = cut(left), right_cut = cut(right);
      _mm512_storeu_si512(to + r * kSide, (__m512i)_mm512_cvtne2ps_pbh(right_cut, left_cut));
      _mm512_storeu_si512(to + rest + r * kSide,
                          (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(right, right_cut), _mm512_sub_ps(left, left_cut)));
    }
  }
  return across<Sum>(sum);
}

// Softmax of 16 queries; `steps` of 32 keys.
PRUN_AVX512_BF16 void softmax(const float* scores, int64_t steps, float scale, Pair* to, int64_t rest, float* lse,
                              float* inverse) {
  const float factor = scale * kLog2E;
  float shift[kSide];
  const __m512 top = _mm512_mul_ps(largest(scores, steps), _mm512_set1_ps(factor));
  _mm512_storeu_ps(shift, top);
  const __m512 sum = weigh(scores, steps, factor, shift, to, rest);
  const auto log = (__m512)log2_f32((Floats<kSide>)sum);
  _mm512_storeu_ps(lse, _mm512_mul_ps(_mm512_add_ps(top, log), _mm512_set1_ps(1.0f / kLog2E)));
  _mm512_storeu_ps(inverse, _mm512_div_ps(_mm512_set1_ps(1.0f), sum));
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

int64_t bf16_forward_floats(int64_t keys, int64_t head) {
  const int64_t all = round_up(keys, kBlock), lanes = round_up(head, kBlock);
  return all * lanes + kStrip * (lanes / 2 + all + all + lanes);  // k and v; q, probabilities, scores, result
}

Bf16Forward::Bf16Forward(const HeadRows& k, const HeadRows& v, int64_t keys, int64_t head, float* scratch)
    : head_(head), lanes_(round_up(head, kBlock)), steps_(lanes_ / kBlock), room_(round_up(keys, kBlock) / kBlock) {
  const int64_t all = room_ * kBlock;
  k_ = reinterpret_cast<Pair*>(scratch);
  v_ = k_ + all * lanes_ / 2;
  q_ = v_ + all * lanes_ / 2;
  p_ = q_ + kStrip * lanes_ / 2;
  scores_ = scratch + (p_ + kStrip * all - k_);
  result_ = scores_ + kStrip * all;
  for (int64_t i = 0; i < room_; ++i) {
    for (int64_t j = 0; j < steps_; ++j) {
      const int64_t high = std::min(kBlock, keys - i * kBlock), wide = std::min(kBlock, head - j * kBlock);
      Pair *left = k_ + (2 * i * steps_ + j) * kTile, *upper = v_ + (2 * j * room_ + i) * kTile;
      copy_block(k.from(i * kBlock).data + j * kBlock, k.stride, high, wide, Lying::columns, left,
                 left + steps_ * kTile);
      copy_block(v.from(i * kBlock).data + j * kBlock, v.stride, high, wide, Lying::paired, upper,
                 upper + room_ * kTile);
    }
  }
}

const float* Bf16Forward::strip(const HeadRows& q, int64_t rows, const Sight& sight, float scale, float* lse,
                                float* inverse) {
  const int64_t steps = round_up(sight.keys(rows), kBlock) / kBlock;
  for (int64_t j = 0; j < steps_; ++j)
    copy_block(q.data + j * kBlock, q.stride, rows, std::min(kBlock, head_ - j * kBlock), Lying::rows, q_ + j * kTile,
               q_ + (steps_ + j) * kTile);
  for (int64_t i = 0; i < steps; ++i) {
    float* to = scores_ + i * kSquare;
    square({q_, steps_ * kTile}, {k_ + 2 * i * steps_ * kTile, steps_ * kTile}, steps_, {to, kSide, kRight, kLower},
           false);
    if ((i + 1) * kBlock > sight.seen) hide(to, i, sight);
  }
  for (int64_t half = 0; half < 2; ++half)
    softmax(scores_ + half * kLower, steps, scale, p_ + half * room_ * kTile, 2 * room_ * kTile, lse + half * kSide,
            inverse + half * kSide);
  for (int64_t j = 0; j < steps_; ++j)
    square({p_, room_ * kTile, 2 * room_ * kTile}, {v_ + 2 * j * room_ * kTile, room_ * kTile}, steps,
           {result_ + j * kBlock, lanes_, kSide, kSide * lanes_}, false);
  return result_;
}

}  // namespace prun::cpu

#else

namespace prun::cpu {

void round_rows(const float*, int64_t, float, bf16*, int64_t, int64_t, int64_t) {}
void round_rows(const float*, int64_t, const float*, bf16*, int64_t, int64_t, int64_t) {}
int64_t bf16_forward_floats(int64_t, int64_t) { return 0; }
Bf16Forward::Bf16Forward(const HeadRows&, const HeadRows&, int64_t, int64_t, float*) { PRUN_CHECK(false, "no bf16"); }
const float* Bf16Forward::strip(const HeadRows&, int64_t, const Sight&, float, float*, float*) { return nullptr; }

}  // namespace prun::cpu

#endif
