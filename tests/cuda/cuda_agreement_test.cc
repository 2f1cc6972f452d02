// Compares every kernel of the cuda device with the reference device: plugins/cuda on the substitute for CUDA, or the
// plugin that PRUN_CUDA_PLUGIN names, by which tools/gpu-check tests the real one. PRUN_CUDA_OPTIONS: its
// --device-options.
#include "tests/cuda/cuda_agreement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string_view>

#include "device/plugin_device.h"
#include "ir/op_def.h"
#include "kernels/devices.h"
#include "tests/agreement/agreement.h"
#include "tests/unit/op_list.h"

namespace prun {

const Device& cuda() {
  static const std::unique_ptr<Device> device = [] {
    const char* given = std::getenv("PRUN_CUDA_PLUGIN");
    if (given != nullptr) std::printf("cuda device: %s\n", given);
    const char* options = std::getenv("PRUN_CUDA_OPTIONS");
    return make_table_device(load_device_plugin({"cuda", given != nullptr ? given : PRUN_CUDA_DEVICE}),
                             {.options = options != nullptr ? options : ""});
  }();
  return *device;
}

namespace {

// On a GPU, unless its library is missing; on the substitute on request.
bool with_cudnn() {
  return std::getenv("PRUN_CUDA_PLUGIN") != nullptr || std::getenv("PRUN_SUBSTITUTE_CUDNN") != nullptr;
}

// Whether the settings of this process may change this kind's results in this type. Without settings, and on a GPU,
// every kind is compared; with them, the others would only repeat what another test compares.
bool is_affected(std::string_view kind, Dtype dtype) {
  if (std::getenv("PRUN_CUDA_PLUGIN") != nullptr) return true;
  if (with_cudnn()) {  // its graphs compute attention in bf16; `deterministic`, by default 1, concerns gradients
    const char* options = std::getenv("PRUN_CUDA_OPTIONS");
    const bool gradients = options != nullptr && options == std::string_view("deterministic=0");
    return dtype == Dtype::bf16 && (kind.starts_with("attention") || kind.starts_with("attend")) &&
           (!gradients || kind.ends_with("_grad"));
  }
  if (std::getenv("PRUN_SUBSTITUTE_FLUSH") == nullptr) return true;
  const std::string_view flushing[] = {"gelu", "relu", "tanh", "silu", "cross_entropy"};  // compiled with --ftz=true
  return std::ranges::any_of(flushing, [&](std::string_view family) { return kind.starts_with(family); });
}

void check_all(const std::vector<Case>& cases, int64_t skew = 0) {
  int compared = 0;
  for (const Case& c : cases) {
    if (skew != 0 && c.op.kind == std::string_view("attention_block_grad"))
      continue;  // it has attention_grad's kernels, and is slow here
    const bool f32 = (skew == 0 || !c.bf16) && is_affected(c.op.kind, Dtype::f32);
    const bool bf16 = c.bf16 && is_affected(c.op.kind, Dtype::bf16);
    compared += f32 || bf16;
    const int runs = skew == 0 ? 2 : 1;  // tensors of odd widths have the same kernels, and run twice
    if (f32) expect_agreement(c, cuda(), Dtype::f32, {.skew = skew, .runs = runs});
    const bool rounds_heads = with_cudnn() && may_round_heads(c.op.kind);
    if (bf16)
      expect_agreement(
          c, cuda(), Dtype::bf16,
          {.skew = skew, .tensor_cores = on_tensor_cores(c.op.kind), .rounds_heads = rounds_heads, .runs = runs});
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(compared, 0);
}

TEST(CudaAgreement, Matrix) { check_all(matrix_cases()); }
TEST(CudaAgreement, Attention) { check_all(attention_cases()); }
TEST(CudaAgreement, Rows) { check_all(row_cases()); }
TEST(CudaAgreement, Pointwise) { check_all(pointwise_cases()); }
TEST(CudaAgreement, Arithmetic) { check_all(arithmetic_cases()); }
TEST(CudaAgreement, Windows) { check_all(window_cases()); }
TEST(CudaAgreement, Pieces) { check_all(piece_cases()); }
TEST(CudaAgreement, Views) { check_all(view_cases()); }
TEST(CudaAgreement, Training) { check_all(training_cases()); }
TEST(CudaAgreement, Sources) { check_all(source_cases()); }
TEST(CudaAgreement, AttentionBlocks) { check_all(attention_block_cases()); }
TEST(CudaAgreement, Attend) { check_all(attend_cases()); }
// cuDNN supports some of these cases. The filter of the tests with cuDNN selects the name.
TEST(CudaAgreement, AttentionOfSeparateTensors) {
  if (!with_cudnn()) GTEST_SKIP() << "the same as Attend";
  std::vector<Case> cases = attend_cases();
  std::erase_if(cases, [](const Case& c) {
    constexpr std::string_view kTaken[] = {"all keys", "causal", "a causal window", "softcap and scale",
                                           "heads of keys of all ranks"};
    return std::ranges::find(kTaken, c.name) == std::end(kTaken);
  });
  check_all(cases);
}
TEST(CudaAgreement, Decoding) { check_all(decode_cases()); }
TEST(CudaAgreement, Moe) { check_all(moe_cases()); }

TEST(CudaAgreement, BitsOfTheCpu) {
  const std::unique_ptr<Device> cpu = open_device("cpu");
  for (const Case& c : all_cases()) {
    if (!has_bits_of_the_cpu(c.op.kind)) continue;
    expect_agreement(c, cuda(), Dtype::f32, {.exactly_as = cpu.get()});
    if (c.bf16) expect_agreement(c, cuda(), Dtype::bf16, {.exactly_as = cpu.get()});
  }
}

// Kernels with 16-byte accesses must check alignment first.
TEST(CudaAgreement, TensorsBesideAlignedAddresses) { check_all(all_cases(), 1); }

// Blocks and threads run in another order each time, and no result may depend on it.
TEST(CudaAgreement, AttentionHasTheSameBitsInEveryRun) {
  const Attrs attrs = make_attrs({{"heads", 4}, {"kv_heads", 2}, {"causal", 1}});
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    OpList list(cuda());
    const int qkv = list.tensor({dtype, {1, 150, 8 * 16}}), out = list.tensor({dtype, {1, 150, 4 * 16}});
    const int lse = list.tensor({Dtype::f32, {1, 4, 150}}), dout = list.tensor({dtype, {1, 150, 4 * 16}});
    const int dqkv = list.tensor({dtype, {1, 150, 8 * 16}});
    list.op("attention", {qkv}, {out, lse}, attrs);
    list.op("attention_grad", {qkv, out, dout, lse}, {dqkv}, attrs);
    const TensorType keys{dtype, {1, 150, 2 * 16}};
    const int k = list.tensor(keys), v = list.tensor(keys), dk = list.tensor(keys), dv = list.tensor(keys);
    const int dq = list.tensor({dtype, {1, 150, 4 * 16}});
    list.op("attend_grad", {dout, k, v, out, dout, lse}, {dq, dk, dv}, attrs);
    list.make();
    for (const int id : {qkv, dout, k, v}) {
      std::vector<double> values = list.get(id);
      for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i * i % 1009));
      list.set(id, values);
    }
    std::vector<std::vector<double>> first;
    for (const int round : {0, 1, 2}) {
      list.run();
      const std::vector<std::vector<double>> now = {list.get(out), list.get(lse), list.get(dqkv),
                                                    list.get(dq),  list.get(dk),  list.get(dv)};
      if (round == 0) first = now;
      EXPECT_EQ(now, first) << dtype_name(dtype) << ", run " << round;
    }
  }
}

