// The CPU device's kernels without a derivative: optimizers, norms, constants, random numbers, casts; and the list of
// devices.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/devices.h"
#include "prun/philox.h"
#include "tests/unit/allocation_counter.h"
#include "tests/unit/one_op.h"

namespace prun::test {
namespace {

TEST(Devices, AreOpenedByName) {
  EXPECT_EQ(open_device("cpu")->name(), "cpu");
  try {
    open_device("cqu");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_STREQ(error.what(), "no device 'cqu' (did you mean 'cpu'?)");
  }
}

TEST(Devices, SupportWhatTheyHaveKernelsFor) {
  OneOp halves("gelu"), doubles("gelu"), sum("add"), talk("all_reduce");
  halves.read(Dtype::bf16, {2}, {1, 2}).write(Dtype::bf16, {2});
  doubles.read(Dtype::f64, {2}, {1, 2}).write(Dtype::f64, {2});
  sum.read(Dtype::f64, {2}, {1, 2}).read(Dtype::f64, {2}, {1, 2}).write(Dtype::f64, {2});
  talk.read(Dtype::f32, {2}, {1, 2}).write(Dtype::f32, {2});
  EXPECT_TRUE(halves.runs_on(cpu()));
  EXPECT_FALSE(doubles.runs_on(cpu()));
  EXPECT_TRUE(sum.runs_on(cpu()));
  EXPECT_FALSE(talk.runs_on(cpu()));
}

TEST(Devices, EveryComputeOpHasACpuKernel) {
  for (const OpDef* def : all_ops()) {
    if (def->op_class != OpClass::compute) continue;
    Program program;
    Op op;
    op.def = def;
    EXPECT_TRUE(cpu().supports(op, program)) << def->name;
  }
}

TEST(Optimizers, AdamwFollowsTheFormula) {
  const int64_t n = 1037;
  const double rate = 3e-3, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1, clip = 0.5;
  for (Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    Values param = random_values(n, 1, dtype), m = random_values(n, 2), v = random_values(n, 3);
    for (double& x : v) x = std::abs(x);
    const Values grad = random_values(n, 4);
    for (bool clipped : {false, true}) {
      OneOp op("adamw");
      op.attr("beta1", beta1).attr("beta2", beta2).attr("eps", eps).attr("weight_decay", decay).at_step(4, rate);
      op.read(Dtype::f32, {n}, grad).read(dtype, {n}, param).read(Dtype::f32, {n}, m).read(Dtype::f32, {n}, v);
      if (clipped) op.read(Dtype::f32, {}, {clip});
      op.write_over(1).write_over(2).write_over(3).run(cpu());
      ASSERT_EQ(op.written_beside(), "");
      for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
        const double g = grad[i] * (clipped ? clip : 1), mean = beta1 * m[i] + (1 - beta1) * g;
        const double square = beta2 * v[i] + (1 - beta2) * g * g;
        const double step =
            rate / (1 - std::pow(beta1, 5)) * mean / (std::sqrt(square / (1 - std::pow(beta2, 5))) + eps);
        const double want = param[i] * (1 - rate * decay) - step;
        ASSERT_NEAR(op.result(0)[i], want, dtype == Dtype::f32 ? 2e-7 : std::abs(want) * 0x1p-8);
        ASSERT_NEAR(op.result(1)[i], mean, 2e-7);
        ASSERT_NEAR(op.result(2)[i], square, 2e-7);
        if (i == 50) i = static_cast<size_t>(n) - 20;  // the vector body and the remainder
      }
    }
  }
}

// With a clip norm of 1, the largest gradients give a subnormal coefficient.
TEST(Optimizers, AnyCoefficientScalesTheGradient) {
  for (const double size : {1e19, 3e38}) {
    for (const char* kind : {"sgd", "adamw", "lion"}) {
      OneOp op(kind);
      op.attr("beta1", 0.5).attr("beta2", 0.5).attr("weight_decay", 0.0).at_step(0, 1);
      op.read(Dtype::f32, {1}, {size}).read(Dtype::f32, {1}, {0}).write_over(1);
      if (kind != std::string("sgd")) op.read(Dtype::f32, {1}, {0}).write_over(2);
      if (kind == std::string("adamw")) op.read(Dtype::f32, {1}, {0}).write_over(3);
      op.read(Dtype::f32, {}, {1 / size}).run(cpu());
      EXPECT_NEAR(op.result(0)[0], -1, 1e-5) << kind << " " << size;
      if (kind == std::string("sgd")) continue;
      EXPECT_NEAR(op.result(1)[0], 0.5, 1e-5) << kind << " " << size;
    }
  }
}

// Factors near 1 take effect with the plan's value, although f32 cannot represent it.
TEST(Optimizers, AveragesThatHardlyMove) {
  for (const double beta : {0.99999, 0.9999999}) {
    const double share = 1 - beta;
    OneOp adamw("adamw"), lion("lion");
    adamw.attr("beta1", beta).attr("beta2", beta).attr("eps", 1e-30).attr("weight_decay", 0.0).at_step(0, 0.5);
    adamw.read(Dtype::f32, {1}, {2}).read(Dtype::f32, {1}, {0}).read(Dtype::f32, {1}, {0}).read(Dtype::f32, {1}, {0});
    adamw.write_over(1).write_over(2).write_over(3).run(cpu());
    EXPECT_NEAR(adamw.result(0)[0], -0.5, 1e-6) << beta;
    EXPECT_NEAR(adamw.result(1)[0] / (share * 2), 1, 2e-7) << beta;
    EXPECT_NEAR(adamw.result(2)[0] / (share * 4), 1, 2e-7) << beta;
    lion.attr("beta1", beta).attr("beta2", beta).attr("weight_decay", 0.0).at_step(0, 0.5);
    lion.read(Dtype::f32, {1}, {2}).read(Dtype::f32, {1}, {0}).read(Dtype::f32, {1}, {0});
    lion.write_over(1).write_over(2).run(cpu());
    EXPECT_NEAR(lion.result(1)[0] / (share * 2), 1, 2e-7) << beta;
  }
}

TEST(Optimizers, SgdWithAndWithoutMomentum) {
  const Values grad = {1, -2, 0.5}, param = {1, 2, 3}, buffer = {0.5, 0, -1};
  OneOp plain("sgd"), full("sgd");
  plain.at_step(0, 0.1).read(Dtype::f32, {3}, grad).read(Dtype::f32, {3}, param).write_over(1).run(cpu());
  full.attr("momentum", 0.9).attr("weight_decay", 0.01).at_step(0, 0.1).read(Dtype::f32, {3}, grad);
  full.read(Dtype::f32, {3}, param).read(Dtype::f32, {3}, buffer).read(Dtype::f32, {}, {0.25});
  full.write_over(1).write_over(2).run(cpu());
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(plain.result(0)[i], param[i] - 0.1 * grad[i], 1e-6);
    const double velocity = 0.9 * buffer[i] + 0.25 * grad[i] + 0.01 * param[i];
    EXPECT_NEAR(full.result(0)[i], param[i] - 0.1 * velocity, 1e-6);
    EXPECT_NEAR(full.result(1)[i], velocity, 1e-6);
  }
}

