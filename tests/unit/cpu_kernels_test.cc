// The CPU device's kernels of a model's ops against plain f64 loops, in f32 and bf16, at sizes that leave remainders
// for every vector and tile; each kernel on one thread and on two must give the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "device/cpu/packed_gemm.h"
#include "tests/unit/allocation_counter.h"
#include "tests/unit/one_op.h"

namespace prun::test {
namespace {

using Values = std::vector<double>;

Device& cpu() {
  static const std::unique_ptr<Device> device = open_device("cpu");
  return *device;
}

// Numbers in [-1, 1) that the type holds exactly.
Values random_values(int64_t count, unsigned seed, Dtype dtype) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  Values values;
  for (int64_t i = 0; i < count; ++i) values.push_back(rounded_to(dtype, uniform(generator)));
  return values;
}
Values random_tokens(int64_t count, unsigned seed, int64_t vocab) {
  std::mt19937 generator(seed);
  Values values;
  for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<double>(generator() % static_cast<unsigned>(vocab)));
  return values;
}

// |got - want| <= relative · |want| + absolute, for each element; bf16 results may round at their own precision.
void expect_near(const Values& got, const Values& want, Dtype dtype, double relative, double absolute) {
  ASSERT_EQ(got.size(), want.size());
  if (dtype == Dtype::bf16) relative = std::max(relative, 0x1p-8), absolute = std::max(absolute, 1e-6);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_LE(std::abs(got[i] - want[i]), relative * std::abs(want[i]) + absolute)
        << "element " << i << ": " << got[i] << " for " << want[i];
  }
}

// Runs on one thread, checks the guards, runs on two and compares bits; returns the outputs.
std::vector<Values> outputs(OneOp& op) {
  std::vector<Values> results[2];
  for (int threads : {1, 2}) {
    op.run(cpu(), threads);
    EXPECT_TRUE(op.guards_intact()) << op.op().def->name;
    for (size_t i = 0; i < op.op().writes.size(); ++i) results[threads - 1].push_back(op.result(i));
  }
  EXPECT_EQ(results[0], results[1]) << op.op().def->name << " differs between one and two threads";
  return results[0];
}

class CpuKernels : public testing::TestWithParam<Dtype> {
 protected:
  Dtype dtype = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Types, CpuKernels, testing::Values(Dtype::f32, Dtype::bf16),
                         [](const auto& type) { return std::string(dtype_name(type.param)); });