// A mask hides the keys where it is 0, also -0, in each of its types.
TEST(CudaAgreement, MasksOfAllTypesHideTheSameKeys) {
  constexpr int64_t kKeys = 70, kQueries = 20;
  std::vector<std::vector<double>> first;
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    first.clear();
    for (const Dtype mask_type : {Dtype::i32, Dtype::f32, Dtype::bf16}) {
      OpList list(cuda());
      const int q = list.tensor({dtype, {1, kQueries, 16}}), k = list.tensor({dtype, {1, kKeys, 16}});
      const int v = list.tensor({dtype, {1, kKeys, 8}}), mask = list.tensor({mask_type, {1, kQueries, kKeys}});
      const int out = list.tensor({dtype, {1, kQueries, 8}}), lse = list.tensor({Dtype::f32, {1, 1, kQueries}});
      list.op("attend", {q, k, v, mask}, {out, lse}, make_attrs({{"masked", 1}}));
      list.make();
      for (const int id : {q, k, v, mask}) {
        std::vector<double> values = list.get(id);
        for (size_t i = 0; i < values.size(); ++i) {
          if (id != mask) values[i] = std::sin(static_cast<double>(i * i % 1009));
          if (id == mask) values[i] = i < kKeys || i % 3 == 0 ? (mask_type == Dtype::i32 ? 0.0 : -0.0) : 0.5 * (i % 7);
          if (id == mask && mask_type == Dtype::i32 && values[i] != 0) values[i] = 1;
        }
        list.set(id, values);
      }
      list.run();
      const std::vector<std::vector<double>> now = {list.get(out), list.get(lse)};
      if (first.empty()) first = now;
      EXPECT_EQ(now, first) << dtype_name(dtype) << ", mask in " << dtype_name(mask_type);
      EXPECT_EQ(now[0][0], 0) << "the first query sees no key";
      EXPECT_NE(now[0][8], 0) << "the second query sees keys";
    }
  }
}

