// The CPU device's kernels for model ops, in f32 and bf16, at sizes that leave a remainder for every vector and tile.
// They are compared with the reference device in f64, which is compared with numbers computed by hand. Each kernel must
// give bitwise identical results on one and two threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/gemm/driver.h"
#include "kernels/cpu/gemm/register_tile.h"
#include "kernels/cpu/instruction_set.h"
#include "kernels/devices.h"
#include "tests/unit/allocation_counter.h"
#include "tests/unit/one_op.h"

namespace prun::test {
namespace {

// |result - reference| <= relative · |reference| + absolute per element; bf16 results may also round at their own
// precision.
struct Bound {
  Dtype dtype;
  double relative, absolute;
};

void expect_near(const Values& got, const Values& want, Bound bound) {
  ASSERT_EQ(got.size(), want.size());
  if (bound.dtype == Dtype::bf16)
    bound.relative = std::max(bound.relative, 0x1p-8), bound.absolute = std::max(bound.absolute, 1e-6);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::abs(got[i] - want[i]), bound.relative * std::abs(want[i]) + bound.absolute)
        << "element " << i << ": " << got[i] << " for " << want[i];
  }
}

// Runs on one thread, checks for writes outside the tensors, runs on two threads and compares bits; returns the
// outputs.
std::vector<Values> outputs(OneOp& op) {
  std::vector<Values> results[2];
  for (int threads : {1, 2}) {
    results[threads - 1] = op.run(cpu(), threads).results();
    EXPECT_EQ(op.written_beside(), "") << op.kind();
  }
  EXPECT_EQ(results[0], results[1]) << op.kind() << " differs between one and two threads";
  return results[0];
}

std::vector<Values> wanted(const OneOp& op) {
  static const std::unique_ptr<Device> reference = open_device("reference");
  return op.in_f64().run(*reference).results();
}

// Checks each output against its bound; returns the reference's outputs.
std::vector<Values> expect_as_reference(OneOp op, const std::vector<Bound>& bounds) {
  SCOPED_TRACE(op.kind());
  const std::vector<Values> got = outputs(op), want = wanted(op);
  EXPECT_EQ(want.size(), bounds.size());
  for (size_t i = 0; i < bounds.size(); ++i) expect_near(got[i], want[i], bounds[i]);
  return want;
}

class CpuKernels : public testing::TestWithParam<Dtype> {
 protected:
  Dtype dtype = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Types, CpuKernels, testing::Values(Dtype::f32, Dtype::bf16),
                         [](const auto& type) { return std::string(dtype_name(type.param)); });

// Computed by hand, or from tables of the normal distribution and tanh.
TEST(Reference, HasTheNumbersOfTheTextbook) {
  const auto expect = [](const OneOp& op, const std::vector<Values>& want) {
    SCOPED_TRACE(op.kind());
    const std::vector<Values> got = wanted(op);
    for (size_t i = 0; i < want.size(); ++i) expect_near(got[i], want[i], {Dtype::f64, 0, 2e-6});
  };
  const Dtype f = Dtype::f32;
  const auto squares = [&](const char* kind) {
    return std::move(OneOp(kind).read(f, {2, 2}, {1, 2, 3, 4}).read(f, {2, 2}, {5, 6, 7, 8}));
  };
  expect(squares("linear").read(f, {2}, {1, -1}).write(f, {2, 2}), {{20, 21, 44, 49}});
  expect(squares("linear").attr("transpose", 1).write(f, {2, 2}), {{17, 23, 39, 53}});
  expect(squares("linear_dx").write(f, {2, 2}), {{17, 23, 39, 53}});
  expect(squares("linear_dw").write(f, {2, 2}).write(f, {2}), {{26, 30, 38, 44}, {12, 14}});
  OneOp exact("gelu"), by_tanh("gelu"), norm("layernorm"), attention("attention"), loss("cross_entropy");
  exact.attr("approximate", "none").read(f, {3}, {1, -1, 2}).write(f, {3});
  expect(exact, {{0.8413447, -0.1586553, 1.9544997}});
  by_tanh.attr("approximate", "tanh").read(f, {3}, {1, -1, 2}).write(f, {3});
  expect(by_tanh, {{0.8411920, -0.1588080, 1.9545977}});
  norm.attr("eps", 0.0).read(f, {1, 3}, {4, 5, 6}).read(f, {3}, {1, 2, 3}).read(f, {3}, {0, 1, 0});
  const double third = std::sqrt(1.5), score = std::log(3.0);
  expect(norm.write(f, {1, 3}).write(f, {1}).write(f, {1}), {{-third, 1, 3 * third}, {5}, {third}});
  // The second token's scores differ by ln 3, so it attends to the first token with weight 1/4.
  attention.attr("heads", 1).attr("causal", 1).read(f, {1, 2, 3}, {1, 0, 8, 1, score, 4});
  expect(attention.write(f, {1, 2, 1}).write(f, {1, 1, 2}), {{8, 5}, {0, std::log(4.0)}});
  loss.attr("scale", 0.5).read(f, {2, 2}, {0, score, score, 0}).read(Dtype::i32, {2}, {0, 0});
  expect(loss.write(f, {}).write(f, {2}),
         {{0.5 * (std::log(4.0) + std::log(4.0 / 3))}, {std::log(4.0), std::log(4.0)}});
  OneOp lookup("embedding");
  lookup.read(Dtype::i32, {1, 2}, {1, 1}).read(f, {2, 2}, {1, 2, 3, 4}).read(f, {2, 2}, {10, 20, 30, 40});
  expect(lookup.write(f, {1, 2, 2}), {{13, 24, 33, 44}});
}