TEST(Optimizers, SgdClipsWithoutMomentum) {
  OneOp op("sgd");
  op.at_step(0, 1).read(Dtype::f32, {1}, {4}).read(Dtype::f32, {1}, {10}).read(Dtype::f32, {}, {0.5});
  op.write_over(1).run(cpu());
  EXPECT_EQ(op.result(0), Values{8});
}

#if defined(__x86_64__)
// A moment whose gradient remains zero decays into subnormals, which are slow on some CPUs, unless it is flushed to
// zero.
TEST(Optimizers, MomentsBelowTheNormalNumbersAreZero) {
  const int64_t n = 37;
  const auto all = [=](double x) { return Values(static_cast<size_t>(n), x); };
  for (const char* kind : {"adamw", "lion", "sgd"}) {
    OneOp op(kind);
    op.attr("momentum", 0.9).attr("weight_decay", 0.0).at_step(4, 1e-3);
    op.read(Dtype::f32, {n}, all(0)).read(Dtype::f32, {n}, all(2)).read(Dtype::f32, {n}, all(1.18e-38));
    if (kind == std::string("adamw"))
      op.read(Dtype::f32, {n}, all(1e-40)).write_over(1).write_over(2).write_over(3);
    else
      op.write_over(1).write_over(2);
    const std::vector<Values> got = op.run(cpu()).results();
    EXPECT_EQ(got[0], all(2)) << kind;
    for (size_t i = 1; i < got.size(); ++i) EXPECT_EQ(got[i], all(0)) << kind << " " << i;
    volatile float least = 0x1p-126F;
    EXPECT_NE(least * 0.5F, 0.0F) << "behind " << kind << " numbers are as before";
  }
}
#endif

