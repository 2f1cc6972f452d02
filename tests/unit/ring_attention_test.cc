// Ring attention end to end: its expansion is recorded with its edges, checked by the verifier, and executed by virtual
// ranks in several interleavings. The result is compared with attention over the whole sequence by its definition.
#include "compile/ring_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>

#include "compile/compile_state.h"
#include "compile/edge_builder.h"
#include "compile/ir_build.h"
#include "device/bf16.h"
#include "exec/virtual_ranks.h"
#include "ir/ops.h"
#include "kernels/devices.h"
#include "verify/verify.h"

namespace prun {
namespace {

using Values = std::vector<double>;

struct Case {
  int ranks;
  int64_t chunks, length;  // length: tokens per rank
  int64_t heads, kv_heads, size;
  bool causal;
  int64_t batch = 2;

  int64_t whole() const { return ranks * length; }
  int64_t wide() const { return (heads + 2 * kv_heads) * size; }
  int64_t width() const { return heads * size; }
  int64_t position(int rank, int64_t t) const {
    const int64_t chunk = length / chunks;
    return t < chunk ? rank * chunk + t : (2 * ranks - 1 - rank) * chunk + t - chunk;
  }
};

Values random_values(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> uniform(-1.5, 1.5);
  Values values;
  for (int64_t i = 0; i < count; ++i)  // bf16 represents these numbers exactly
    values.push_back(static_cast<double>(to_float(to_bf16(static_cast<float>(uniform(random))))));
  return values;
}

struct Whole {
  Values out, lse, dqkv;
};

// Row-wise softmax over the whole sequence.
Whole definition(const Case& c, const Values& qkv, const Values& dout) {
  const int64_t T = c.whole();
  Whole w{Values(dout.size()), Values(static_cast<size_t>(c.batch * c.heads * T)), Values(qkv.size())};
  const auto row = [&](int64_t b, int64_t t, int64_t head) {
    return static_cast<size_t>((b * T + t) * c.wide() + head * c.size);
  };
  const double scale = 1 / std::sqrt(static_cast<double>(c.size));
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t t = 0; t < T; ++t) {
        const int64_t shared = h / (c.heads / c.kv_heads), keys = c.causal ? t + 1 : T;
        const size_t q = row(b, t, h), o = static_cast<size_t>((b * T + t) * c.width() + h * c.size);
        const auto k = [&](int64_t s) { return row(b, s, c.heads + shared); };
        const auto v = [&](int64_t s) { return row(b, s, c.heads + c.kv_heads + shared); };
        const size_t size = static_cast<size_t>(c.size);
        Values p;
        double sum = 0, along = 0;
        for (int64_t s = 0; s < keys; ++s) {
          double score = 0;
          for (size_t e = 0; e < size; ++e) score += qkv[q + e] * qkv[k(s) + e] * scale;
          p.push_back(std::exp(score));
          sum += p.back();
        }
        w.lse[static_cast<size_t>((b * c.heads + h) * T + t)] = std::log(sum);
        for (int64_t s = 0; s < keys; ++s)
          for (size_t e = 0; e < size; ++e) w.out[o + e] += p[static_cast<size_t>(s)] / sum * qkv[v(s) + e];
        for (size_t e = 0; e < size; ++e) along += w.out[o + e] * dout[o + e];
        for (int64_t s = 0; s < keys; ++s) {
          const double share = p[static_cast<size_t>(s)] / sum;
          double dp = 0;
          for (size_t e = 0; e < size; ++e) dp += dout[o + e] * qkv[v(s) + e];
          for (size_t e = 0; e < size; ++e) {
            w.dqkv[q + e] += share * (dp - along) * scale * qkv[k(s) + e];
            w.dqkv[k(s) + e] += share * (dp - along) * scale * qkv[q + e];
            w.dqkv[v(s) + e] += share * dout[o + e];
          }
        }
      }
  return w;
}

// Returns the rank's rows of a tensor [batch, whole, columns].
Values part(const Case& c, const Values& whole, int64_t columns, int rank) {
  Values values;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t t = 0; t < c.length; ++t) {
      const auto first = whole.begin() + (b * c.whole() + c.position(rank, t)) * columns;
      values.insert(values.end(), first, first + columns);
    }
  return values;
}

constexpr int kLane = 1;