struct LinearSize {
  int64_t batch, rows, k, n;
};
// The last sizes have few results and long dot products, which libraries tend to divide among threads.
const LinearSize kLinearSizes[] = {{1, 1, 1, 1},       {2, 3, 7, 5},     {1, 33, 65, 130}, {2, 64, 96, 48},
                                   {1, 130, 129, 300}, {1, 1, 3072, 64}, {1, 2048, 48, 1}, {1, 520, 130, 256}};

Bound sum_bound(Dtype dtype, int64_t terms) { return {dtype, 1e-5, 1e-5 * std::sqrt(static_cast<double>(terms))}; }

TEST_P(CpuKernels, LinearMultipliesAddsTheBiasAndActivates) {
  for (const auto& [batch, rows, k, n] : kLinearSizes) {
    const Values x = random_values(batch * rows * k, 1, dtype), w = random_values(k * n, 2, dtype),
                 b = random_values(n, 3, dtype);
    for (bool transpose : {false, true}) {
      for (const char* act : {"", "relu", "gelu"}) {
        OneOp op("linear");
        op.attr("transpose", transpose).attr("act", act).read(dtype, {batch, rows, k}, x);
        op.read(dtype, transpose ? Shape{n, k} : Shape{k, n}, w).read(dtype, {n}, b).write(dtype, {batch, rows, n});
        expect_as_reference(std::move(op), {sum_bound(dtype, k)});
      }
    }
  }
}

TEST_P(CpuKernels, LinearWithoutBias) {
  OneOp op("linear");
  op.read(dtype, {5, 9}, random_values(5 * 9, 1, dtype)).read(dtype, {9, 4}, random_values(9 * 4, 2, dtype));
  op.write(dtype, {5, 4});
  expect_as_reference(std::move(op), {{dtype, 1e-5, 1e-5}});
}

TEST_P(CpuKernels, LinearGradients) {
  for (const auto& [batch, rows, k, n] : kLinearSizes) {
    const int64_t m = batch * rows;
    const Values x = random_values(m * k, 1, dtype), w = random_values(k * n, 2, dtype),
                 dy = random_values(m * n, 3, dtype);
    for (bool transpose : {false, true}) {
      const Shape shape = transpose ? Shape{n, k} : Shape{k, n};
      OneOp dx("linear_dx"), dw("linear_dw");
      dx.attr("transpose", transpose).read(dtype, {batch, rows, n}, dy).read(dtype, shape, w);
      dx.write(dtype, {batch, rows, k});
      expect_as_reference(std::move(dx), {sum_bound(dtype, n)});
      dw.attr("transpose", transpose).read(dtype, {batch, rows, k}, x).read(dtype, {batch, rows, n}, dy);
      dw.write(Dtype::f32, shape).write(Dtype::f32, {n});
      expect_as_reference(std::move(dw), {sum_bound(Dtype::f32, m), {Dtype::f32, 1e-5, 1e-5}});
    }
  }
}