TEST(Optimizers, ANegativeCoefficientUpdatesNothing) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const char* kind : {"adamw", "sgd_cast"}) {
    const bool casts = kind == std::string("sgd_cast");
    OneOp op(kind);
    op.at_step(0, 1).read(Dtype::f32, {2}, {nan, 1}).read(Dtype::f32, {2}, {10, 20});
    if (!casts) op.read(Dtype::f32, {2}, {3, 4}).read(Dtype::f32, {2}, {5, 6});
    op.read(Dtype::f32, {}, {-1}).write_over(1);
    if (!casts) op.write_over(2).write_over(3);
    if (casts) op.write(Dtype::bf16, {2});
    op.run(cpu());
    EXPECT_EQ(op.result(0), (Values{10, 20})) << kind;
    if (casts) continue;
    EXPECT_EQ(op.result(1), (Values{3, 4}));
    EXPECT_EQ(op.result(2), (Values{5, 6}));
  }
}

TEST(Norms, ANormThatIsNotFiniteSkips) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const double max : {0.0, 2.0})
    for (const auto& [square, want] : {std::pair(1.0, 1.0), std::pair(inf, -1.0), std::pair(nan, -1.0)}) {
      OneOp clip("clip_coefficient");
      clip.attr("max", max).attr("skip", int64_t{1}).read(Dtype::f64, {}, {square});
      clip.write(Dtype::f32, {}).write(Dtype::f64, {}).run(cpu());
      EXPECT_NEAR(clip.result(0)[0], want, 1e-5) << max << " " << square;
    }
}

TEST(Norms, SquaresAddUpOverTensorsAndClip) {
  OneOp norm("norm2"), clip("clip_coefficient"), small("clip_coefficient");
  const Values big = random_values(100003, 1);
  double want = 9;
  for (double x : big) want += x * x;
  norm.read(Dtype::f32, {100003}, big).read(Dtype::f32, {3}, {0, 3, 0}).write(Dtype::f64, {}).run(cpu());
  EXPECT_NEAR(norm.result(0)[0], want, want * 1e-12);
  clip.attr("max", 2.0).read(Dtype::f64, {}, {25}).write(Dtype::f32, {}).write(Dtype::f64, {}).run(cpu());
  EXPECT_NEAR(clip.result(0)[0], 2 / (5 + 1e-6), 1e-7);
  EXPECT_EQ(clip.result(1), Values{5});
  small.attr("max", 2.0).read(Dtype::f64, {}, {1}).write(Dtype::f32, {}).write(Dtype::f64, {}).run(cpu());
  EXPECT_EQ(small.result(0), Values{1});
}

TEST(Norms, SquaresThatNoF32HoldsCount) {
  for (const double size : {1e19, 3e38, 1e-25}) {
    const double held = static_cast<double>(static_cast<float>(size));
    OneOp norm("norm2");
    norm.read(Dtype::f32, {41}, Values(41, size)).write(Dtype::f64, {}).run(cpu());
    EXPECT_NEAR(norm.result(0)[0] / (41 * held * held), 1, 1e-12) << size;
  }
}

