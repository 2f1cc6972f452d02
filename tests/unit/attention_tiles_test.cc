// One head's attention on the CPU's bf16 GEMM instructions, compared with f64 under the bounds that attention_tiles.h
// states. With ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 the instructions are vector ones, for which attention may prefer
// f32.
#include "kernels/cpu/attention/attention_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include "kernels/cpu/gemm/register_tile.h"
#include "kernels/cpu/instruction_set.h"

namespace prun::cpu {
namespace {

constexpr double kRest = 0x1p-15;   // error of a number stored as two bf16, relative
constexpr double kInFloats = 2e-5;  // error of exp and of f32 accumulation, relative to the sum of magnitudes

using Rows = std::vector<bf16>;

struct Shape {
  int64_t keys, queries, head;
  Mask mask;
  bool far = false;  // true: all queries are close to all keys except the first
};

struct Scratch {
  float* data;
  explicit Scratch(int64_t floats)
      : data(static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(floats) * 4))) {}
  ~Scratch() { std::free(data); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
};

// A head's rows, stored in rows that are 3 elements longer.
struct Matrix {
  int64_t head;
  Rows values;
  Matrix(int64_t rows, int64_t size, unsigned seed) : head(size), values(static_cast<size_t>(rows * (size + 3))) {
    std::mt19937 random(seed);
    std::uniform_real_distribution<float> uniform(-2, 2);
    for (bf16& x : values) x = to_bf16(uniform(random));
  }
  Matrix magnitudes() const {
    Matrix made = *this;
    for (bf16& x : made.values) x = to_bf16(2.2f * std::abs(to_float(x)));
    return made;
  }
  Matrix first_negated() const {
    Matrix made = *this;
    std::transform(values.begin(), values.begin() + head, made.values.begin(),
                   [](bf16 x) { return to_bf16(-to_float(x)); });
    return made;
  }
  Bf16Rows rows() const { return {values.data(), head + 3}; }
  double at(int64_t row, int64_t i) const {
    return static_cast<double>(to_float(values[static_cast<size_t>(row * (head + 3) + i)]));
  }
  double dot(int64_t row, const Matrix& other, int64_t other_row) const {
    double sum = 0;
    for (int64_t i = 0; i < head; ++i) sum += at(row, i) * other.at(other_row, i);
    return sum;
  }
};

class AttentionInBf16 : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    if (!has_amx() && !has_avx512_bf16()) GTEST_SKIP() << "this CPU has no bf16 GEMM instructions";
  }
  const Shape shape = GetParam();
  const int64_t head = shape.head;
  const float scale = 1.0f / std::sqrt(static_cast<float>(head));
  const Matrix q = shape.far ? Matrix(shape.queries, head, 1).magnitudes() : Matrix(shape.queries, head, 1);
  const Matrix k = shape.far ? Matrix(shape.keys, head, 2).magnitudes().first_negated() : Matrix(shape.keys, head, 2);
  const Matrix v{shape.keys, head, 3};
  const Matrix out{shape.queries, head, 4}, dout{shape.queries, head, 5};

  int64_t seen(int64_t query) const { return shape.mask.keys(query + 1); }
  double score(int64_t query, int64_t key) const { return q.dot(query, k, key) * static_cast<double>(scale); }
  double lse(int64_t query) const {
    double sum = 0;
    for (int64_t j = 0; j < seen(query); ++j) sum += std::exp(score(query, j));
    return std::log(sum);
  }
  void expect_results_within_the_bound() const;
};

void AttentionInBf16::expect_results_within_the_bound() const {
  const Scratch scratch(bf16_forward_floats(shape.keys, head));
  const auto rows_of_head = [&](int64_t) -> Bf16Forward::Head { return {q.rows(), k.rows(), v.rows()}; };
  Bf16Forward forward({shape.keys, shape.queries, head, shape.mask, scale}, 0, 1, rows_of_head, scratch.data);
  Prefetcher none;
  for (int64_t first = 0; first < shape.queries; first += kQueryBlock) {
    const int64_t rows = std::min(kQueryBlock, shape.queries - first);
    const auto [result, inverse, block_lse] = forward.next(none);
    for (int64_t r = 0; r < rows; ++r) {
      const double whole = lse(first + r);
      ASSERT_NEAR(static_cast<double>(block_lse[r]), whole, 1e-5 * (1 + std::abs(whole)));
      for (int64_t i = 0; i < head; ++i) {
        double wanted = 0, magnitude = 0;
        for (int64_t j = 0; j < seen(first + r); ++j) {
          const double term = std::exp(score(first + r, j) - whole) * v.at(j, i);
          wanted += term;
          magnitude += std::abs(term);
        }
        const double found = static_cast<double>(result[r * forward.lanes() + i]) * static_cast<double>(inverse[r]);
        ASSERT_NEAR(found, wanted, (kRest + kInFloats) * magnitude) << "query " << first + r << " element " << i;
      }
    }
  }
}

TEST_P(AttentionInBf16, IsWithinTheBoundThatItStates) { expect_results_within_the_bound(); }