// cuDNN is promised 16-byte alignment of its results, too; without it the numbers must be the same.
TEST(CudaAgreement, AttentionWhoseResultsLieBesideAlignedAddresses) {
  const Attrs attrs = make_attrs({{"heads", 2}, {"causal", 1}});
  const TensorType packed{Dtype::bf16, {1, 20, 3 * 2 * 16}}, narrow{Dtype::bf16, {1, 20, 2 * 16}};
  std::vector<std::vector<double>> aligned;
  for (const auto& [out_beside, gradient_beside] : {std::pair<int64_t, int64_t>{0, 0}, {4, 0}, {0, 4}}) {
    OpList list(cuda());
    const int qkv = list.tensor(packed), out = list.tensor(narrow, out_beside),
              lse = list.tensor({Dtype::f32, {1, 2, 20}});
    const int dout = list.tensor(narrow), dqkv = list.tensor(packed, gradient_beside);
    list.op("attention", {qkv}, {out, lse}, attrs);
    list.op("attention_grad", {qkv, out, dout, lse}, {dqkv}, attrs);
    list.make();
    for (const int id : {qkv, dout}) {
      std::vector<double> values = list.get(id);
      for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i * i % 1009));
      list.set(id, values);
    }
    list.run();
    const std::vector<std::vector<double>> now = {list.get(out), list.get(dqkv)};
    if (aligned.empty()) aligned = now;
    for (size_t which : {0, 1})
      for (size_t i = 0; i < now[which].size(); ++i)
        ASSERT_NEAR(now[which][i], aligned[which][i], 0.05) << "out " << out_beside << ", dqkv " << gradient_beside;
  }
}