TEST_P(CpuKernels, GeluAndItsGradient) {
  Values x = {0, -0.0, 1, -1, 5, -5, 12, -12, 60, -60, 1e-8};
  for (double v : random_values(1000, 1, Dtype::f64)) x.push_back(4 * v);
  for (double& v : x) v = rounded_to(dtype, v);
  const int64_t n = std::ssize(x);
  for (const char* approximate : {"tanh", "none"}) {
    OneOp forward("gelu"), backward("gelu_dx");
    forward.attr("approximate", approximate).read(dtype, {n}, x).write_over(0);
    expect_as_reference(std::move(forward), {{dtype, 2e-6, 1e-30}});
    backward.attr("approximate", approximate).read(dtype, {n}, x).read(dtype, {n}, random_values(n, 2, dtype));
    expect_as_reference(std::move(backward.write_over(1)), {{dtype, 2e-6, 3e-7}});
  }
}

TEST_P(CpuKernels, ReluAndItsGradient) {
  const Values x = random_values(999, 1, dtype), dy = random_values(999, 2, dtype);
  Values y = x, dx = dy;
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = std::max(0.0, x[i]);
    if (y[i] <= 0) dx[i] = 0;
  }
  OneOp forward("relu"), backward("relu_dx");
  forward.read(dtype, {37, 27}, x).write(dtype, {37, 27});
  EXPECT_EQ(outputs(forward)[0], y);
  backward.read(dtype, {37, 27}, y).read(dtype, {37, 27}, dy).write(dtype, {37, 27});
  EXPECT_EQ(outputs(backward)[0], dx);
}

TEST_P(CpuKernels, LayernormAndItsGradient) {
  for (const auto& [rows, width] : {std::pair{1, 1}, {5, 7}, {70, 33}, {257, 256}}) {
    Values x = random_values(rows * width, 1, dtype);
    for (double& v : x) v = rounded_to(dtype, v + 3);  // a mean far from 0 exposes a variance computed as E[x²] - E[x]²
    const Values gamma = random_values(width, 2, dtype), beta = random_values(width, 3, dtype);
    OneOp forward("layernorm"), backward("layernorm_grad");
    forward.attr("eps", 1e-3).read(dtype, {rows, width}, x).read(dtype, {width}, gamma).read(dtype, {width}, beta);
    forward.write(dtype, {rows, width}).write(Dtype::f32, {rows}).write(Dtype::f32, {rows});
    const std::vector<Values> made =
        expect_as_reference(std::move(forward), {{dtype, 1e-5, 4e-6}, {Dtype::f32, 1e-6, 0}, {Dtype::f32, 2e-5, 0}});
    backward.read(dtype, {rows, width}, x).read(dtype, {rows, width}, random_values(rows * width, 4, dtype));
    backward.read(dtype, {width}, gamma).read(Dtype::f32, {rows}, made[1]).read(Dtype::f32, {rows}, made[2]);
    backward.write_over(1).write(Dtype::f32, {width}).write(Dtype::f32, {width});
    expect_as_reference(
        std::move(backward),
        {{dtype, 1e-5, dtype == Dtype::bf16 ? 1e-3 : 1e-5}, {Dtype::f32, 1e-5, 2e-5}, {Dtype::f32, 1e-5, 1e-5}});
  }
}

struct AttentionSizes {
  int64_t batch, length, heads, kv_heads, head;
  bool causal;
};