// op(a)·op(b) in f64; a is m x k and b k x n after their transposes.
Values product(const Values& a, const Values& b, int64_t m, int64_t n, int64_t k, bool ta, bool tb) {
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

double gelu_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

struct LinearSize {
  int64_t batch, rows, k, n;
};
// The last ones have long sums for few results, which libraries like to divide among threads.
const LinearSize kLinearSizes[] = {{1, 1, 1, 1},       {2, 3, 7, 5},     {1, 33, 65, 130}, {2, 64, 96, 48},
                                   {1, 130, 129, 300}, {1, 1, 3072, 64}, {1, 2048, 48, 1}, {1, 520, 130, 256}};

TEST_P(CpuKernels, LinearMultipliesAddsTheBiasAndActivates) {
  for (const auto& [batch, rows, k, n] : kLinearSizes) {
    const int64_t m = batch * rows;
    const Values x = random_values(m * k, 1, dtype), w = random_values(k * n, 2, dtype), b = random_values(n, 3, dtype);
    for (bool transpose : {false, true}) {
      for (const char* act : {"", "relu", "gelu"}) {
        OneOp op("linear");
        op.attr("transpose", int64_t{transpose}).attr("act", std::string(act)).read(dtype, {batch, rows, k}, x);
        op.read(dtype, transpose ? Shape{n, k} : Shape{k, n}, w).read(dtype, {n}, b).write(dtype, {batch, rows, n});
        Values want = product(x, w, m, n, k, false, transpose);
        for (size_t i = 0; i < want.size(); ++i) {
          want[i] += b[i % static_cast<size_t>(n)];
          if (*act == 'r') want[i] = std::max(0.0, want[i]);
          if (*act == 'g') want[i] = gelu_tanh(want[i]);
        }
        expect_near(outputs(op)[0], want, dtype, 1e-5, 1e-5 * std::sqrt(static_cast<double>(k)));
      }
    }
  }
}

TEST_P(CpuKernels, LinearWithoutBias) {
  const Values x = random_values(5 * 9, 1, dtype), w = random_values(9 * 4, 2, dtype);
  OneOp op("linear");
  op.read(dtype, {5, 9}, x).read(dtype, {9, 4}, w).write(dtype, {5, 4});
  expect_near(outputs(op)[0], product(x, w, 5, 4, 9, false, false), dtype, 1e-5, 1e-5);
}

TEST_P(CpuKernels, LinearGradients) {
  for (const auto& [batch, rows, k, n] : kLinearSizes) {
    const int64_t m = batch * rows;
    const Values x = random_values(m * k, 1, dtype), w = random_values(k * n, 2, dtype),
                 dy = random_values(m * n, 3, dtype);
    Values db(static_cast<size_t>(n));
    for (size_t i = 0; i < dy.size(); ++i) db[i % static_cast<size_t>(n)] += dy[i];
    for (bool transpose : {false, true}) {
      const Shape shape = transpose ? Shape{n, k} : Shape{k, n};
      OneOp dx("linear_dx");
      dx.attr("transpose", int64_t{transpose})
          .read(dtype, {batch, rows, n}, dy)
          .read(dtype, shape, w)
          .write(dtype, {batch, rows, k});
      expect_near(outputs(dx)[0], product(dy, w, m, k, n, false, !transpose), dtype, 1e-5,
                  1e-5 * std::sqrt(static_cast<double>(n)));
      OneOp dw("linear_dw");
      dw.attr("transpose", int64_t{transpose}).read(dtype, {batch, rows, k}, x).read(dtype, {batch, rows, n}, dy);
      dw.write(Dtype::f32, shape).write(Dtype::f32, {n});
      const std::vector<Values> got = outputs(dw);
      const Values want = transpose ? product(dy, x, n, k, m, true, false) : product(x, dy, k, n, m, true, false);
      expect_near(got[0], want, Dtype::f32, 1e-5, 1e-5 * std::sqrt(static_cast<double>(m)));
      expect_near(got[1], db, Dtype::f32, 1e-5, 1e-5);
    }
  }
}

TEST_P(CpuKernels, GeluAndItsGradient) {
  Values x = {0, -0.0, 1, -1, 5, -5, 12, -12, 60, -60, 1e-8};
  for (double v : random_values(1000, 1, Dtype::f64)) x.push_back(4 * v);
  for (double& v : x) v = rounded_to(dtype, v);
  const int64_t n = static_cast<int64_t>(x.size());
  const Values dy = random_values(n, 2, dtype);
  for (const char* approximate : {"tanh", "none"}) {
    Values y(x.size()), dx(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = x[i], cdf = 0.5 * std::erfc(-v / std::numbers::sqrt2);
      const double a = std::sqrt(2 / std::numbers::pi), s = 1 / (1 + std::exp(-2 * a * (v + 0.044715 * v * v * v)));
      const bool exact = *approximate == 'n';
      y[i] = exact ? v * cdf : v * s;
      const double slope = exact ? cdf + v * std::exp(-0.5 * v * v) / std::sqrt(2 * std::numbers::pi)
                                 : s + v * s * (1 - s) * 2 * a * (1 + 3 * 0.044715 * v * v);
      dx[i] = dy[i] * slope;
    }
    OneOp forward("gelu"), backward("gelu_dx");
    forward.attr("approximate", std::string(approximate)).read(dtype, {n}, x).write_over(0);
    expect_near(outputs(forward)[0], y, dtype, 2e-6, 1e-30);
    backward.attr("approximate", std::string(approximate)).read(dtype, {n}, x).read(dtype, {n}, dy).write_over(1);
    expect_near(outputs(backward)[0], dx, dtype, 2e-6, 3e-7);
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
    const int64_t n = rows * width;
    Values x = random_values(n, 1, dtype);
    for (double& v : x) v = rounded_to(dtype, v + 3);  // a mean far from 0 shows a variance computed the short way
    const Values gamma = random_values(width, 2, dtype), beta = random_values(width, 3, dtype),
                 dy = random_values(n, 4, dtype);
    const double eps = 1e-3;
    Values y(x.size()), mean, rstd, dx(x.size()), dgamma(gamma.size()), dbeta(gamma.size());
    for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
      const size_t d = static_cast<size_t>(width), at = r * d;
      double centre = 0, variance = 0, along = 0, through = 0;
      for (size_t i = 0; i < d; ++i) centre += x[at + i] / width;
      for (size_t i = 0; i < d; ++i) variance += (x[at + i] - centre) * (x[at + i] - centre) / width;
      mean.push_back(centre);
      rstd.push_back(1 / std::sqrt(variance + eps));
      for (size_t i = 0; i < d; ++i) {
        const double normal = (x[at + i] - centre) * rstd[r];
        y[at + i] = normal * gamma[i] + beta[i];
        dgamma[i] += dy[at + i] * normal;
        dbeta[i] += dy[at + i];
        along += dy[at + i] * gamma[i] * normal / width;
        through += dy[at + i] * gamma[i] / width;
      }
      for (size_t i = 0; i < d; ++i) {
        dx[at + i] = (dy[at + i] * gamma[i] - through - (x[at + i] - centre) * rstd[r] * along) * rstd[r];
      }
    }
    OneOp forward("layernorm");
    forward.attr("eps", eps).read(dtype, {rows, width}, x).read(dtype, {width}, gamma).read(dtype, {width}, beta);
    forward.write(dtype, {rows, width}).write(Dtype::f32, {rows}).write(Dtype::f32, {rows});
    const std::vector<Values> got = outputs(forward);
    expect_near(got[0], y, dtype, 1e-5, 4e-6);
    expect_near(got[1], mean, Dtype::f32, 1e-6, 0);
    expect_near(got[2], rstd, Dtype::f32, 2e-5, 0);
    OneOp backward("layernorm_grad");
    backward.read(dtype, {rows, width}, x).read(dtype, {rows, width}, dy).read(dtype, {width}, gamma);
    backward.read(Dtype::f32, {rows}, mean).read(Dtype::f32, {rows}, rstd);
    backward.write_over(1).write(Dtype::f32, {width}).write(Dtype::f32, {width});
    const std::vector<Values> gradients = outputs(backward);
    expect_near(gradients[0], dx, dtype, 1e-5, dtype == Dtype::bf16 ? 1e-3 : 1e-5);
    expect_near(gradients[1], dgamma, Dtype::f32, 1e-5, 2e-5);
    expect_near(gradients[2], dbeta, Dtype::f32, 1e-5, 1e-5);
  }
}