// Kernels of exponentials may flush subnormals to zero (--ftz=true; PRUN_SUBSTITUTE_FLUSH=1 does so here).
TEST(CudaAgreement, SubnormalsAreWithinTheToleranceOfZeros) {
  constexpr int64_t kRows = 3, kColumns = 40;
  const TensorType rows{Dtype::f32, {kRows, kColumns}};
  const auto value = [](size_t i) {  // subnormal ones among others; probabilities down to e^-100
    const double ordinary[] = {0.5, -3, 100, 1e-40, -1e-40, 4, -8, 1e-39};
    return ordinary[i % 8];
  };
  const auto result = [&](const Device& device, std::string_view kind, int inputs, int outputs) {
    OpList list(device);
    std::vector<TensorId> reads, writes;
    for (int i = 0; i < inputs; ++i) reads.push_back(list.tensor(rows));
    for (int i = 0; i < outputs; ++i) writes.push_back(list.tensor(rows));
    list.op(kind, reads, writes, {});
    list.make();
    for (size_t input = 0; input < reads.size(); ++input) {
      std::vector<double> values(kRows * kColumns);
      for (size_t i = 0; i < values.size(); ++i) values[i] = value(i + 3 * input);
      list.set(reads[input], values);
    }
    list.run();
    std::vector<double> all;
    for (const TensorId id : writes)
      for (const double x : list.get(id)) all.push_back(x);
    return all;
  };
  const std::unique_ptr<Device> reference = open_device("reference");
  const auto expect_same = [](const std::vector<double>& found, const std::vector<double>& wanted) {
    ASSERT_EQ(found.size(), wanted.size());
    double square = 0;
    for (const double x : wanted) square += x * x;
    const double rms = std::sqrt(square / static_cast<double>(wanted.size()));
    for (size_t i = 0; i < found.size(); ++i)
      EXPECT_NEAR(found[i], wanted[i], 4e-6 * (std::abs(wanted[i]) + rms)) << "element " << i;
  };
  struct Kind {
    const char* name;
    int inputs, outputs;
  };
  for (const Kind& kind : {Kind{"gelu", 1, 1}, {"gelu_dx", 2, 1}, {"silu_mul", 2, 1}, {"silu_mul_grad", 3, 2}}) {
    SCOPED_TRACE(kind.name);
    expect_same(result(cuda(), kind.name, kind.inputs, kind.outputs),
                result(*reference, kind.name, kind.inputs, kind.outputs));
  }

  const auto loss = [&](const Device& device) {
    OpList list(device);
    const int logits = list.tensor(rows), targets = list.tensor({Dtype::i32, {kRows}});
    const int sum = list.tensor({Dtype::f32, {1}}), lse = list.tensor({Dtype::f32, {kRows}}), d = list.tensor(rows);
    list.op("cross_entropy", {logits, targets}, {sum, lse}, {});
    list.op("cross_entropy_grad", {logits, targets, lse}, {d}, {});
    list.make();
    std::vector<double> values(kRows * kColumns);
    for (size_t i = 0; i < values.size(); ++i) values[i] = value(i);
    list.set(logits, values), list.set(targets, {0, 3, 4});
    list.run();
    std::vector<double> all = list.get(sum);
    for (const int id : {lse, d})
      for (const double x : list.get(id)) all.push_back(x);
    return all;
  };
  expect_same(loss(cuda()), loss(*reference));
}

// A maximum is a NaN wherever an element is, whichever thread finds it, and few results are computed in parts.
TEST(CudaAgreement, MaximaAreNaNsWhereAnElementIs) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
    for (const int64_t dim : {0, 1}) {
      constexpr int64_t kSize = 5003;
      OpList list(cuda());
      const int x = list.tensor({dtype, dim == 0 ? Shape{kSize, 3} : Shape{3, kSize}}), y = list.tensor({dtype, {3}});
      list.op("reduce_dims", {x}, {y}, make_attrs({{"op", std::string("max")}, {"dims", std::vector<int64_t>{dim}}}));
      list.make();
      for (const int64_t at : {0, 33, 2500, 5002}) {
        std::vector<double> values(3 * kSize);
        for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<double>(i));
        values[dim == 0 ? at * 3 + 1 : kSize + at] = std::nan("");
        list.set(x, values);
        list.run();
        const std::vector<double> now = list.get(y);
        EXPECT_TRUE(std::isnan(now[1])) << dtype_name(dtype) << ", dim " << dim << ", element " << at;
        EXPECT_TRUE(now[0] > 0.9 && now[2] > 0.9) << dtype_name(dtype) << ", dim " << dim << ", element " << at;
      }
    }
}

TEST(CudaAgreement, EveryKindHasAKernel) {
  std::map<std::string_view, bool> kinds;
  for (const Case& c : all_cases())
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
      if (dtype == Dtype::f32 || c.bf16) {
        const bool has = supported(c, cuda(), dtype);
        kinds.emplace(c.op.kind, true).first->second &= has;
      }
  for (const auto& [kind, has] : kinds) EXPECT_TRUE(has) << kind;
}

}  // namespace
}  // namespace prun
