// Attention of one head in bf16 on AMX (Dao et al., "FlashAttention", 2022; the overlap of softmax with GEMMs is that
// of Shah et al., "FlashAttention-3", 2024). The tile unit multiplies while the vector units compute the softmax:
//
//      forward, a step (advance) for each piece i of 64 keys; i + 1 may belong to the next query block or head
//
//      tile unit     | O += P(i-1)·V(i-1)    S(i+1) = Q·K(i+1)ᵀ | O += P(i)·V(i)    S(i+2) = Q·K(i+2)ᵀ |
//      vector units  | P(i) = softmax(S(i))                     | P(i+1) = softmax(S(i+1))             |
//      scores_       | P(i-1)                S(i+1)             | swapped with other_scores_           |
//      other_scores_ | S(i) becomes P(i) in place               |                                      |
//
//      backward, for each step i of 32 keys and query block s of up to 4
//
//      tile unit     | S(s), dP(s)    dV, dK of step i-1, a share | S(s+1), dP(s+1)    the next share |
//      vector units  | rest of s-1    P(s), dS(s)                 | rest of s          P(s+1), dS(s+1) |
//
//      and after the last step dQ of all query blocks, and dV, dK of the last step
//
// Scores, shifts, sums and log-sum-exps are f32. For the GEMMs that follow, the probabilities P = exp(S - shift) and
// the gradients of scores dS = P·(dP - Σ out·dout) are split into two bf16 numbers each, hi and lo, with an error of at
// most u = 2⁻¹⁶. Besides f32 rounding and the rounding of the output, the error is at most u·Σ p|v| ≤ u·max|v| in an
// element of the output, u·Σ p|dout| in dv, u·scale·Σ |dS|·|k| in dq and u·scale·Σ |dS|·|q| in dk.
#pragma once
#include <algorithm>
#include <cstdint>

#include "device/bf16.h"
#include "kernels/cpu/attention/query_block.h"
#include "kernels/cpu/gemm/register_tile.h"

namespace prun::cpu {

using Bf16Rows = HeadRows<bf16>;

// Rounds rows: to[r · stride ..] = factor · from[r][0..head), or factors[r] · from[r].
void round_rows(const float* from, int64_t lanes, float factor, bf16* to, int64_t stride, int64_t rows, int64_t head);
void round_rows(const float* from, int64_t lanes, const float* factors, bf16* to, int64_t stride, int64_t rows,
                int64_t head);

// Return the floats of scratch that the classes need for so many keys and queries of a head of `head` elements.
int64_t bf16_forward_floats(int64_t keys, int64_t head);
int64_t bf16_backward_floats(int64_t keys, int64_t queries, int64_t head);

// The softmax of a query block's scores with a piece of its keys, a few rows at a time, overlapped with GEMMs. Scores
// are shifted by the query's first score instead of its maximum, so that one pass is enough. If a much larger score
// makes the sum exceed a limit, the block is recomputed with maxima.
class PieceSoftmax {
 public:
  // Statistics of a query block: a query's shift in powers of two, and 16 partial sums over keys.
  struct Sums {
    alignas(64) float shift[kQueryBlock];
    alignas(64) float of_keys[kQueryBlock][kSide];
    alignas(64) float lse[kQueryBlock], inverse[kQueryBlock];
    // Computes lse and 1/sum. Returns false if a sum exceeds the limit.
    bool finish();
  };
  // A piece: register tiles of 32 queries by 32 keys, from `key` on. In place, scores become unnormalized probabilities
  // in tiles of 16 queries by 32 keys as pairs of bf16:
  //
  //      S, f32   | keys 0-15 | keys 16-31 |   ->   P, bf16   | hi of keys 0-31 | lo of keys 0-31 |
  struct Piece {
    float* scores;
    int64_t key_blocks, key;
    Mask mask;
    Sums* sums;
    bool first_shift;  // whether to set shifts from the first scores
  };
  // Starts a piece. The GEMMs will call step() `steps` times; `lines` of the queue are prefetched meanwhile.
  void begin(const Piece& piece, float factor, int64_t steps, int64_t lines, Prefetcher& prefetch);
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
  Prefetcher* prefetch_ = nullptr;
};

// The forward pass of several heads in order, as a software pipeline over pieces of keys.
class Bf16Forward {
 public:
  struct Head {
    Bf16Rows q, k, v;
  };
  struct Shape {
    int64_t keys, queries, head;
    Mask mask;
    float scale;
  };
  // Computes heads [begin, end), all of one shape; heads(i) returns head i.
  template <class Heads>
  Bf16Forward(const Shape& shape, int64_t begin, int64_t end, const Heads& heads, float* scratch)
      : Bf16Forward(
            shape, begin, end, &heads, [](const void* of, int64_t i) { return (*static_cast<const Heads*>(of))(i); },
            scratch) {}
  // Floats from a row of results to the next.
  int64_t lanes() const { return lanes_; }
  // Computes the next kQueryBlock queries, or the remaining ones of a head: [kQueryBlock][lanes], not yet divided by
  // the sums, with 1/sum and the log-sum-exp of each query. Empties the prefetch queue.
  struct Result {
    const float *rows, *inverse, *lse;
  };
  Result next(Prefetcher& prefetch);