// `absolute`: error allowed in forward results besides rounding.
void expect_attention(Dtype dtype, const AttentionSizes& sizes, double absolute) {
  const auto& [batch, length, heads, kv_heads, head, causal] = sizes;
  const Shape wide = {batch, length, (heads + 2 * kv_heads) * head}, narrow = {batch, length, heads * head},
              statistic = {batch, heads, length};
  Values qkv = random_values(element_count(wide), 1, dtype);
  for (double& v : qkv) v *= 2;
  OneOp forward("attention"), backward("attention_grad");
  for (OneOp* op : {&forward, &backward})
    op->attr("heads", heads).attr("kv_heads", kv_heads).attr("causal", causal).read(dtype, wide, qkv);
  forward.write(dtype, narrow).write(Dtype::f32, statistic);
  const std::vector<Values> made =
      expect_as_reference(std::move(forward), {{dtype, 1e-5, absolute}, {Dtype::f32, 1e-6, 1e-6}});
  backward.read(dtype, narrow, made[0]).read(dtype, narrow, random_values(element_count(narrow), 2, dtype));
  backward.read(Dtype::f32, statistic, made[1]).write(dtype, wide);
  expect_as_reference(std::move(backward), {{dtype, 1e-5, dtype == Dtype::bf16 ? 2e-2 : 1e-5}});
}

TEST_P(CpuKernels, AttentionAndItsGradient) {
  for (const AttentionSizes& sizes : std::vector<AttentionSizes>{{1, 1, 1, 1, 1, true},
                                                                 {2, 19, 3, 3, 5, true},
                                                                 {2, 33, 2, 2, 16, false},
                                                                 {1, 70, 2, 2, 40, true},
                                                                 {1, 128, 1, 1, 64, true}})
    expect_attention(dtype, sizes, 2e-6);
}

// The last query block is partial; heads are read in place and, where six share keys, packed.
TEST_P(CpuKernels, AttentionOfSeveralBlocks) {
  const double bf16_bound = 2 * 0x1p-15;  // from attention_tiles.h, for numbers up to 2
  for (const AttentionSizes& sizes :
       std::vector<AttentionSizes>{{2, 70, 6, 1, 64, true}, {1, 157, 2, 1, 32, true}, {1, 150, 1, 1, 16, false}})
    expect_attention(dtype, sizes, dtype == Dtype::bf16 ? bf16_bound : 2e-6);
}

TEST_P(CpuKernels, AttentionSurvivesLargeScores) {
  Values qkv(3 * 4 * 20);
  for (size_t i = 0; i < qkv.size(); ++i)
    qkv[i] = i % 12 < 8 ? 200.0 : 1.0;  // q·k = 160,000: exp overflows unless the maximum is subtracted
  OneOp op("attention");
  op.attr("heads", 1).attr("causal", 1).read(dtype, {1, 20, 12}, qkv);
  op.write(dtype, {1, 20, 4}).write(Dtype::f32, {1, 1, 20});
  expect_near(outputs(op)[0], Values(80, 1.0), {dtype, 1e-5, 0});
}

TEST_P(CpuKernels, EmbeddingAndItsGradient) {
  const int64_t batch = 3, length = 7, vocab = 11, width = 21, places = 9;
  const Shape ids = {batch, length}, rows = {batch, length, width};
  const Values tokens = random_tokens(batch * length, 1, vocab), table = random_values(vocab * width, 2, dtype);
  OneOp with("embedding"), without("embedding"), backward("embedding_grad");
  with.read(Dtype::i32, ids, tokens).read(dtype, {vocab, width}, table);
  with.read(dtype, {places, width}, random_values(places * width, 3, dtype)).write(dtype, rows);
  expect_as_reference(std::move(with), {{dtype, 1e-6, 0}});
  without.read(Dtype::i32, ids, tokens).read(dtype, {vocab, width}, table).write(dtype, rows);
  EXPECT_EQ(outputs(without), wanted(without));
  backward.attr("vocab", vocab).attr("positions", places).read(Dtype::i32, ids, tokens);
  backward.read(dtype, rows, random_values(element_count(rows), 4, dtype));
  backward.write(Dtype::f32, {vocab, width}).write(Dtype::f32, {places, width});
  expect_as_reference(std::move(backward), {{Dtype::f32, 1e-6, 1e-6}, {Dtype::f32, 1e-6, 1e-6}});
}

TEST_P(CpuKernels, IdsOutsideATableOrTheLogitsEndTheJob) {
  for (const double id : {-7.0, 3.0, 2e9}) {
    OneOp embedding("embedding"), loss("cross_entropy");
    embedding.read(Dtype::i32, {1, 2}, {2, id}).read(dtype, {3, 1}, {1, 2, 3}).write(dtype, {1, 2, 1});
    EXPECT_THROW(outputs(embedding), Error) << id;
    loss.read(dtype, {2, 3}, {1, 2, 3, 4, 5, 6}).read(Dtype::i32, {2}, {id, 0});
    loss.write(Dtype::f32, {}).write(Dtype::f32, {2});
    EXPECT_THROW(outputs(loss), Error) << id;
  }
}

