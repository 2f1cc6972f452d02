// Attention of one head in bf16 on AMX: the strips of attention_rows.h on squares of sums.
//
// Scores, maxima, sums and log-sum-exps are f32. For the products that follow, the probabilities P = exp(S - max) and
// the gradients of scores dS = P·(dP - Σ out·dout) are written as two numbers of bf16 each, off by at most u = 2⁻¹⁶ of
// them. So an element of the result is off by at most u·Σ p|v| ≤ u·max|v|, one of dv by u·Σ p|dout|, of dq and dk by
// u·scale·Σ |dS|·|k| and u·scale·Σ |dS|·|q|; besides what f32 rounds, and the result's own rounding.
#pragma once
#include <algorithm>
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

// Softmax of a strip whose scores lie in squares, a few of them at a time beside other squares of sums.
class StripSoftmax {
 public:
  // Unnormalized probabilities go to `p`, in tiles of 16 queries by 32 keys that lie as the other operand of
  // Lying::apart does; those of the other queries and what rounding has left so many pairs behind.
  struct To {
    Pair* p;
    int64_t other, rest;
  };
  // `blocks` of 32 keys; `steps` is how often step() will be called. Asks for what `ahead` has.
  void begin(const float* scores, int64_t blocks, const Sight& sight, float scale, const To& to, int64_t steps,
             Ahead& ahead);
  void step() {
    for (int64_t i = 0; i < parts_of_step_; ++i) part();
  }
  void finish() {
    while (at_ < end_) part();
  }
  // Of each query, once it is finished.
  const float* lse() const { return lse_; }
  const float* inverse() const { return inverse_; }

 private:
  void part();
  void find_shifts();
  void sum_up();
  const float* scores_ = nullptr;
  int64_t blocks_ = 0;
  Sight sight_{1, 0};
  float factor_ = 0;
  To to_{nullptr, 0, 0};
  int64_t at_ = 0, end_ = 0, parts_of_step_ = 0, lines_of_part_ = 0;
  Ahead* ahead_ = nullptr;
  alignas(64) float most_[kStrip][kSide];  // of every 16th key
  alignas(64) float sums_[kStrip][kSide];
  alignas(64) float shift_[kStrip], lse_[kStrip], inverse_[kStrip];
};

// Strips of queries one behind the other: while vectors compute the softmax of one, tiles multiply the probabilities of
// the strip before with values, and the next strip's queries with keys.
class Bf16Forward {
 public:
  Bf16Forward(const HeadRows& k, const HeadRows& v, int64_t keys, int64_t head, float* scratch);
  int64_t lanes() const { return lanes_; }
  // The queries whose results next() then gives, which asks for what `ahead` has meanwhile.
  void begin(const HeadRows& q, int64_t queries, const Sight& sight, float scale, float* lse, Ahead& ahead);
  // Of the next kStrip queries, or as many as are left: [kStrip][lanes], not yet divided by sums, and 1/sum of each.
  struct Result {
    const float *rows, *inverse;
  };
  Result next();

 private:
  // A strip while it is on its way; every other one has the same place.
  struct Place {
    Pair* p;
    float* scores;
    StripSoftmax softmax;
  };
  Sight sight_of(int64_t strip) const { return {sight_.seen + strip * kStrip * sight_.more, sight_.more}; }
  int64_t rows_of(int64_t strip) const { return std::min(kStrip, queries_ - strip * kStrip); }
  int64_t blocks_of(int64_t strip) const;  // of 32 keys that it sees; 0 beyond the last one
  template <class Beside>
  void score(int64_t strip, Beside& beside);
  template <class Beside>
  void weigh_values(int64_t strip, Beside& beside);
  void begin_softmax(int64_t strip, int64_t steps);
  void keep_lse(int64_t strip);

  const PairSquares squares_;
  int64_t head_, lanes_, steps_;  // steps of 32 in a head
  int64_t room_;                  // in steps of 32 keys
  Pair *k_, *v_, *q_;
  float* result_;
  Place strips_[2];
  HeadRows queries_at_{nullptr, 0};
  int64_t queries_ = 0, next_ = 0;
  Sight sight_{1, 0};
  float scale_ = 0;
  float* lse_ = nullptr;
  Ahead* ahead_ = nullptr;
};

class Bf16Backward {
 public:
  static constexpr int64_t kQueries = 128;  // at most at a time
  Bf16Backward(const HeadRows& k, const HeadRows& v, int64_t keys, int64_t queries, int64_t head, float* scratch);
  int64_t lanes() const { return lanes_; }
  // Adds to dk() and dv() what these queries give; dq(i) is then of the i-th strip of them. Asks for what `ahead` has.
  void queries(const HeadRows& q, const HeadRows& out, const HeadRows& dout, int64_t rows, const Sight& sight,
               float scale, const float* lse, Ahead& ahead);
  void finish();                           // behind all queries, before dk() and dv()
  const float* dq(int64_t strip);          // [kStrip][lanes], without `scale`
  const float* dk() const { return dk_; }  // [keys][lanes], without `scale`
  const float* dv() const { return dv_; }  // [keys][lanes]

 private:
  int64_t rest_of_pairs() const { return strips_ * kStrip * room_ * kSide; }
  void copy_queries(const HeadRows& from, int64_t rows, Pair* columns, Pair* paired);
  // P and dS of 32 keys as rows, each in two parts; those of every other step have the same place.
  struct Rows {
    Pair *p, *ds;
  };
  // dk and dv of a step of 32 keys, of strips [first, end): squares of sums, of which some are made already.
  struct Sums {
    int64_t step, first, end, next;
  };
  template <class Beside>
  void add_keys(Sums& sums, int64_t squares, Beside& beside);
  template <class Beside>
  void add_dq(int64_t strip, Beside& beside);
  const PairSquares squares_;
  int64_t head_, lanes_, steps_;  // steps of 32 in a head
  int64_t room_;                  // in steps of 32 keys
  int64_t strips_;                // of kStrip queries that there is room for
  Pair *k_, *v_, *k_turned_, *q_, *dout_, *q_paired_, *dout_paired_, *ds_pairs_;
  Rows rows_[2];
  float *scores_, *dq_turned_, *dq_, *dk_, *dv_;
  int64_t added_ = 0;                // steps of keys to whose gradients something was added
  int64_t seen_[kQueries / kStrip];  // steps of keys that each of the last strips saw
};

}  // namespace prun::cpu