struct Attention {
  int64_t batch, length, heads, head;
  bool causal;
  Values qkv, out, lse, dout, dqkv;

  size_t wide(int64_t b, int64_t t, int part, int64_t h, int64_t i) const {
    return static_cast<size_t>(((b * length + t) * 3 + part) * heads * head + h * head + i);
  }
  size_t narrow(int64_t b, int64_t t, int64_t h, int64_t i) const {
    return static_cast<size_t>(((b * length + t) * heads + h) * head + i);
  }
  double dot(int64_t b, int64_t h, int64_t i, int64_t j) const {
    double sum = 0;
    for (int64_t c = 0; c < head; ++c) sum += qkv[wide(b, i, 0, h, c)] * qkv[wide(b, j, 1, h, c)];
    return sum / std::sqrt(static_cast<double>(head));
  }

  // The textbook's formulas for one row of one head.
  void row(int64_t b, int64_t h, int64_t i) {
    const int64_t seen = causal ? i + 1 : length;
    Values p;
    double top = -1e30, sum = 0, along = 0;
    for (int64_t j = 0; j < seen; ++j) p.push_back(dot(b, h, i, j)), top = std::max(top, p.back());
    for (double& v : p) v = std::exp(v - top), sum += v;
    lse[static_cast<size_t>((b * heads + h) * length + i)] = top + std::log(sum);
    for (double& v : p) v /= sum;
    for (int64_t c = 0; c < head; ++c) {
      double& o = out[narrow(b, i, h, c)];
      for (int64_t j = 0; j < seen; ++j) o += p[static_cast<size_t>(j)] * qkv[wide(b, j, 2, h, c)];
      along += o * dout[narrow(b, i, h, c)];
    }
    for (int64_t j = 0; j < seen; ++j) {
      const double pj = p[static_cast<size_t>(j)];
      double dp = 0;
      for (int64_t c = 0; c < head; ++c) dp += dout[narrow(b, i, h, c)] * qkv[wide(b, j, 2, h, c)];
      const double ds = pj * (dp - along) / std::sqrt(static_cast<double>(head));
      for (int64_t c = 0; c < head; ++c) {
        dqkv[wide(b, i, 0, h, c)] += ds * qkv[wide(b, j, 1, h, c)];
        dqkv[wide(b, j, 1, h, c)] += ds * qkv[wide(b, i, 0, h, c)];
        dqkv[wide(b, j, 2, h, c)] += pj * dout[narrow(b, i, h, c)];
      }
    }
  }
  void compute() {
    out.assign(static_cast<size_t>(batch * length * heads * head), 0);
    lse.assign(static_cast<size_t>(batch * heads * length), 0);
    dqkv.assign(3 * out.size(), 0);
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < length; ++i) row(b, h, i);
      }
    }
  }
};