TEST_P(CpuKernels, CrossEntropyAndItsGradient) {
  const int64_t rows = 21, width = 77;
  Values logits = random_values(rows * width, 1, dtype);
  for (double& v : logits) v *= 8;
  logits[5] = 300;  // exp overflows unless the maximum is subtracted
  OneOp forward("cross_entropy"), backward("cross_entropy_grad");
  for (OneOp* op : {&forward, &backward}) {
    op->attr("scale", 0.125).read(dtype, {3, 7, width}, logits);
    op->read(Dtype::i32, {3, 7}, random_tokens(rows, 2, width));
  }
  forward.write(Dtype::f32, {}).write(Dtype::f32, {rows});
  const std::vector<Values> made =
      expect_as_reference(std::move(forward), {{Dtype::f32, 1e-6, 0}, {Dtype::f32, 1e-6, 1e-6}});
  backward.read(Dtype::f32, {rows}, made[1]).write_over(0);
  expect_as_reference(std::move(backward), {{dtype, 4e-6, 1e-8}});
}

// Powers are relative to the maximum of a row's first piece; a much larger logit after it starts a second pass.
TEST_P(CpuKernels, CrossEntropyOfRowsWhoseLargestLogitComesLate) {
  const int64_t rows = 4, width = 5003;
  Values logits = random_values(rows * width, 1, dtype);
  for (int64_t i = 0; i < width; ++i) {
    logits[static_cast<size_t>(width + i)] = static_cast<double>(i / 32);
    if (i < 3000) logits[static_cast<size_t>(2 * width + i)] = -std::numeric_limits<double>::infinity();
    logits[static_cast<size_t>(3 * width + i)] = i == 4990 ? -200 : -300;
  }
  OneOp loss("cross_entropy"), both("cross_entropy_and_grad");
  for (OneOp* op : {&loss, &both})
    op->read(dtype, {rows, width}, logits).read(Dtype::i32, {rows}, {7, 5000, 4000, 4990}).write(Dtype::f32, {});
  loss.write(Dtype::f32, {rows});
  both.write(Dtype::f32, {rows}).write(dtype, {rows, width});
  expect_as_reference(std::move(loss), {{Dtype::f32, 1e-6, 0}, {Dtype::f32, 1e-6, 1e-6}});
  expect_as_reference(std::move(both), {{Dtype::f32, 1e-6, 0}, {Dtype::f32, 1e-6, 1e-6}, {dtype, 1e-5, 1e-8}});
}

// A row's gradient is computed together with the next row's sum only if a cache holds both rows.
TEST_P(CpuKernels, CrossEntropyOfLongRows) {
  const int64_t rows = 2, width = cpu::second_level_cache() / 8 + 5;
  OneOp both("cross_entropy_and_grad");
  both.read(dtype, {rows, width}, random_values(rows * width, 1, dtype)).read(Dtype::i32, {rows}, {7, 9});
  both.write(Dtype::f32, {}).write(Dtype::f32, {rows}).write(dtype, {rows, width});
  expect_as_reference(std::move(both), {{Dtype::f32, 1e-6, 0}, {Dtype::f32, 1e-6, 1e-6}, {dtype, 1e-5, 1e-9}});
}

TEST_P(CpuKernels, SumLossesAndTheirGradients) {
  const int64_t n = 20001;
  const Values y = random_values(n, 1, dtype), target = random_values(n, 2, dtype);
  const auto loss = [&](const char* kind, bool two, bool scalar) {
    OneOp op(kind);
    op.attr("scale", 0.5).read(dtype, {n}, y);
    if (two) op.read(dtype, {n}, target);
    return std::move(op.write(scalar ? Dtype::f32 : dtype, scalar ? Shape{} : Shape{n}));
  };
  for (const auto& [kind, two] : {std::pair{"mse", true}, {"mean_square", false}, {"mean", false}})
    expect_as_reference(loss(kind, two, true), {{Dtype::f32, 1e-7, 0}});
  expect_as_reference(loss("mse_grad", true, false), {{dtype, 1e-6, 1e-7}});
  expect_as_reference(loss("mean_square_grad", false, false), {{dtype, 1e-6, 0}});
  OneOp mean = loss("mean_grad", false, false);
  EXPECT_EQ(outputs(mean)[0], Values(static_cast<size_t>(n), 0.5));
}

