// See attention_bf16.h. Scores of a strip lie in tiles of 16 queries by 16 keys, the probabilities in tiles of 16
// queries by 32 keys, each 16 apart as pairs, as the next product takes them.
#include "device/cpu/attention_bf16.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "ir/types.h"

#if defined(__x86_64__)
#include "device/cpu/square_beside.h"
#include "device/cpu/vector_math.h"
#include "device/cpu/vectors.h"

namespace prun::cpu {
namespace {

constexpr int64_t kLower = kTile, kRight = 2 * kTile;  // from a tile of scores to that of the next queries, next keys

constexpr int64_t kParts = 3;  // of the softmax of 16 queries by 32 keys: their largest, then eight rows at a time
constexpr int64_t kRowsOfPart = kSide / (kParts - 1);

// Of 32 keys, what 16 queries see.
enum class Seen : uint8_t { all, some, some_of_16 };

// Keys from `key` on that a query sees.
PRUN_AVX512_BF16 inline __mmask16 seeing(const Sight& sight, int64_t query, int64_t key) {
  return static_cast<__mmask16>((1u << std::clamp<int64_t>(sight.keys(query + 1) - key, 0, kSide)) - 1);
}

// The largest of each query's scores with every 16th of 32 keys, or of those before.
template <Seen kSeen>
PRUN_AVX512_BF16 inline void largest(const float* scores, int64_t query, int64_t key, const Sight& sight, float* most) {
  const __m512 least = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
#pragma GCC unroll 4
  for (int64_t r = 0; r < kSide; ++r, scores += kSide, most += kSide) {
    __m512 found = key == 0 ? least : _mm512_load_ps(most);
    __m512 left = _mm512_loadu_ps(scores);
    if (kSeen != Seen::all) left = _mm512_mask_mov_ps(least, seeing(sight, query + r, key), left);
    if (kSeen != Seen::some_of_16) {
      __m512 right = _mm512_loadu_ps(scores + kRight);
      if (kSeen != Seen::all) right = _mm512_mask_mov_ps(least, seeing(sight, query + r, key + kSide), right);
      left = _mm512_max_ps(left, right);
    }
    _mm512_store_ps(most, _mm512_max_ps(found, left));
  }
}

// Probabilities of some queries, 2^(score · factor - shift), in two parts; adds to their sums of every 16th key.
template <Seen kSeen>
PRUN_AVX512_BF16 inline void weigh(const float* scores, int64_t query, int64_t key, const Sight& sight, float factor,
                                   const float* shift, Pair* to, int64_t rest, float* sums) {
  const __m512 times = _mm512_set1_ps(factor);
#pragma GCC unroll 4
  for (int64_t r = 0; r < kRowsOfPart; ++r, scores += kSide, to += kSide, sums += kSide) {
    const __m512 less = _mm512_set1_ps(shift[r]);
    __m512 left = exp2_of(_mm512_fmsub_ps(_mm512_loadu_ps(scores), times, less)), right = _mm512_setzero_ps();
    if (kSeen != Seen::some_of_16) right = exp2_of(_mm512_fmsub_ps(_mm512_loadu_ps(scores + kRight), times, less));
    if (kSeen != Seen::all) left = _mm512_maskz_mov_ps(seeing(sight, query + r, key), left);
    if (kSeen == Seen::some) right = _mm512_maskz_mov_ps(seeing(sight, query + r, key + kSide), right);
    const __m512 both = _mm512_add_ps(left, right);
    _mm512_store_ps(sums, key == 0 ? both : _mm512_add_ps(_mm512_load_ps(sums), both));
    const TwoParts x = in_two(left), y = in_two(right);
    _mm512_storeu_si512(to, paired(x.upper, y.upper));
    _mm512_storeu_si512(to + rest, paired(x.rest, y.rest));
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

template <class Of>
PRUN_AVX512_BF16 __m512 across_rows(const float* from) {
  __m512 rows[kSide];
#pragma GCC unroll 16
  for (int64_t r = 0; r < kSide; ++r) rows[r] = _mm512_load_ps(from + r * kSide);
  return across<Of>(rows);
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

void StripSoftmax::begin(const float* scores, int64_t blocks, const Sight& sight, float scale, const To& to,
                         int64_t steps, Ahead& ahead) {
  scores_ = scores, blocks_ = blocks, sight_ = sight, factor_ = scale * kLog2E, to_ = to, ahead_ = &ahead;
  at_ = 0, end_ = 2 * blocks * kParts;
  parts_of_step_ = steps == 0 ? 0 : (end_ + steps - 1) / steps;
  lines_of_part_ = (ahead.lines() + end_ - 1) / end_;
}

// First the largest of all scores, of 16 queries by 32 keys at a time, then probabilities of fewer rows.
PRUN_AVX512_BF16 void StripSoftmax::part() {
  if (at_ == end_) return;
  if (lines_of_part_ > 0) ahead_->ask(lines_of_part_);
  const int64_t maxima = 2 * blocks_, behind = at_ - maxima;
  const int64_t place = behind < 0 ? at_ : behind / (kParts - 1), block = place / 2;
  const int64_t row = behind < 0 ? 0 : behind % (kParts - 1) * kRowsOfPart, of_half = place % 2 * kSide;
  const int64_t key = block * kBlock, query = of_half + row, most = sight_.keys(of_half + kSide) - key;
  const bool all = sight_.keys(of_half + 1) - key >= kBlock;
  const Seen seen = all ? Seen::all : most > kSide ? Seen::some : Seen::some_of_16;
  const float* scores = scores_ + block * kSquare + place % 2 * kLower + row * kSide;
  ++at_;
  if (behind < 0) {
    by(seen, [&]<Seen kSeen>() PRUN_AVX512_BF16 { largest<kSeen>(scores, query, key, sight_, most_[query]); });
    if (at_ == maxima) find_shifts();
    return;
  }
  Pair* to = to_.p + place % 2 * to_.other + block * kTile + row * kSide;
  by(seen, [&]<Seen kSeen>() PRUN_AVX512_BF16 {
    weigh<kSeen>(scores, query, key, sight_, factor_, shift_ + query, to, to_.rest, sums_[query]);
  });
  if (at_ == end_) sum_up();
}

PRUN_AVX512_BF16 void StripSoftmax::find_shifts() {
  for (int64_t i = 0; i < kStrip; i += kSide)
    _mm512_store_ps(shift_ + i, _mm512_mul_ps(across_rows<Largest>(most_[i]), _mm512_set1_ps(factor_)));
}

PRUN_AVX512_BF16 void StripSoftmax::sum_up() {
  for (int64_t i = 0; i < kStrip; i += kSide) {
    const __m512 sum = across_rows<Sum>(sums_[i]);
    const auto log = (__m512)log2_f32((Floats<kSide>)sum);
    _mm512_store_ps(lse_ + i,
                    _mm512_mul_ps(_mm512_add_ps(_mm512_load_ps(shift_ + i), log), _mm512_set1_ps(1.0f / kLog2E)));
    _mm512_store_ps(inverse_ + i, _mm512_div_ps(_mm512_set1_ps(1.0f), sum));
  }
}

int64_t bf16_forward_floats(int64_t keys, int64_t head) {
  const int64_t all = round_up(keys, kBlock), lanes = round_up(head, kBlock);
  return all * lanes + kStrip * (lanes / 2 + 2 * (all + all) + lanes);  // k and v; q, twice P and scores, result
}

Bf16Forward::Bf16Forward(const HeadRows& k, const HeadRows& v, int64_t keys, int64_t head, float* scratch)
    : head_(head), lanes_(round_up(head, kBlock)), steps_(lanes_ / kBlock), room_(round_up(keys, kBlock) / kBlock) {
  const int64_t all = room_ * kBlock;
  const auto floats = [&](int64_t count) { return scratch += count, scratch - count; };
  const auto pairs = [&](int64_t count) { return reinterpret_cast<Pair*>(floats(count)); };
  for (Pair** to : {&k_, &v_}) *to = pairs(all * lanes_ / 2);
  q_ = pairs(kStrip * lanes_ / 2);
  for (Place& strip : strips_) strip.p = pairs(kStrip * all), strip.scores = floats(kStrip * all);
  result_ = floats(kStrip * lanes_);
  for (int64_t i = 0; i < room_; ++i) {
    for (int64_t j = 0; j < steps_; ++j) {
      const int64_t high = std::min(kBlock, keys - i * kBlock), wide = std::min(kBlock, head - j * kBlock);
      Pair *left = k_ + (2 * i * steps_ + j) * kTile, *upper = v_ + (2 * j * room_ + i) * kTile;
      copy_block(k.from(i * kBlock).data + j * kBlock, k.stride, high, wide, Lying::columns, left,
                 left + steps_ * kTile);
      copy_block(v.from(i * kBlock).data + j * kBlock, v.stride, high, wide, Lying::apart, upper,
                 upper + room_ * kTile);
    }
  }
}

int64_t Bf16Forward::blocks_of(int64_t strip) const {
  if (strip * kStrip >= queries_) return 0;
  return (sight_of(strip).keys(rows_of(strip)) + kBlock - 1) / kBlock;
}

template <class Beside>
void Bf16Forward::score(int64_t strip, Beside& beside) {
  const int64_t blocks = blocks_of(strip);
  if (blocks == 0) return;
  const HeadRows q = queries_at_.from(strip * kStrip);
  for (int64_t j = 0; j < steps_; ++j)
    copy_block(q.data + j * kBlock, q.stride, rows_of(strip), std::min(kBlock, head_ - j * kBlock), Lying::rows,
               q_ + j * kTile, q_ + (steps_ + j) * kTile);
  for (int64_t i = 0; i < blocks; ++i)
    square_beside({q_, steps_ * kTile}, {k_ + 2 * i * steps_ * kTile, steps_ * kTile}, steps_,
                  {strips_[strip % 2].scores + i * kSquare, kSide, kRight, kLower}, false, beside);
}

template <class Beside>
void Bf16Forward::weigh_values(int64_t strip, Beside& beside) {
  const Pair* p = strips_[strip % 2].p;
  for (int64_t j = 0; j < steps_; ++j)
    square_beside({p, room_ * kTile, 2 * room_ * kTile}, {v_ + 2 * j * room_ * kTile, room_ * kTile}, blocks_of(strip),
                  {result_ + j * kBlock, lanes_, kSide, kSide * lanes_}, false, beside);
}

void Bf16Forward::begin_softmax(int64_t strip, int64_t steps) {
  Place& s = strips_[strip % 2];
  s.softmax.begin(s.scores, blocks_of(strip), sight_of(strip), scale_, {s.p, room_ * kTile, 2 * room_ * kTile}, steps,
                  *ahead_);
}

void Bf16Forward::keep_lse(int64_t strip) {
  const float* from = strips_[strip % 2].softmax.lse();
  std::copy(from, from + rows_of(strip), lse_ + strip * kStrip);
}

void Bf16Forward::begin(const HeadRows& q, int64_t queries, const Sight& sight, float scale, float* lse, Ahead& ahead) {
  queries_at_ = q, queries_ = queries, next_ = 0, sight_ = sight, scale_ = scale, lse_ = lse, ahead_ = &ahead;
  Nothing nothing;
  score(0, nothing);
  StripSoftmax& softmax = strips_[0].softmax;
  begin_softmax(0, blocks_of(1) * steps_);
  score(1, softmax);
  softmax.finish();
  keep_lse(0);
}

Bf16Forward::Result Bf16Forward::next() {
  const int64_t strip = next_++, behind = strip + 1;
  if (blocks_of(behind) == 0) {
    Nothing nothing;
    weigh_values(strip, nothing);
  } else {
    StripSoftmax& softmax = strips_[behind % 2].softmax;
    begin_softmax(behind, (blocks_of(strip) + blocks_of(behind + 1)) * steps_);
    weigh_values(strip, softmax);
    score(behind + 1, softmax);
    softmax.finish();
    keep_lse(behind);
  }
  return {result_, strips_[strip % 2].softmax.inverse()};
}

}  // namespace prun::cpu

#else

namespace prun::cpu {

void round_rows(const float*, int64_t, float, bf16*, int64_t, int64_t, int64_t) {}
void round_rows(const float*, int64_t, const float*, bf16*, int64_t, int64_t, int64_t) {}
int64_t bf16_forward_floats(int64_t, int64_t) { return 0; }
Bf16Forward::Bf16Forward(const HeadRows&, const HeadRows&, int64_t, int64_t, float*) { PRUN_CHECK(false, "no bf16"); }
void Bf16Forward::begin(const HeadRows&, int64_t, const Sight&, float, float*, Ahead&) {}
Bf16Forward::Result Bf16Forward::next() { return {}; }

}  // namespace prun::cpu

#endif