TEST(Numbers, AddMulScaleInEveryType) {
  for (Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::i64, Dtype::i32}) {
    OneOp add("add"), mul("mul"), scale("scale");
    add.read(dtype, {3}, {1, 2, 3}).read(dtype, {3}, {10, 20, 30}).write_over(0).run(cpu());
    EXPECT_EQ(add.result(0), (Values{11, 22, 33}));
    mul.read(dtype, {3}, {1, 2, 3}).read(dtype, {3}, {10, 20, 30}).write(dtype, {3}).run(cpu());
    EXPECT_EQ(mul.result(0), (Values{10, 40, 90}));
    scale.attr("factor", -2.0).read(dtype, {3}, {1, 2, 3}).write_over(0).run(cpu());
    EXPECT_EQ(scale.result(0), (Values{-2, -4, -6}));
  }
}

TEST(Numbers, CastRoundsToNearestEven) {
  const double step = 0x1p-7;  // between neighbouring bf16 numbers in [1, 2)
  OneOp op("cast");
  op.read(Dtype::f32, {6}, {1 + step / 2, 1 + 1.5 * step, 1 + 0.51 * step, -3.5, 1e-40, INFINITY})
      .write(Dtype::bf16, {6})
      .run(cpu());
  const Values got = op.result(0);
  EXPECT_EQ(got[0], 1);
  EXPECT_EQ(got[1], 1 + 2 * step);
  EXPECT_EQ(got[2], 1 + step);
  EXPECT_EQ(got[3], -3.5);
  EXPECT_EQ(got[5], INFINITY);
  OneOp nan("cast"), whole("cast");
  nan.read(Dtype::f32, {1}, {std::numeric_limits<double>::quiet_NaN()}).write(Dtype::bf16, {1}).run(cpu());
  EXPECT_TRUE(std::isnan(nan.result(0)[0]));
  whole.read(Dtype::f32, {4}, {2.9, -2.9, 1e30, std::numeric_limits<double>::quiet_NaN()})
      .write(Dtype::i32, {4})
      .run(cpu());
  EXPECT_EQ(whole.result(0), (Values{2, -2, 2147483647, 0}));
}

// The vector body and the scalar remainder round with different instructions.
TEST(Numbers, VectorsRoundToBf16AsNumbersDo) {
  Values x = {1 + 0x1p-8, 1 + 0x1.8p-7, -1 - 0x1p-8, 0x1.fffffep127, -0x1.fffffep127, 0x1p-126,
              INFINITY,   -INFINITY,    -0.0};
  for (const double value : random_values(1000, 1)) x.push_back(value);
  const int64_t n = std::ssize(x);
  OneOp cast("cast"), scale("scale"), nan("cast");
  cast.read(Dtype::f32, {n}, x).write(Dtype::bf16, {n}).run(cpu());
  Values half, scaled;
  for (const double value : x) {
    half.push_back(to_float(to_bf16(static_cast<float>(value))));
    scaled.push_back(to_float(to_bf16(static_cast<float>(half.back()) * 1.1f)));
  }
  EXPECT_EQ(cast.result(0), half);
  scale.attr("factor", 1.1).read(Dtype::bf16, {n}, half).write(Dtype::bf16, {n}).run(cpu());
  EXPECT_EQ(scale.result(0), scaled);
  nan.read(Dtype::f32, {64}, Values(64, std::numeric_limits<double>::quiet_NaN())).write(Dtype::bf16, {64}).run(cpu());
  for (const double value : nan.result(0)) EXPECT_TRUE(std::isnan(value));
}