Allocations allocations_of(OneOp& op) {
  Kernel& kernel = op.prepare(cpu());
  kernel.run();  // the first run of a GEMM may still set up oneDNN
  start_counting_allocations();
  kernel.run();
  return stop_counting_allocations();
}

// Our kernels never allocate. oneDNN's primitives, which bf16 GEMMs may use, allocate a few map nodes and free them.
TEST_P(CpuKernels, RunningDoesNotAllocate) {
  if (!allocations_are_counted()) GTEST_SKIP() << "the sanitizer owns malloc";
  const int64_t b = 2, t = 64, d = 64;
  const Values x = random_values(b * t * 3 * d, 1, dtype), w = random_values(3 * d * d, 2, dtype);
  const Values narrow(x.begin(), x.begin() + b * t * d), lse(static_cast<size_t>(b * 4 * t), 1.0);
  OneOp linear("linear"), dx("linear_dx"), dw("linear_dw");
  linear.attr("act", "relu").read(dtype, {b, t, d}, narrow).read(dtype, {d, 3 * d}, w);
  linear.read(dtype, {3 * d}, Values(3 * d, 0.5)).write(dtype, {b, t, 3 * d});
  dx.read(dtype, {b, t, 3 * d}, x).read(dtype, {d, 3 * d}, w).write(dtype, {b, t, d});
  dw.read(dtype, {b, t, d}, narrow).read(dtype, {b, t, 3 * d}, x);
  dw.write(Dtype::f32, {d, 3 * d}).write(Dtype::f32, {3 * d});
  for (OneOp* op : {&linear, &dx, &dw}) {
    const Allocations seen = allocations_of(*op);
    EXPECT_LE(seen.count, dtype == Dtype::bf16 ? 8 : 0) << op->kind();
    EXPECT_LE(seen.largest, 256u) << op->kind();
    EXPECT_EQ(seen.kept, 0) << op->kind();
  }
  OneOp attention("attention"), attention_grad("attention_grad"), gelu("gelu"), rotary("rotary"), dropout("dropout");
  attention.attr("heads", 4).read(dtype, {b, t, 3 * d}, x);
  attention.write(dtype, {b, t, d}).write(Dtype::f32, {b, 4, t});
  attention_grad.attr("heads", 4).read(dtype, {b, t, 3 * d}, x).read(dtype, {b, t, d}, narrow);
  attention_grad.read(dtype, {b, t, d}, narrow).read(Dtype::f32, {b, 4, t}, lse).write(dtype, {b, t, 3 * d});
  gelu.read(dtype, {b, t, d}, narrow).write(dtype, {b, t, d});
  rotary.attr("heads", 4).attr("size", 16).read(dtype, {b, t, d}, narrow).write(dtype, {b, t, d});
  dropout.attr("p", 0.5).read(dtype, {b, t, d}, narrow).write(dtype, {b, t, d});
  for (OneOp* op : {&attention, &attention_grad, &gelu, &rotary, &dropout})
    EXPECT_EQ(allocations_of(*op).count, 0) << op->kind();
}

// Returns op(a)·op(b) in f64; a is m x k and b is k x n after their transposes.
Values matmul(const Values& a, const Values& b, int64_t m, int64_t n, int64_t k, bool ta, bool tb) {
  Values c(static_cast<size_t>(m * n)), rows(tb ? b.size() : 0);
  for (int64_t j = 0; tb && j < n; ++j)
    for (int64_t p = 0; p < k; ++p) rows[static_cast<size_t>(p * n + j)] = b[static_cast<size_t>(j * k + p)];
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t p = 0; p < k; ++p) {
      const double x = a[static_cast<size_t>(ta ? p * m + i : i * k + p)];
      const double* from = (tb ? rows : b).data() + p * n;
      for (int64_t j = 0; j < n; ++j) c[static_cast<size_t>(i * n + j)] += x * from[j];
    }
  }
  return c;
}

