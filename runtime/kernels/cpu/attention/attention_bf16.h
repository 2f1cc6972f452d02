// Attention of one head in bf16 on AMX: the strips of query_block.h on squares of sums.
//
// Scores, shifts, sums and log-sum-exps are f32. For the products that follow, the probabilities P = exp(S - shift) and
// the gradients of scores dS = P·(dP - Σ out·dout) are written as two numbers of bf16 each, off by at most u = 2⁻¹⁶ of
// them. So an element of the result is off by at most u·Σ p|v| ≤ u·max|v|, one of dv by u·Σ p|dout|, of dq and dk by
// u·scale·Σ |dS|·|k| and u·scale·Σ |dS|·|q|; besides what f32 rounds, and the result's own rounding.
#pragma once
#include <algorithm>
#include <cstdint>

#include "device/bf16.h"
#include "kernels/cpu/attention/query_block.h"
#include "kernels/cpu/gemm/register_tile.h"

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

// Softmax of a strip's scores with a piece of its keys, a few of them at a time beside squares of sums. Each score is
// less by the query's first one, not by its largest: so there is one pass over scores, and their sum, which begins with
// 1, says whether another one is so much larger that the pass has to be made again.
class PieceSoftmax {
 public:
  // What is known of a strip: a query's shift in powers of two, and its sums of every 16th key.
  struct Sums {
    alignas(64) float shift[kStrip];
    alignas(64) float of_keys[kStrip][kSide];
    alignas(64) float lse[kStrip], inverse[kStrip];
    // Whether sums are those of numbers that were not too large; then lse and 1/sum, too.
    bool finish();
  };
  // A piece: squares of scores, of 32 keys each, from `key` on. They become unnormalized probabilities in two parts, in
  // tiles of 16 queries by 32 keys: what lay on the left becomes the upper halves, what lay on the right the rest.
  struct Piece {
    float* squares;
    int64_t blocks, key;
    Sight sight;
    Sums* sums;
    bool guess;  // shifts are not known yet
  };
  // step() will be called `steps` times; asks for `lines` of what `ahead` has.
  void begin(const Piece& piece, float factor, int64_t steps, int64_t lines, Prefetcher& ahead);
  void step() {
    for (done_ += end_; done_ >= steps_; done_ -= steps_) part();
  }
  void finish() {
    while (at_ < end_) part();
  }

 private:
  void part();
  Piece piece_{};
  float factor_ = 0;
  int64_t at_ = 0, end_ = 0, steps_ = 1, done_ = 0, lines_of_part_ = 0;
  Prefetcher* ahead_ = nullptr;
};

// Strips of queries, one behind the other, of heads one behind the other; keys in pieces. While vectors compute the
// softmax of a piece, tiles multiply the probabilities of the piece before with values, and queries with the keys of
// the next one.
class Bf16Forward {
 public:
  struct Head {
    HeadRows q, k, v;
  };
  struct Shape {
    int64_t keys, queries, head;
    Sight sight;
    float scale;
  };
  // The heads from `begin` to `end`, all of one shape, are heads(i).
  template <class Heads>
  Bf16Forward(const Shape& shape, int64_t begin, int64_t end, const Heads& heads, float* scratch)
      : Bf16Forward(
            shape, begin, end, &heads, [](const void* of, int64_t i) { return (*static_cast<const Heads*>(of))(i); },
            scratch) {}
  // Floats from a row of results to the next, and where among them element i of a head is.
  int64_t lanes() const { return lanes_; }
  // Of the next kStrip queries, or as many as are left of a head: [kStrip][lanes], not yet divided by sums, and of each
  // query 1/sum and log-sum-exp. Asks for what `ahead` has meanwhile.
  struct Result {
    const float *rows, *inverse, *lse;
  };
  Result next(Prefetcher& ahead);

 private:
  using HeadOf = Head (*)(const void*, int64_t);
  Bf16Forward(const Shape& shape, int64_t begin, int64_t end, const void* heads, HeadOf head_of, float* scratch);
  // A piece of the keys of a strip.
  struct Item {
    int64_t head = 0, strip = 0, first = 0, blocks = 0;  // of 32 keys; 0 behind the last one
    int64_t number = 0;                                  // of the strip
    bool last = false;                                   // of the strip
    Head rows{};
  };
  // Copies of keys or values, as many blocks of a head as were needed.
  struct Copies {
    Pair* tiles;
    const bf16* of;
    int64_t blocks;
  };
  Item item(int64_t head, int64_t strip, int64_t first, int64_t number) const;
  Item behind(const Item& item) const;
  Sight sight_of(int64_t strip) const {
    return {shape_.sight.seen + strip * kStrip * shape_.sight.more, shape_.sight.more};
  }
  int64_t rows_of(int64_t strip) const { return std::min(kStrip, shape_.queries - strip * kStrip); }
  PieceSoftmax::Piece piece_of(const Item& item, float* squares, bool guess);
  void copy_keys(const Item& item);
  void copy_values(const Item& item);
  void copy_queries(const Item& item);
  template <class Beside>
  void score(const Item& item, float* squares, Beside& beside);
  template <class Beside>
  void weigh_values(const Item& item, const float* squares, Beside& beside);
  int64_t steps_of(const Item& weighed, const Item& scored) const;
  void turn(int64_t lines, Prefetcher& ahead);
  void finish_sums(const Item& item);
  void again(const Item& item);

  const TileRegisters squares_;
  const Shape shape_;
  const float factor_;
  int64_t end_;  // of heads
  const void* heads_;
  HeadOf head_of_;
  int64_t lanes_, steps_;  // steps of 32 in a head
  Copies k_, v_;
  Pair* q_;
  int64_t q_of_ = -1;  // the strip's number
  float *result_, *scores_, *other_scores_;
  Item now_, next_, last_;
  PieceSoftmax softmax_;
  PieceSoftmax::Sums sums_[2];
};

class Bf16Backward {
 public:
  static constexpr int64_t kQueries = 128;  // at most at a time
  Bf16Backward(const HeadRows& k, const HeadRows& v, int64_t keys, int64_t queries, int64_t head, float* scratch);
  int64_t lanes() const { return lanes_; }
  // Adds to dk() and dv() what these queries give; dq(i) is then of the i-th strip of them. Asks for what `ahead` has.
  void queries(const HeadRows& q, const HeadRows& out, const HeadRows& dout, int64_t rows, const Sight& sight,
               float scale, const float* lse, Prefetcher& ahead);
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
  const TileRegisters squares_;
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