// Bit 2i: tensor i holds a NaN; bit 2i + 1: tensor i holds an infinity.
TEST(Numbers, WhatIsNotFiniteIsFoundWhereverItStands) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto flags = [](const Device& device, Dtype dtype, const Values& a, const Values& b, int64_t infinite) {
    OneOp op("check_finite");
    op.read(dtype, {static_cast<int64_t>(a.size())}, a).read(dtype, {static_cast<int64_t>(b.size())}, b);
    op.write(Dtype::i32, {}).attr("infinite", infinite).run(device);
    return op.result(0)[0];
  };
  const std::unique_ptr<Device> reference = open_device("reference");
  for (const Device* device : {&cpu(), static_cast<const Device*>(reference.get())})
    for (Dtype dtype : {Dtype::f32, Dtype::bf16, Dtype::f64}) {
      const Values right(70001, 1e30);
      EXPECT_EQ(flags(*device, dtype, right, {-0.0, 1e-40}, 0), 0);
      for (size_t at : {size_t{0}, size_t{35000}, size_t{70000}}) {
        Values wrong = right;
        wrong[at] = nan;
        EXPECT_EQ(flags(*device, dtype, wrong, {1}, 0), 1) << at;
        EXPECT_EQ(flags(*device, dtype, {1}, wrong, 1), 4) << at;
        wrong[at] = -INFINITY;
        EXPECT_EQ(flags(*device, dtype, {1}, wrong, 0), 8) << at;
        EXPECT_EQ(flags(*device, dtype, {-nan}, wrong, 0), 9) << at;
        EXPECT_EQ(flags(*device, dtype, wrong, wrong, 1), 0) << at;
      }
    }
}

TEST(Numbers, ConstantsAndCopies) {
  OneOp fill("fill"), values("values"), iota("iota"), counted("iota"), copy("copy"), in_place("copy");
  fill.attr("value", 1.5).write(Dtype::bf16, {3}).run(cpu());
  EXPECT_EQ(fill.result(0), (Values{1.5, 1.5, 1.5}));
  values.attr("values", std::vector<double>{1, -2, 3}).write(Dtype::i64, {3}).run(cpu());
  EXPECT_EQ(values.result(0), (Values{1, -2, 3}));
  iota.attr("start", 2.0).attr("step", 0.5).write(Dtype::f32, {4}).run(cpu());
  EXPECT_EQ(iota.result(0), (Values{2, 2.5, 3, 3.5}));
  counted.attr("start", 1.0).attr("step", 1.0).read(Dtype::i64, {}, {2}).write(Dtype::f32, {4}).run(cpu());
  EXPECT_EQ(counted.result(0), (Values{1, 2, 0, 0}));
  copy.read(Dtype::f32, {2}, {7, 8}).write(Dtype::f32, {2}).run(cpu());
  EXPECT_EQ(copy.result(0), (Values{7, 8}));
  in_place.read(Dtype::f32, {2}, {7, 8}).write_over(0).run(cpu());
  EXPECT_EQ(in_place.result(0), (Values{7, 8}));
}