TEST_P(AttentionInBf16, GradientsAreWithinTheBoundThatTheyState) {
  const Scratch scratch(bf16_backward_floats(shape.keys, shape.queries, head));
  Bf16Backward backward(k.rows(), v.rows(), shape.keys, shape.queries, head, scratch.data);
  const size_t count = static_cast<size_t>(shape.keys * head);
  std::vector<double> dk(count), dv(count), dk_sizes(count), dv_sizes(count);
  const double factor = static_cast<double>(scale);
  Prefetcher none;
  for (int64_t block = 0; block < shape.queries; block += Bf16Backward::kQueries) {
    const int64_t rows = std::min(Bf16Backward::kQueries, shape.queries - block);
    std::vector<float> statistic;
    for (int64_t r = 0; r < rows; ++r) statistic.push_back(static_cast<float>(lse(block + r)));
    const Mask mask{shape.mask.attended + block * shape.mask.step, shape.mask.step};
    backward.queries(q.rows().from(block), out.rows().from(block), dout.rows().from(block), rows, mask, scale,
                     statistic.data(), none);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t query = block + r;
      const double along = out.dot(query, dout, query), whole = lse(query);
      std::vector<double> dq(static_cast<size_t>(head)), dq_sizes(static_cast<size_t>(head));
      for (int64_t j = 0; j < seen(query); ++j) {
        const double p = std::exp(score(query, j) - whole), dp = dout.dot(query, v, j);
        const double ds = p * (dp - along) * factor;
        // dP and dout·out, which is subtracted from it, are both accumulated in f32.
        const double size = p * (std::abs(dp) + std::abs(along) + static_cast<double>(head)) * factor;
        for (int64_t i = 0; i < head; ++i) {
          const size_t at = static_cast<size_t>(j * head + i), lane = static_cast<size_t>(i);
          dq[lane] += ds * k.at(j, i), dq_sizes[lane] += size * std::abs(k.at(j, i));
          dk[at] += ds * q.at(query, i), dk_sizes[at] += size * std::abs(q.at(query, i));
          dv[at] += p * dout.at(query, i), dv_sizes[at] += p * std::abs(dout.at(query, i));
        }
      }
      const float* found = backward.dq(r / kQueryBlock) + r % kQueryBlock * backward.lanes();
      for (int64_t i = 0; i < head; ++i)
        ASSERT_NEAR(static_cast<double>(found[i]) * factor, dq[static_cast<size_t>(i)],
                    (kRest + kInFloats) * dq_sizes[static_cast<size_t>(i)])
            << "dq of query " << query;
    }
  }
  backward.finish();
  for (int64_t j = 0; j < shape.keys; ++j) {
    for (int64_t i = 0; i < head; ++i) {
      const size_t at = static_cast<size_t>(j * head + i);
      const int64_t here = j * backward.lanes() + i;
      ASSERT_NEAR(static_cast<double>(backward.dk()[here]) * factor, dk[at], (kRest + kInFloats) * dk_sizes[at]) << j;
      ASSERT_NEAR(static_cast<double>(backward.dv()[here]), dv[at], (kRest + kInFloats) * dv_sizes[at]) << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionInBf16,
                         testing::Values(Shape{1, 1, 1, {1, 1}}, Shape{64, 64, 64, {1, 1}}, Shape{70, 70, 33, {1, 1}},
                                         Shape{150, 150, 16, {1, 1}}, Shape{37, 150, 20, {37, 0}},
                                         Shape{130, 40, 80, {91, 1}}, Shape{90, 33, 128, {50, 0}}));

// The first score of a query is far from its maximum. Some gradients underflow f32, so only results are compared.
class FarAttentionInBf16 : public AttentionInBf16 {};
TEST_P(FarAttentionInBf16, IsWithinTheBoundThatItStates) { expect_results_within_the_bound(); }
INSTANTIATE_TEST_SUITE_P(Shapes, FarAttentionInBf16,
                         testing::Values(Shape{64, 64, 64, {1, 1}, true}, Shape{150, 150, 64, {1, 1}, true},
                                         Shape{200, 70, 128, {131, 1}, true}));

// Processes heads in order, including heads that share keys and values and heads whose query blocks are recomputed.
TEST_P(FarAttentionInBf16, HeadsHaveTheBitsThatEachHasAlone) {
  const Matrix near_q(shape.queries, head, 6), near_k(shape.keys, head, 7), near_v(shape.keys, head, 8);
  const std::vector<Bf16Forward::Head> heads = {{near_q.rows(), near_k.rows(), near_v.rows()},
                                                {q.rows(), k.rows(), v.rows()},
                                                {near_q.rows(), k.rows(), v.rows()},
                                                {q.rows(), k.rows(), v.rows()},
                                                {near_q.rows(), near_k.rows(), near_v.rows()}};
  const auto results = [&](int64_t begin, int64_t end) {
    const Scratch scratch(bf16_forward_floats(shape.keys, head));
    const auto head_of = [&](int64_t i) { return heads[static_cast<size_t>(i)]; };
    Bf16Forward forward({shape.keys, shape.queries, head, shape.mask, scale}, begin, end, head_of, scratch.data);
    Prefetcher none;
    std::vector<float> found;
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t first = 0; first < shape.queries; first += kQueryBlock) {
        const auto [result, inverse, block_lse] = forward.next(none);
        for (int64_t r = 0; r < std::min(kQueryBlock, shape.queries - first); ++r) {
          found.insert(found.end(), result + r * forward.lanes(), result + r * forward.lanes() + head);
          found.insert(found.end(), {inverse[r], block_lse[r]});
        }
      }
    }
    return found;
  };
  std::vector<float> apart;
  for (int64_t i = 0; i < std::ssize(heads); ++i) {
    const std::vector<float> one = results(i, i + 1);
    apart.insert(apart.end(), one.begin(), one.end());
  }
  EXPECT_EQ(results(0, std::ssize(heads)), apart);
}

}  // namespace
}  // namespace prun::cpu