 private:
  using HeadOf = Head (*)(const void*, int64_t);
  Bf16Forward(const Shape& shape, int64_t begin, int64_t end, const void* heads, HeadOf head_of, float* scratch);
  // The work of a pipeline stage: a piece of the keys of a query block.
  struct Item {
    int64_t head = 0, query_block = 0;
    int64_t first = 0, key_blocks = 0;  // blocks of 32 keys; 0 = after the last item
    int64_t number = 0;                 // index of the query block over all heads
    bool last = false;                  // the last piece of its query block
    Head rows{};
  };
  // Keys or values of a head as tiles, packed on first use.
  struct PackedHead {
    Pair* tiles;
    const bf16* source;
    int64_t blocks;
  };
  Item item(int64_t head, int64_t query_block, int64_t first, int64_t number) const;
  Item after(const Item& item) const;
  Mask mask_of(int64_t query_block) const { return shape_.mask.from(query_block * kQueryBlock); }
  int64_t rows_of(int64_t query_block) const {
    return std::min(kQueryBlock, shape_.queries - query_block * kQueryBlock);
  }
  PieceSoftmax::Piece piece_of(const Item& item, float* scores, bool first_shift);
  void pack_keys(const Item& item);
  void pack_values(const Item& item);
  void pack_queries(const Item& item);
  template <class Overlap>
  void multiply_keys(const Item& item, float* scores, Overlap& overlap);
  template <class Overlap>
  void multiply_values(const Item& item, const float* scores, Overlap& overlap);
  int64_t steps_of(const Item& values, const Item& keys) const;
  void advance(int64_t lines, Prefetcher& prefetch);
  void finish_sums(const Item& item);
  void recompute(const Item& item);

  const TileRegisters tiles_;
  const Shape shape_;
  const float factor_;
  int64_t end_;  // the last head + 1
  const void* heads_;
  HeadOf head_of_;
  int64_t lanes_, steps_;  // steps of 32 elements in a head
  PackedHead k_, v_;
  Pair* q_;
  int64_t q_of_ = -1;  // index of the query block in q_
  float *result_, *scores_, *other_scores_;
  Item weighed_, softmaxed_, scored_;  // at the stages O += P·V, softmax, S = Q·Kᵀ
  PieceSoftmax softmax_;
  PieceSoftmax::Sums sums_[2];  // sums of even and odd query blocks
};

class Bf16Backward {
 public:
  static constexpr int64_t kQueries = 128;  // capacity of queries()
  Bf16Backward(const Bf16Rows& k, const Bf16Rows& v, int64_t keys, int64_t queries, int64_t head, float* scratch);
  int64_t lanes() const { return lanes_; }
  // Accumulates the contributions of these queries to dk() and dv(); dq(i) then returns dq of the i-th query block.
  // Empties the prefetch queue.
  void queries(const Bf16Rows& q, const Bf16Rows& out, const Bf16Rows& dout, int64_t rows, const Mask& mask,
               float scale, const float* lse, Prefetcher& prefetch);
  void finish();                           // after all queries, before dk() and dv()
  const float* dq(int64_t query_block);    // [kQueryBlock][lanes], without `scale`
  const float* dk() const { return dk_; }  // [keys][lanes], without `scale`
  const float* dv() const { return dv_; }  // [keys][lanes]

 private:
  int64_t lo_of_pairs() const { return query_blocks_ * kQueryBlock * key_blocks_ * kSide; }
  void pack_queries(const Bf16Rows& from, int64_t rows, Pair* columns, Pair* down);
  // P and dS of 32 keys as tiles of A, hi and lo. Even and odd steps alternate between two buffers.
  struct StepGradients {
    Pair *p, *ds;
  };
  // The GEMMs for dk and dv of a step of 32 keys over query blocks [first, end); `next` of their register tiles are
  // done.
  struct KeyGradients {
    int64_t step, first, end, next;
  };
  template <class Overlap>
  void add_key_gradients(KeyGradients& gradients, int64_t tiles, Overlap& overlap);
  template <class Overlap>
  void multiply_dq(int64_t query_block, Overlap& overlap);
  const TileRegisters tiles_;
  int64_t head_, lanes_, steps_;  // steps of 32 elements in a head
  int64_t key_blocks_;            // of 32 keys
  int64_t query_blocks_;          // capacity
  Pair *k_, *v_, *k_transposed_, *q_, *dout_, *q_down_, *dout_down_, *ds_pairs_;
  StepGradients step_[2];
  float *scores_, *dq_transposed_, *dq_, *dk_, *dv_;
  int64_t added_ = 0;                         // key blocks whose gradients have contributions
  int64_t attended_[kQueries / kQueryBlock];  // key blocks that each of the last query blocks attends to
};

}  // namespace prun::cpu