TEST_P(CpuKernels, AttentionAndItsGradient) {
  for (Attention a : {Attention{1, 1, 1, 1, true, {}, {}, {}, {}, {}},
                      {2, 19, 3, 5, true, {}, {}, {}, {}, {}},
                      {2, 33, 2, 16, false, {}, {}, {}, {}, {}},
                      {1, 70, 2, 40, true, {}, {}, {}, {}, {}},
                      {1, 128, 1, 64, true, {}, {}, {}, {}, {}}}) {
    const int64_t width = a.heads * a.head;
    a.qkv = random_values(a.batch * a.length * 3 * width, 1, dtype);
    for (double& v : a.qkv) v *= 2;
    a.dout = random_values(a.batch * a.length * width, 2, dtype);
    a.compute();
    OneOp forward("attention"), backward("attention_grad");
    forward.attr("heads", a.heads).attr("causal", int64_t{a.causal}).read(dtype, {a.batch, a.length, 3 * width}, a.qkv);
    forward.write(dtype, {a.batch, a.length, width}).write(Dtype::f32, {a.batch, a.heads, a.length});
    const std::vector<Values> got = outputs(forward);
    expect_near(got[0], a.out, dtype, 1e-5, 2e-6);
    expect_near(got[1], a.lse, Dtype::f32, 1e-6, 1e-6);
    backward.attr("heads", a.heads)
        .attr("causal", int64_t{a.causal})
        .read(dtype, {a.batch, a.length, 3 * width}, a.qkv);
    backward.read(dtype, {a.batch, a.length, width}, a.out).read(dtype, {a.batch, a.length, width}, a.dout);
    backward.read(Dtype::f32, {a.batch, a.heads, a.length}, a.lse).write(dtype, {a.batch, a.length, 3 * width});
    expect_near(outputs(backward)[0], a.dqkv, dtype, 1e-5, dtype == Dtype::bf16 ? 2e-2 : 1e-5);
  }
}

TEST_P(CpuKernels, AttentionSurvivesLargeScores) {
  Values qkv(3 * 4 * 20);
  for (size_t i = 0; i < qkv.size(); ++i)
    qkv[i] = i % 12 < 8 ? 200.0 : 1.0;  // q·k = 160,000: exp without a shift overflows
  OneOp op("attention");
  op.attr("heads", int64_t{1}).attr("causal", int64_t{1}).read(dtype, {1, 20, 12}, qkv);
  op.write(dtype, {1, 20, 4}).write(Dtype::f32, {1, 1, 20});
  expect_near(outputs(op)[0], Values(80, 1.0), dtype, 1e-5, 0);
}