class RankProgramBuilder {
 public:
  RankProgramBuilder(const Case& c, const Device& device, Dtype dtype)
      : c_(c), device_(device), dtype_(dtype), recorder_(program_, program_.step()) {
    program_.mesh = Mesh({{"dp", 1}, {"cp", c.ranks}});
    recorder_.stream("compute");
    program_.init().streams.push_back({"compute", {}});
  }

  Program build(const Values& qkv_values, const Values& dout_values) {
    const Dtype statistic = dtype_ == Dtype::f64 ? Dtype::f64 : Dtype::f32;
    const TensorType qkv_type{dtype_, {c_.batch, c_.length, c_.wide()}},
        row_type{dtype_, {c_.batch, c_.length, c_.width()}};
    const TensorId qkv = tensor("qkv", qkv_type, false), dout = tensor("dout", row_type, false);
    const TensorId out = tensor("out", row_type, true), dqkv = tensor("dqkv", qkv_type, true);
    const TensorId lse = tensor("lse", {statistic, {c_.batch, c_.heads, c_.length}}, true);
    for (const auto& [id, values] : {std::pair(qkv, &qkv_values), {dout, &dout_values}}) {
      Attrs attrs;
      attrs.set("values", *values);
      record({&ops::values, {}, {id}, attrs, ""});
    }
    Attrs attrs;
    attrs.set("tokens_axis", "cp");
    attrs.set("chunks", c_.chunks);
    attrs.set("heads", c_.heads);
    attrs.set("kv_heads", c_.kv_heads);
    attrs.set("causal", c_.causal);
    const MakeTemporary temporary = [&](std::string_view name, TensorType type) {
      return tensor(std::string(name), std::move(type), false);
    };
    for (RingStep& step : lower_ring_attention({{qkv}, {out, lse}, qkv_type, attrs}, c_.ranks, temporary))
      record(std::move(step));
    for (RingStep& step :
         lower_ring_attention_grad({{qkv, out, dout, lse}, {dqkv}, qkv_type, attrs}, c_.ranks, temporary))
      record(std::move(step));
    CompileOptions options;
    options.workspace_bytes = [&](const Program& program, const Op& op) {
      return device_.workspace_bytes(program, op);
    };
    add_workspaces(program_, options);
    add_step_barrier(program_, true);
    assign_memory(program_);
    return program_;
  }

 private:
  TensorId tensor(const std::string& name, TensorType type, bool persistent) {
    return add_tensor(program_, name, Role::activation, std::move(type), persistent, {});
  }
  void record(RingStep step) {
    Op op;
    op.def = step.op;
    op.reads = std::move(step.reads);
    op.writes = std::move(step.writes);
    op.attrs = std::move(step.attrs);
    if (op.communicates()) op.axis = "cp", op.lane = kLane;
    recorder_.append(recorder_.stream(step.stream), std::move(op));
  }

  const Case& c_;
  const Device& device_;
  const Dtype dtype_;
  Program program_;
  EdgeBuilder recorder_;
};

Values numbers(const VirtualBuffer& buffer, Dtype dtype, size_t count) {
  Values values;
  for (size_t i = 0; i < count; ++i) {
    const auto take = [&]<class T>() {
      T x;
      std::memcpy(&x, buffer.bytes.data() + i * sizeof(T), sizeof(T));
      return x;
    };
    if (dtype == Dtype::f64)
      values.push_back(take.operator()<double>());
    else if (dtype == Dtype::f32)
      values.push_back(static_cast<double>(take.operator()<float>()));
    else
      values.push_back(static_cast<double>(to_float(take.operator()<bf16>())));
  }
  return values;
}

// `tolerance` is relative to the largest element, because bf16 gradients are sums of rounded terms.
void expect_near(const Values& found, const Values& wanted, double tolerance, const char* what) {
  double largest = 0;
  for (double x : wanted) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < wanted.size(); ++i)
    ASSERT_NEAR(found[i], wanted[i], tolerance * largest) << what << " element " << i;
}

