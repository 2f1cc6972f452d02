// See query_block.h. On the diagonal of a causal mask, reductions end at the last element that is not masked. Scores
// are computed in steps of 8 queries by 8 keys, so some of them are masked later:
//
//                 queries 0 .. 31 ->
//      keys       | all | all | all | all |
//      before     | all | all | all | all |
//      diagonal   | tri | all | all | all |   8 keys a row
//                 |     | tri | all | all |
//                 |     |     | tri | all |
//                 |     |     |     | tri |
#include <algorithm>

#include "base/error.h"
#include "kernels/cpu/attention/accumulator_tile.h"
#include "kernels/cpu/attention/query_block.h"

namespace prun::cpu {
namespace {

constexpr int kStep = 8;  // queries and keys of a step on the diagonal

// Computes scores of `rows` keys with the queries from `first` on.
template <Elements kElements, int lanes, int rows, int vectors>
PRUN_INLINE void score_block(const FloatRows& k, int64_t count, const float* q, int64_t first, float* scores,
                             int64_t ld, Prefetcher& prefetch) {
  AccumulatorTile<lanes, rows, vectors> c;
  c.clear();
  c.template add<kElements>({k.data, k.stride, 1, q + first, kQueryBlock}, count, prefetch);
  c.store(scores + first, ld);
}

// Computes scores of 8 queries and of the next 16, as one short and one long vector: as fast as 32 queries on CPUs with
// full-width units, and as 24 on those that split long vectors.
template <Elements kElements, int rows>
PRUN_INLINE void score_uneven(const FloatRows& k, int64_t count, const float* q, float* scores, int64_t ld,
                              Prefetcher& prefetch) {
  AccumulatorTile<8, rows, 1> low;
  AccumulatorTile<16, rows, 1> high;
  low.clear();
  high.clear();
  const float* a = k.data;
  Prefetcher::Cursor cursor = prefetch.next();
  for (int64_t p = 0; p < count; ++p, ++a, q += kQueryBlock) {
    const Floats<8> first = load_lanes<8>(q);
    const Floats<16> second = load_lanes<16>(q + 8);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      if constexpr (kVectorAsm) {
        Floats<16> x;  // its lower half is the short vector
        asm("vbroadcastss %1, %0" : "=v"(x) : "m"(a[r * k.stride]));
        const Floats<8> half = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7);
        if constexpr (kElements == Elements::bf16_pairs) {
          asm("vdpbf16ps %2, %1, %0" : "+v"(low.at[r][0]) : "v"(half), "v"(first));
          asm("vdpbf16ps %2, %1, %0" : "+v"(high.at[r][0]) : "v"(x), "v"(second));
        } else {
          low.at[r][0] += half * first;
          high.at[r][0] += x * second;
        }
      } else {
        low.at[r][0] += a[r * k.stride] * first;
        high.at[r][0] += a[r * k.stride] * second;
      }
    }
    cursor.step();
  }
  prefetch.keep(cursor);
  low.store(scores, ld);
  high.store(scores + 8, ld);
}

template <Elements kElements, int lanes, int rows>
PRUN_INLINE void score_rows(const FloatRows& k, int64_t count, const float* q, int64_t first, float* scores, int64_t ld,
                            Prefetcher& prefetch) {
  if constexpr (lanes == 16) {  // short vectors where long ones would start before the diagonal
    if (first == kStep) return score_uneven<kElements, rows>(k, count, q + first, scores + first, ld, prefetch);
    if (first == 3 * kStep) return score_block<kElements, kStep, rows, 1>(k, count, q, first, scores, ld, prefetch);
  }
  each_columns<lanes>(kQueryBlock - first, [&]<int vectors>(int64_t j) PRUN_INLINED {
    score_block<kElements, lanes, rows, vectors>(k, count, q, first + j, scores, ld, prefetch);
  });
}

template <Elements kElements, int lanes>
PRUN_INLINE void score_keys(const QueryBlock& block, const FloatRows& k, int64_t count, const float* q, float* scores,
                            int64_t ld, Prefetcher& prefetch) {
  int64_t from = 0, end = std::min(block.keys, block.before + kStep);
  for (int64_t first = 0; from < block.keys; first += kStep) {
    each_rows<kBlockRows<lanes>>(from, end, [&]<int rows>(int64_t j) PRUN_INLINED {
      score_rows<kElements, lanes, rows>(k.from(j), count, q, first, scores + j * ld, ld, prefetch);
    });
    from = end;
    end = std::min(block.keys, end + kStep);
  }
}

}  // namespace

void QueryBlock::score(const FloatRows& k, int64_t head, const float* q, float* scores, int64_t ld,
                       Prefetcher& prefetch) const {
  with_lanes([&]<int lanes>()
                 PRUN_INLINED { score_keys<Elements::floats, lanes>(*this, k, head, q, scores, ld, prefetch); });
}

void QueryBlock::score_pairs(const FloatRows& k, int64_t head, const float* q, float* scores, int64_t ld,
                             Prefetcher& prefetch) const {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    if constexpr (kVectorAsm && lanes == 16)
      score_keys<Elements::bf16_pairs, lanes>(*this, k, head / 2, q, scores, ld, prefetch);
    else
      PRUN_CHECK(false, "no dot products of pairs");
  });
}

void QueryBlock::reduce_over_keys(const float* weights, int64_t ld, const FloatRows& values, int64_t lanes_of_head,
                                  const float* factors, float* to, int64_t stride, Prefetcher& prefetch) const {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    constexpr int kRows = kBlockRows<lanes>;
    each_rows<kRows>(0, rows, [&]<int block>(int64_t i) PRUN_INLINED {
      const bool triangle = block == kRows && before < keys;
      const int64_t all = triangle ? before + i : std::min(keys, before + i + block);
      each_columns<lanes>(lanes_of_head, [&]<int vectors>(int64_t j) PRUN_INLINED {
        const Operands t{weights + i, 1, ld, values.data + j, values.stride};
        AccumulatorTile<lanes, block, vectors> c;
        c.clear();
        c.add(t, all, prefetch);
        if (block == kRows && triangle) c.add_lower(t.advance(all));
        if (factors != nullptr) c.scale(factors + i);
        c.store(to + i * stride + j, stride);
      });
    });
  });
}

void QueryBlock::reduce_over_queries(const float* weights, int64_t ld, const FloatRows& from, int64_t lanes_of_head,
                                     float* to, int64_t stride, int64_t added, Prefetcher& prefetch) const {
  with_lanes([&]<int lanes>() PRUN_INLINED {
    constexpr int kRows = kBlockRows<lanes>;
    const auto block_of = [&]<int block>(int64_t key) PRUN_INLINED {
      const int64_t first = std::max<int64_t>(0, key - before);
      const bool triangle = block == kRows && key >= before && rows - first >= block;
      each_columns<lanes>(lanes_of_head, [&]<int vectors>(int64_t j) PRUN_INLINED {
        const Operands t =
            Operands{weights + key * ld, ld, 1, from.data + j, from.stride}.advance(first + (triangle ? block : 0));
        float* dest = to + key * stride + j;
        AccumulatorTile<lanes, block, vectors> c;
        if (key < added)
          c.load(dest, stride);
        else
          c.clear();
        if (block == kRows && triangle) c.add_upper(t.advance(-block));
        c.add(t, rows - first - (triangle ? block : 0), prefetch);
        c.store(dest, stride);
      });
    };
    each_rows<kRows>(0, std::min(keys, before), block_of);
    each_rows<kRows>(std::min(keys, before), keys, block_of);
  });
}

}  // namespace prun::cpu