std::vector<float> floats(const Values& values) { return {values.begin(), values.end()}; }

// Checks the sums of B's columns, which are computed while B is packed; they are identical for any number of threads.
void expect_sums_of_b(cpu::GemmShape s, const std::vector<float>& x, const std::vector<float>& y,
                      std::vector<std::byte>& scratch) {
  std::vector<float> c(static_cast<size_t>(s.m * s.n)), sums(static_cast<size_t>(s.n), 7.0f), again = sums;
  cpu::run_driver(cpu::panel_backend(s), s, x.data(), y.data(), nullptr, c.data(), scratch.data(), false, sums.data());
  Values want(sums.size());
  for (size_t i = 0; i < y.size(); ++i) want[i % want.size()] += y[i];
  expect_near(Values(sums.begin(), sums.end()), want, {Dtype::f32, 1e-5, 3e-5});
  s.threads = 2;
  scratch.resize(static_cast<size_t>(cpu::driver_scratch_bytes(cpu::panel_backend(s), s)));
  cpu::run_driver(cpu::panel_backend(s), s, x.data(), y.data(), nullptr, c.data(), scratch.data(), false, again.data());
  EXPECT_EQ(sums, again);
}

// f32, also in parts: a range of C's rows, or a range of K that is accumulated. Sizes cross the blocks of K, M and N.
TEST(PanelGemm, AgreesInF32AndInParts) {
  for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {20, 40, 1600}, {350, 40, 30}, {9, 1100, 10}, {29, 61, 801}}) {
    for (int form = 0; form < 4; ++form) {
      cpu::GemmShape s;
      s.m = m, s.n = n, s.k = k, s.transpose_a = (form & 1) != 0, s.transpose_b = (form & 2) != 0;
      const Values a = random_values(m * k, 1, Dtype::f32), b = random_values(n * k, 2, Dtype::f32);
      const std::vector<float> x = floats(a), y = floats(b);
      const Values want = matmul(a, b, m, n, k, s.transpose_a, s.transpose_b);
      std::vector<float> c(want.size());
      std::vector<std::byte> scratch(static_cast<size_t>(cpu::driver_scratch_bytes(cpu::panel_backend(s), s)));
      cpu::run_driver(cpu::panel_backend(s), s, x.data(), y.data(), nullptr, c.data(), scratch.data());
      expect_near(Values(c.begin(), c.end()), want, {Dtype::f32, 1e-5, 3e-5});
      if (!s.transpose_b) expect_sums_of_b(s, x, y, scratch);
      if (form == 3) continue;  // a transposed B has no partial accumulation
      const cpu::Gemm whole(s, x.data(), y.data(), nullptr, c.data(), scratch.data());
      const int64_t rows = s.transpose_a ? k : m, first = rows / 3;
      std::fill(c.begin(), c.end(), 7.0f);
      whole.run_part(0, std::max<int64_t>(first, 1), false);
      if (first > 0) whole.run_part(first, rows - first, true);
      if (first > 0 && !s.transpose_a) whole.run_part(first, rows - first, false);
      expect_near(Values(c.begin(), c.end()), want, {Dtype::f32, 1e-5, 3e-5});
    }
  }
}

