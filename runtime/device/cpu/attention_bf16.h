// Attention of one head in bf16 on AMX: the strips of attention_rows.h on squares of sums.
//
// Scores, maxima, sums and log-sum-exps are f32. For the products that follow, the probabilities P = exp(S - max) and
// the gradients of scores dS = P·(dP - Σ out·dout) are written as two numbers of bf16 each, off by at most u = 2⁻¹⁵ of
// them. So an element of the result is off by at most u·Σ p|v| ≤ u·max|v|, one of dv by u·Σ p|dout|, of dq and dk by
// u·scale·Σ |dS|·|k| and u·scale·Σ |dS|·|q|; besides what f32 rounds, and the result's own rounding.
#pragma once
#include <cstdint>

#include "device/bf16.h"
#include "device/cpu/attention_rows.h"
#include "device/cpu/pair_square.h"

namespace prun::cpu {

// Rows of a head, `stride` elements apart.
struct HeadRows {
  const bf16* data;
  int64_t stride;
  HeadRows from(int64_t row) const { return {data + row * stride, stride}; }
};

// to[r · stride ..] = factor · from[r][0..head), or factors[r] · it.
void round_rows(const float* from, int64_t lanes, float factor, bf16* to, int64_t stride, int64_t rows, int64_t head);
void round_rows(const float* from, int64_t lanes, const float* factors, bf16* to, int64_t stride, int64_t rows,
                int64_t head);

// The floats of scratch that both classes need for as many keys, and queries, of a head of `head` elements.
int64_t bf16_forward_floats(int64_t keys, int64_t head);
int64_t bf16_backward_floats(int64_t keys, int64_t queries, int64_t head);

class Bf16Forward {
 public:
  Bf16Forward(const HeadRows& k, const HeadRows& v, int64_t keys, int64_t head, float* scratch);
  int64_t lanes() const { return lanes_; }
  // Up to kStrip queries: result [kStrip][lanes], not yet divided by its sums; each query's log-sum-exp and 1/sum.
  const float* strip(const HeadRows& q, int64_t rows, const Sight& sight, float scale, float* lse, float* inverse);

 private:
  const PairSquares squares_;
  int64_t head_, lanes_, steps_;  // steps of 32 in a head
  int64_t room_;                  // in steps of 32 keys
  Pair *k_, *v_, *q_, *p_;
  float *scores_, *result_;
};

class Bf16Backward {
 public:
  static constexpr int64_t kQueries = 128;  // at most at a time
  Bf16Backward(const HeadRows& k, const HeadRows& v, int64_t keys, int64_t queries, int64_t head, float* scratch);
  int64_t lanes() const { return lanes_; }
  // Adds to dk() and dv() what these queries give; dq(i) is then of the i-th strip of them.
  void queries(const HeadRows& q, const HeadRows& out, const HeadRows& dout, int64_t rows, const Sight& sight,
               float scale, const float* lse);
  const float* dq(int64_t strip);          // [kStrip][lanes], without `scale`
  const float* dk() const { return dk_; }  // [keys][lanes], without `scale`
  const float* dv() const { return dv_; }  // [keys][lanes]

 private:
  int64_t rest_of_pairs() const { return strips_ * kStrip * room_ * kSide; }
  void copy_queries(const HeadRows& from, int64_t rows, Pair* columns, Pair* paired);
  void add_keys(int64_t step, int64_t first, int64_t end);
  const PairSquares squares_;
  int64_t head_, lanes_, steps_;  // steps of 32 in a head
  int64_t room_;                  // in steps of 32 keys
  int64_t strips_;                // of kStrip queries that there is room for
  Pair *k_, *v_, *k_turned_, *q_, *dout_, *q_paired_, *dout_paired_, *p_rows_, *ds_rows_, *ds_pairs_;
  float *scores_, *dq_turned_, *dq_, *dk_, *dv_;
  int64_t seen_[kQueries / kStrip];  // steps of keys that each of the last strips saw
};

}  // namespace prun::cpu