TEST(Philox, GivesTheKnownAnswersOfItsAuthors) {
  const auto zero = philox::block(0, 0, 0);
  EXPECT_EQ(zero, (philox::Words{{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}));
  const auto ones = philox::block(~0ull, ~0ull, ~0ull);
  EXPECT_EQ(ones, (philox::Words{{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}));
}

// Pieces of five kinds in one flat vector of 4,096 elements, with a gap that remains 0.
OneOp& init_op(OneOp& op, int64_t count, const std::string& axis, uint64_t seed) {
  op.attr("starts", std::vector<int64_t>{0, 1001, 1100, 1200, 3000})
      .attr("counts", std::vector<int64_t>{1001, 99, 50, 1700, 1003});
  op.attr("kinds", std::vector<int64_t>{3, 1, 2, 3, 4}).attr("scales", std::vector<double>{0.02, 0, 0.25, 1, 0.5});
  op.attr("keys", std::vector<int64_t>{1, 2, 3, 4, 5}).attr("axis", axis).at_step(0, 0, seed);
  return op.write(Dtype::f32, {count});
}

TEST(InitParams, IsTheSameUnderEverySharding) {
  OneOp whole("init_params");
  const Values all = init_op(whole, 4096, "", 42).run(cpu()).result(0);
  for (int ranks : {2, 4, 8}) {
    Values joined;
    for (int rank = 0; rank < ranks; ++rank) {
      OneOp shard("init_params");
      shard.mesh({{"dp", ranks}}, rank);
      const Values part = init_op(shard, 4096 / ranks, "dp", 42).run(cpu()).result(0);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    EXPECT_EQ(joined, all) << ranks << " ranks";
  }
  OneOp other("init_params");
  EXPECT_NE(init_op(other, 4096, "", 43).run(cpu()).result(0), all);
  for (size_t i : {1001, 1099}) EXPECT_EQ(all[i], 1);
  EXPECT_EQ(all[1149], 0.25);
  for (size_t i : {1150, 1199, 2900, 2999, 4003, 4095}) EXPECT_EQ(all[i], 0);
}

TEST(InitParams, HasTheMomentsOfItsDistributions) {
  const int64_t n = 200000;
  for (auto [kind, deviation, fourth] : {std::tuple{3, 0.02, 3.0}, {4, 0.02 / std::sqrt(3.0), 1.8}}) {
    OneOp op("init_params");
    using Counts = std::vector<int64_t>;
    op.attr("starts", Counts{0}).attr("counts", Counts{n}).attr("kinds", Counts{kind}).attr("keys", Counts{9});
    op.attr("scales", Values{0.02}).at_step(0, 0, 7).write(Dtype::f32, {n});
    double sum = 0, square = 0, quartic = 0, product = 0, last = 0;
    const Values numbers = op.run(cpu()).result(0);
    for (double x : numbers) {
      x /= deviation;
      sum += x, square += x * x, quartic += x * x * x * x, product += x * last, last = x;
    }
    EXPECT_NEAR(sum / n, 0, 0.01);
    EXPECT_NEAR(square / n, 1, 0.015);
    EXPECT_NEAR(quartic / n, fourth, 0.06);
    EXPECT_NEAR(product / n, 0, 0.01);  // neighbours come from one Philox block and must be uncorrelated
  }
}

TEST(RandomInt, StaysInRangeAndDependsOnSeedRankAndKey) {
  const auto draw = [](uint64_t seed, int rank, int64_t key, int64_t low, int64_t high) {
    OneOp op("random_int");
    op.mesh({{"dp", 4}}, rank).attr("low", low).attr("high", high).attr("key", key);
    op.at_step(0, 0, seed).write(Dtype::i64, {});
    return op.run(cpu()).result(0)[0];
  };
  std::vector<int> seen(3);
  for (int64_t key = 0; key < 60; ++key) {
    const double x = draw(1, 0, key, -1, 1);
    ASSERT_TRUE(x == -1 || x == 0 || x == 1);
    ++seen[static_cast<size_t>(x + 1)];
  }
  for (int count : seen) EXPECT_GT(count, 8);
  EXPECT_EQ(draw(1, 2, 3, 0, 1 << 30), draw(1, 2, 3, 0, 1 << 30));
  EXPECT_NE(draw(1, 2, 3, 0, 1 << 30), draw(2, 2, 3, 0, 1 << 30));
  EXPECT_NE(draw(1, 2, 3, 0, 1 << 30), draw(1, 1, 3, 0, 1 << 30));
  EXPECT_NE(draw(1, 2, 3, 0, 1 << 30), draw(1, 2, 4, 0, 1 << 30));
  EXPECT_EQ(draw(1, 0, 0, 5, 5), 5);
}

TEST(Numbers, RunningDoesNotAllocate) {
  if (!allocations_are_counted()) GTEST_SKIP() << "the sanitizer owns malloc";
  const Values x = random_values(5000, 1);
  OneOp adamw("adamw"), norm("norm2"), init("init_params"), values("values");
  adamw.at_step(0, 1).read(Dtype::f32, {5000}, x).read(Dtype::f32, {5000}, x).read(Dtype::f32, {5000}, x);
  adamw.read(Dtype::f32, {5000}, x).write_over(1).write_over(2).write_over(3);
  norm.read(Dtype::f32, {5000}, x).write(Dtype::f64, {});
  init_op(init, 4096, "", 1);
  values.attr("values", Values{1, 2}).write(Dtype::f32, {2});
  for (OneOp* op : {&adamw, &norm, &init, &values}) {
    Kernel& kernel = op->prepare(cpu());
    start_counting_allocations();
    kernel.run();
    EXPECT_EQ(stop_counting_allocations().count, 0) << op->kind();
  }
}

}  // namespace
}  // namespace prun::test