// bf16 GEMMs in every layout and on any number of threads. Sizes cross the blocks of K, M and N; the last size runs in
// register tiles alone.
void expect_bf16_gemms(const cpu::Backend& (*backend_of)(const cpu::GemmShape&)) {
  for (const auto& [m, n, k] : {std::tuple{1, 1, 1},
                                {15, 33, 257},
                                {400, 70, 300},
                                {30, 1100, 20},
                                {7, 9, 1600},
                                {32, 352, 1600},
                                {36, 40, 4128}}) {
    for (int form = 0; form < 32; ++form) {
      cpu::GemmShape s;
      s.m = m, s.n = n, s.k = k, s.transpose_a = (form & 1) != 0, s.transpose_b = (form & 2) != 0,
      s.bias = (form & 4) != 0;
      s.activation = (form & 16) != 0 ? cpu::Activation::relu : cpu::Activation::none;
      s.input = Dtype::bf16, s.output = (form & 8) != 0 ? Dtype::bf16 : Dtype::f32;
      const Values a = random_values(m * k, 1, Dtype::bf16), b = random_values(n * k, 2, Dtype::bf16),
                   bias = random_values(n, 3, Dtype::bf16);
      const auto narrow = [](const Values& values) {
        std::vector<bf16> narrowed;
        for (double v : values) narrowed.push_back(to_bf16(static_cast<float>(v)));
        return narrowed;
      };
      Values want = matmul(a, b, m, n, k, s.transpose_a, s.transpose_b), got[2];
      for (size_t i = 0; i < want.size() && s.bias; ++i) want[i] += bias[i % static_cast<size_t>(n)];
      for (double& sum : want) sum = s.activation == cpu::Activation::relu ? std::max(0.0, sum) : sum;
      for (int threads : {1, 2}) {
        s.threads = threads;
        std::vector<float> c(want.size());
        const cpu::Backend& backend = backend_of(s);
        std::vector<std::byte> scratch(static_cast<size_t>(cpu::driver_scratch_bytes(backend, s)));
        cpu::run_driver(backend, s, narrow(a).data(), narrow(b).data(), narrow(bias).data(), c.data(), scratch.data());
        for (size_t i = 0; i < want.size(); ++i) {
          const bf16 half = reinterpret_cast<const bf16*>(c.data())[i];
          got[threads - 1].push_back(static_cast<double>(s.output == Dtype::f32 ? c[i] : to_float(half)));
        }
      }
      expect_near(got[0], want, {s.output, 1e-5, 3e-5});
      EXPECT_EQ(got[0], got[1]) << m << " x " << n << " x " << k << " form " << form;
    }
  }
}

// The backend that Gemm chooses, for sizes that panels and oneDNN support, in every layout, and with the sums of B's
// columns where packing computes them.
TEST(Gemm, AgreesInBf16) {
  for (const auto& [m, n, k] : {std::tuple{160, 128, 256}, {128, 1056, 2048}, {400, 300, 1601}, {20, 160, 160}}) {
    for (int form = 0; form < 3; ++form) {
      cpu::GemmShape s;
      s.m = m, s.n = n, s.k = k, s.transpose_b = form == 1, s.transpose_a = form == 2, s.input = Dtype::bf16;
      const Values a = random_values(m * k, 1, Dtype::bf16), b = random_values(n * k, 2, Dtype::bf16);
      std::vector<bf16> x, y;
      for (double v : a) x.push_back(to_bf16(static_cast<float>(v)));
      for (double v : b) y.push_back(to_bf16(static_cast<float>(v)));
      std::vector<float> c(static_cast<size_t>(m * n)), sums(static_cast<size_t>(n), 7.0f);
      std::vector<std::byte> scratch(static_cast<size_t>(cpu::gemm_scratch_bytes(s)));
      const cpu::Gemm gemm(s, x.data(), y.data(), nullptr, c.data(), scratch.data());
      gemm.run();
      const Values want = matmul(a, b, m, n, k, s.transpose_a, s.transpose_b);
      expect_near(Values(c.begin(), c.end()), want, {Dtype::f32, 1e-5, 3e-5});
      if (!gemm.takes_sums()) continue;
      std::fill(c.begin(), c.end(), 7.0f);
      gemm.run_and_sum(sums.data());
      expect_near(Values(c.begin(), c.end()), want, {Dtype::f32, 1e-5, 3e-5});
      Values wanted(sums.size());
      for (size_t i = 0; i < b.size(); ++i) wanted[i % wanted.size()] += b[i];
      expect_near(Values(sums.begin(), sums.end()), wanted, {Dtype::f32, 1e-5, 3e-5});
    }
  }
}

// The fallback of machines without bf16 instructions, or bf16 pairs on CPUs that multiply them.
TEST(PanelGemm, AgreesInBf16) { expect_bf16_gemms(cpu::panel_backend); }

TEST(AmxGemm, AgreesInBf16) {
  if (!cpu::has_amx()) GTEST_SKIP() << "this CPU has no AMX";
  expect_bf16_gemms([](const cpu::GemmShape&) -> const cpu::Backend& { return cpu::kAmxTiles; });
}

}  // namespace
}  // namespace prun::test