TEST_P(CpuKernels, EmbeddingAndItsGradient) {
  const int64_t batch = 3, length = 7, vocab = 11, width = 21, places = 9;
  const Values tokens = random_tokens(batch * length, 1, vocab), table = random_values(vocab * width, 2, dtype);
  const Values positions = random_values(places * width, 3, dtype),
               dy = random_values(batch * length * width, 4, dtype);
  Values x(dy.size()), plain(dy.size()), dtable(table.size()), dpositions(positions.size());
  for (size_t i = 0; i < dy.size(); ++i) {
    const size_t t = i / width, row = static_cast<size_t>(tokens[t]) * width + i % width,
                 place = t % length * width + i % width;
    plain[i] = table[row];
    x[i] = table[row] + positions[place];
    dtable[row] += dy[i];
    dpositions[place] += dy[i];
  }
  OneOp with("embedding"), without("embedding"), backward("embedding_grad");
  with.read(Dtype::i32, {batch, length}, tokens)
      .read(dtype, {vocab, width}, table)
      .read(dtype, {places, width}, positions);
  with.write(dtype, {batch, length, width});
  expect_near(outputs(with)[0], x, dtype, 1e-6, 0);
  without.read(Dtype::i32, {batch, length}, tokens)
      .read(dtype, {vocab, width}, table)
      .write(dtype, {batch, length, width});
  EXPECT_EQ(outputs(without)[0], plain);
  backward.attr("vocab", vocab).attr("positions", places).read(Dtype::i32, {batch, length}, tokens);
  backward.read(dtype, {batch, length, width}, dy).write(Dtype::f32, {vocab, width}).write(Dtype::f32, {places, width});
  const std::vector<Values> got = outputs(backward);
  expect_near(got[0], dtable, Dtype::f32, 1e-6, 1e-6);
  expect_near(got[1], dpositions, Dtype::f32, 1e-6, 1e-6);
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
  logits[5] = 300;  // exp without a shift overflows
  const Values targets = random_tokens(rows, 2, width);
  Values lse, gradient(logits.size());
  double loss = 0;
  const double scale = 0.125;
  for (size_t r = 0; r < rows; ++r) {
    const double* row = logits.data() + r * width;
    const double top = *std::max_element(row, row + width);
    double sum = 0;
    for (size_t i = 0; i < width; ++i) sum += std::exp(row[i] - top);
    lse.push_back(top + std::log(sum));
    const size_t target = static_cast<size_t>(targets[r]);
    loss += scale * (lse[r] - row[target]);
    for (size_t i = 0; i < width; ++i)
      gradient[r * width + i] = scale * (std::exp(row[i] - lse[r]) - (i == target ? 1 : 0));
  }
  OneOp forward("cross_entropy"), backward("cross_entropy_grad");
  forward.attr("scale", scale).read(dtype, {3, 7, width}, logits).read(Dtype::i32, {3, 7}, targets);
  forward.write(Dtype::f32, {}).write(Dtype::f32, {rows});
  const std::vector<Values> got = outputs(forward);
  expect_near(got[0], {loss}, Dtype::f32, 1e-6, 0);
  expect_near(got[1], lse, Dtype::f32, 1e-6, 1e-6);
  backward.attr("scale", scale).read(dtype, {3, 7, width}, logits).read(Dtype::i32, {3, 7}, targets);
  backward.read(Dtype::f32, {rows}, lse).write_over(0);
  expect_near(outputs(backward)[0], gradient, dtype, 4e-6, 1e-8);
}

TEST_P(CpuKernels, SumLossesAndTheirGradients) {
  const int64_t n = 20001;
  const Values y = random_values(n, 1, dtype), target = random_values(n, 2, dtype);
  const double scale = 0.5;
  double difference = 0, square = 0, sum = 0;
  Values by_difference, by_square;
  for (size_t i = 0; i < y.size(); ++i) {
    difference += scale * (y[i] - target[i]) * (y[i] - target[i]);
    square += scale * y[i] * y[i];
    sum += scale * y[i];
    by_difference.push_back(2 * scale * (y[i] - target[i]));
    by_square.push_back(2 * scale * y[i]);
  }
  const auto run = [&](const char* kind, bool two, bool scalar) {
    OneOp op(kind);
    op.attr("scale", scale).read(dtype, {n}, y);
    if (two) op.read(dtype, {n}, target);
    op.write(scalar ? Dtype::f32 : dtype, scalar ? Shape{} : Shape{n});
    return outputs(op)[0];
  };
  expect_near(run("mse", true, true), {difference}, Dtype::f32, 1e-7, 0);
  expect_near(run("mean_square", false, true), {square}, Dtype::f32, 1e-7, 0);
  expect_near(run("mean", false, true), {sum}, Dtype::f32, 1e-7, 0);
  expect_near(run("mse_grad", true, false), by_difference, dtype, 1e-6, 1e-7);
  expect_near(run("mean_square_grad", false, false), by_square, dtype, 1e-6, 0);
  EXPECT_EQ(run("mean_grad", false, false), Values(static_cast<size_t>(n), scale));
}

Allocations allocations_of(OneOp& op) {
  Kernel& kernel = op.prepare(cpu());
  kernel.run();  // the first run of a product may still set up oneDNN
  start_counting_allocations();
  kernel.run();
  return stop_counting_allocations();
}