void check(const Case& c, const char* device_name, Dtype dtype, double tolerance) {
  SCOPED_TRACE(testing::Message() << device_name << " " << dtype_name(dtype) << ", " << c.ranks << " ranks, "
                                  << c.chunks << " chunks, " << c.length << " tokens, " << c.heads << " heads, "
                                  << c.kv_heads << " kv_heads of " << c.size << (c.causal ? ", causal" : ""));
  const std::unique_ptr<Device> device = open_device(device_name);
  const int64_t rows = c.batch * c.whole();
  const Values qkv = random_values(rows * c.wide(), 1), dout = random_values(rows * c.width(), 2);
  const Whole whole = definition(c, qkv, dout);
  Job job;
  for (int rank = 0; rank < c.ranks; ++rank) {
    job.class_of_rank.push_back(rank);
    job.classes.push_back(
        RankProgramBuilder(c, *device, dtype).build(part(c, qkv, c.wide(), rank), part(c, dout, c.width(), rank)));
  }
  for (const Finding& finding : verify_job(job, 0)) ADD_FAILURE() << finding.rule << ": " << finding.message;
  for (const VirtualOrder order : {VirtualOrder::early, VirtualOrder::late, VirtualOrder::random}) {
    const VirtualRun run = run_virtual_ranks(job, *device, {.order = order});
    for (int rank = 0; rank < c.ranks; ++rank) {
      ASSERT_EQ(run.persistent[static_cast<size_t>(rank)].size(), 3u);
      for (const VirtualBuffer& buffer : run.persistent[static_cast<size_t>(rank)]) {
        const bool gradient = buffer.name == "dqkv";
        if (buffer.name == "lse") continue;  // its dims have another order; a wrong lse gives a wrong gradient
        const Values wanted = part(c, gradient ? whole.dqkv : whole.out, gradient ? c.wide() : c.width(), rank);
        expect_near(numbers(buffer, dtype, wanted.size()), wanted, tolerance, buffer.name.c_str());
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(RingAttention, AgreesWithAttentionOverTheWholeSequence) {
  for (int ranks : {1, 2, 3, 4})
    for (int64_t chunks : {1, 2})
      for (bool causal : {true, false}) {
        check({ranks, chunks, 6, 2, 2, 3, causal}, "reference", Dtype::f64, 1e-12);
        check({ranks, chunks, 4, 4, 2, 5, causal}, "cpu", Dtype::f32, 2e-6);
      }
}

TEST(RingAttention, OnStripsThatEndWithinChunks) {
  for (int64_t chunks : {1, 2}) {
    check({3, chunks, 70, 2, 1, 20, true, 1}, "cpu", Dtype::f32, 3e-6);
    check({2, chunks, 90, 4, 2, 16, true, 1}, "cpu", Dtype::bf16, 1e-2);
    check({2, chunks, 34, 6, 3, 33, false, 1}, "cpu", Dtype::bf16, 1e-2);
  }
}

// Runs several ranks and hops on the device PRUN_RING_DEVICE (default: cpu). tests/cuda sets cuda, where the
// substitute's cuDNN computes the hops.
TEST(RingAttention, OnTheDeviceOfTheEnvironment) {
  const char* named = std::getenv("PRUN_RING_DEVICE");
  const char* device = named != nullptr ? named : "cpu";
  for (int64_t chunks : {1, 2}) {
    check({4, chunks, 24, 4, 2, 16, true, 2}, device, Dtype::bf16, 1e-2);
    check({3, chunks, 40, 2, 2, 8, false, 1}, device, Dtype::bf16, 1e-2);
  }
}

TEST(RingAttention, KeysTakeOneHopLessThanGradients) {
  const auto count = [](const std::vector<RingStep>& steps, std::string_view kind) {
    return std::count_if(steps.begin(), steps.end(), [&](const RingStep& step) { return step.op->name == kind; });
  };
  int next = 10;
  const MakeTemporary temporary = [&](std::string_view, const TensorType&) { return next++; };
  const RingNode node{{0, 1, 2, 3}, {4, 5}, {Dtype::bf16, {1, 8, 12}}, {}};
  const std::vector<RingStep> forward = lower_ring_attention(node, 4, temporary);
  EXPECT_EQ(count(forward, "send"), 3);
  EXPECT_EQ(count(forward, "recv"), 3);
  EXPECT_EQ(count(forward, "attention_block"), 4);
  EXPECT_EQ(count(forward, "cast"), 1);
  const std::vector<RingStep> backward = lower_ring_attention_grad(node, 4, temporary);
  EXPECT_EQ(count(backward, "send"), 3 + 4);
  EXPECT_EQ(count(backward, "attention_block_grad"), 4);
  for (const RingStep& step : lower_ring_attention(node, 1, temporary))
    EXPECT_TRUE(step.stream.empty()) << step.op->name;
}

}  // namespace
}  // namespace prun