// No kernel of ours allocates. oneDNN's calls do: its primitives a few map nodes, its sgemm two packing buffers, and
// give all of it back.
TEST_P(CpuKernels, RunningDoesNotAllocate) {
  if (!allocations_are_counted()) GTEST_SKIP() << "the sanitizer owns malloc";
  const int64_t b = 2, t = 64, d = 64;
  const Values x = random_values(b * t * 3 * d, 1, dtype), w = random_values(3 * d * d, 2, dtype);
  const Values narrow(x.begin(), x.begin() + b * t * d), lse(static_cast<size_t>(b * 4 * t), 1.0);
  OneOp linear("linear"), dx("linear_dx"), dw("linear_dw");
  linear.attr("act", std::string("relu")).read(dtype, {b, t, d}, narrow).read(dtype, {d, 3 * d}, w);
  linear.read(dtype, {3 * d}, Values(3 * d, 0.5)).write(dtype, {b, t, 3 * d});
  dx.read(dtype, {b, t, 3 * d}, x).read(dtype, {d, 3 * d}, w).write(dtype, {b, t, d});
  dw.read(dtype, {b, t, d}, narrow)
      .read(dtype, {b, t, 3 * d}, x)
      .write(Dtype::f32, {d, 3 * d})
      .write(Dtype::f32, {3 * d});
  for (OneOp* op : {&linear, &dx, &dw}) {
    const Allocations seen = allocations_of(*op);
    EXPECT_LE(seen.count, 8) << op->op().def->name;
    EXPECT_LE(seen.largest, dtype == Dtype::bf16 ? 256u : 1u << 23) << op->op().def->name;
    EXPECT_EQ(seen.kept, 0) << op->op().def->name;
  }
  OneOp attention("attention"), attention_grad("attention_grad"), gelu("gelu"), rotary("rotary"), dropout("dropout");
  attention.attr("heads", int64_t{4})
      .read(dtype, {b, t, 3 * d}, x)
      .write(dtype, {b, t, d})
      .write(Dtype::f32, {b, 4, t});
  attention_grad.attr("heads", int64_t{4}).read(dtype, {b, t, 3 * d}, x).read(dtype, {b, t, d}, narrow);
  attention_grad.read(dtype, {b, t, d}, narrow).read(Dtype::f32, {b, 4, t}, lse).write(dtype, {b, t, 3 * d});
  gelu.read(dtype, {b, t, d}, narrow).write(dtype, {b, t, d});
  rotary.attr("heads", int64_t{4}).attr("size", int64_t{16}).read(dtype, {b, t, d}, narrow).write(dtype, {b, t, d});
  dropout.attr("p", 0.5).read(dtype, {b, t, d}, narrow).write(dtype, {b, t, d});
  for (OneOp* op : {&attention, &attention_grad, &gelu, &rotary, &dropout})
    EXPECT_EQ(allocations_of(*op).count, 0) << op->op().def->name;
}

// The products that machines without bf16 instructions fall back to; sizes cross the blocks of K, M and N.
TEST(PackedGemm, AgreesInEveryFormAndOnAnyNumberOfThreads) {
  for (const auto& [m, n, k] : {std::tuple{1, 1, 1}, {15, 33, 257}, {400, 70, 300}, {30, 3100, 20}}) {
    for (int form = 0; form < 16; ++form) {
      cpu::GemmShape s;
      s.m = m, s.n = n, s.k = k, s.transpose_a = (form & 1) != 0, s.transpose_b = (form & 2) != 0,
      s.bias = (form & 4) != 0;
      s.activation = s.bias ? cpu::Activation::relu : cpu::Activation::none;
      s.input = Dtype::bf16, s.output = (form & 8) != 0 ? Dtype::bf16 : Dtype::f32;
      const Values a = random_values(m * k, 1, Dtype::bf16), b = random_values(n * k, 2, Dtype::bf16),
                   bias = random_values(n, 3, Dtype::bf16);
      const auto narrow = [](const Values& values) {
        std::vector<bf16> narrowed;
        for (double v : values) narrowed.push_back(to_bf16(static_cast<float>(v)));
        return narrowed;
      };
      Values want = product(a, b, m, n, k, s.transpose_a, s.transpose_b), got[2];
      for (size_t i = 0; i < want.size() && s.bias; ++i)
        want[i] = std::max(0.0, want[i] + bias[i % static_cast<size_t>(n)]);
      for (int threads : {1, 2}) {
        s.threads = threads;
        std::vector<float> c(want.size());
        std::vector<std::byte> scratch(static_cast<size_t>(cpu::packed_gemm_scratch_bytes(s)));
        cpu::packed_gemm(s, narrow(a).data(), narrow(b).data(), narrow(bias).data(), c.data(), scratch.data());
        for (size_t i = 0; i < want.size(); ++i) {
          const bf16 half = reinterpret_cast<const bf16*>(c.data())[i];
          got[threads - 1].push_back(static_cast<double>(s.output == Dtype::f32 ? c[i] : to_float(half)));
        }
      }
      expect_near(got[0], want, s.output, 1e-5, 3e-5);
      EXPECT_EQ(got[0], got[1]) << m << " x " << n << " x " << k << " form " << form;
    }
  }
}

}  // namespace
}  // namespace prun::test
