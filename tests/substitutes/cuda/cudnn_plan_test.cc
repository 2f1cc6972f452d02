// Tests that cuDNN (9.8 or newer) accepts prun's graphs of attention: without a GPU it makes plans for described
// devices, which includes compiling their kernels. The driver that loads these is tests/substitutes/cuda/driver.cc, so
// nothing is computed.
#include <gtest/gtest.h>

#include "plugins/cuda/attention/attention_cudnn.h"
#include "plugins/cuda/attention/attention_graphs.h"

namespace prun::cuda {
namespace {

// Returns a device in cuDNN's format, with the names of CUDA's device properties.
std::string device(const char* name, int capability, int multiprocessors, int shared_bytes) {
  const auto number = [](const char* key, int64_t value) {
    return ", \"" + std::string(key) + "\": " + std::to_string(value);
  };
  return R"({"deviceName": ")" + std::string(name) + "\"" + number("deviceVer", capability * 10) +
         number("multiProcessorCount", multiprocessors) + number("maxSharedMemoryPerBlockOptin", shared_bytes) +
         R"(, "maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64])" +
         number("regsPerBlock", 65536) + number("warpSize", 32) + number("maxSharedMemoryPerBlock", 49152) +
         number("reservedSharedMemoryPerBlock", 1024) + number("maxRegistersPerSM", 65536) +
         number("maxCtasPerSM", 32) + number("maxThreadsPerBlock", 1024) + number("maxThreadsPerSM", 2048) +
         number("pciDeviceId", 0) + number("isTccDriver", 0) + number("supportCoopLaunch", 1) +
         number("smClockRateKHz", 1980000) + number("memClockRateKHz", 3201000) + number("l2CacheSize", 50 << 20) +
         number("driverVer", 13000) + number("cudaDeviceId", 0) + number("totalGlobalMem", int64_t{80} << 30) + "}";
}

AttentionSizes sizes(int64_t batch, int length, int heads, int kv_heads, int head) {
  AttentionSizes s{};
  s.batch = batch, s.length = s.keys = length, s.heads = heads, s.kv_heads = kv_heads, s.head = s.value = head;
  s.scale = 0.1f;
  return s;
}

Options options(bool deterministic) {
  Options o;
  o.deterministic = deterministic;
  return o;
}

// Returns the shape of attention over a packed qkv tensor.
CudnnAttentionShape packed(const AttentionSizes& s, const CudnnSlice& slice, bool causal) {
  const int64_t row = int64_t{s.heads + 2 * s.kv_heads} * s.head, width = int64_t{s.heads} * s.head, t = s.length;
  CudnnAttentionShape shape{slice.batch, t, t, slice.kv_heads * s.group(), slice.kv_heads, s.head, s.value, s.scale};
  shape.q = shape.k = shape.v = shape.dq = shape.dk = shape.dv = {row, t * row};
  shape.out = {width, t * width}, shape.causal = causal;
  return shape;
}

size_t gradient_bytes(const CudnnTarget& target, const CudnnAttentionShape& shape, bool deterministic) {
  return attention_gradient_graph(shape, !deterministic).plan(target, deterministic).workspace_bytes();
}

// Returns the shape of attention over separate tensors, as the op attend has it.
CudnnAttentionShape separate(const AttentionSizes& s, const CudnnSlice& slice, bool causal) {
  const int64_t t = s.length, u = s.keys;
  const auto at = [](int64_t row, int64_t rows) { return CudnnStrides{row, row * rows}; };
  CudnnAttentionShape shape{slice.batch, t, u, slice.kv_heads * s.group(), slice.kv_heads, s.head, s.value, s.scale};
  shape.q = shape.dq = at(int64_t{s.heads} * s.head, t), shape.k = shape.dk = at(int64_t{s.kv_heads} * s.head, u);
  shape.v = shape.dv = at(int64_t{s.kv_heads} * s.value, u), shape.out = at(int64_t{s.heads} * s.value, t);
  shape.causal = causal, shape.window = s.window, shape.cap = s.cap;
  return shape;
}

using ShapeOf = CudnnAttentionShape (*)(const AttentionSizes&, const CudnnSlice&, bool);

void expect_plans(const std::string& described, const AttentionSizes& s, bool causal, ShapeOf of = packed) {
  const CudnnTarget target = CudnnTarget::described(described);
  const CudnnAttentionShape whole = of(s, {s.batch, s.kv_heads}, causal);
  EXPECT_LE(attention_graph(whole).plan(target, true).workspace_bytes(), kCudnnForwardBytes);
  const CudnnSlice slice = cudnn_backward_slice(s, options(true)), summed = cudnn_backward_slice(s, options(false));
  ASSERT_GT(slice.batch, 0);
  ASSERT_GT(summed.batch, 0);
  const size_t bytes = gradient_bytes(target, of(s, slice, causal), true);
  EXPECT_LE(bytes, slice.bytes);
  EXPECT_GE(bytes, slice.bytes - 256) << "memory is set aside that cuDNN does not want";
  EXPECT_LE(summed.sums_bytes + gradient_bytes(target, of(s, summed, causal), false), summed.bytes);
}

TEST(CudnnPlans, OfGpt2OnHopper) {
  expect_plans(device("NVIDIA H200", 90, 132, 232448), sizes(64, 1024, 12, 12, 64), true);
}

// Keys are padded to tiles of 128, queries to 64.
TEST(CudnnPlans, OfLengthsThatAreNoMultiplesOfTiles) {
  for (const int length : {37, 1088})
    expect_plans(device("NVIDIA H200", 90, 132, 232448), sizes(2, length, 4, 2, 64), true);
}

TEST(CudnnPlans, OfLlamaWithSharedKeysOnHopper) {
  expect_plans(device("NVIDIA H200", 90, 132, 232448), sizes(1, 4096, 32, 8, 128), true);
}

TEST(CudnnPlans, OfAnOddLengthOnAmpere) {
  expect_plans(device("NVIDIA A100-SXM4-80GB", 80, 108, 166912), sizes(2, 333, 4, 2, 64), false);
}

// A hop of ring attention: q in a packed tensor, keys in another, forward in f32. It needs at most the scratch of a hop
// whose queries all attend to all keys.
void expect_hop(const std::string& gpu, const AttentionSizes& s, int64_t queries, int64_t keys, bool causal) {
  SCOPED_TRACE(testing::Message() << s.heads << " heads, " << queries << " queries, " << keys << " keys");
  const CudnnTarget target = CudnnTarget::described(gpu);
  const int64_t width = int64_t{s.heads} * s.head, shared = int64_t{s.kv_heads} * s.head;
  CudnnAttentionShape shape = packed(s, {s.batch, s.kv_heads}, causal);
  shape.queries = queries, shape.keys = keys, shape.f32_out = true;
  shape.k = shape.v = {2 * shared, s.length * 2 * shared};
  shape.out = {width, queries * width};
  EXPECT_LE(attention_graph(shape).plan(target, true).workspace_bytes(), kCudnnForwardBytes);
  for (const bool deterministic : {true, false}) {
    const CudnnSlice slice = cudnn_backward_slice(s, options(deterministic));
    shape.batch = slice.batch, shape.kv_heads = slice.kv_heads, shape.heads = slice.kv_heads * s.group();
    shape.out = {width, s.length * width};
    shape.dq = {width, queries * width}, shape.dk = shape.dv = {2 * shared, keys * 2 * shared};
    EXPECT_LE(slice.sums_bytes + gradient_bytes(target, shape, deterministic), slice.bytes);
  }
}

TEST(CudnnPlans, OfHopsOfARing) {
  const std::string h100 = device("NVIDIA H100 80GB HBM3", 90, 132, 232448),
                    a100 = device("NVIDIA A100-SXM4-80GB", 80, 108, 166912);
  const AttentionSizes llama = sizes(1, 4096, 8, 1, 128), gpt2 = sizes(2, 1024, 12, 12, 64);
  expect_hop(h100, llama, 4096, 4096, true);
  expect_hop(h100, llama, 4096, 2048, false);
  expect_hop(h100, llama, 2048, 4096, false);
  expect_hop(h100, gpt2, 1024, 512, false);
  expect_hop(a100, llama, 4096, 2048, false);
}

const char* const kHopper = "NVIDIA H200";

TEST(CudnnPlans, OfACausalWindow) {
  AttentionSizes s = sizes(1, 8192, 8, 2, 128);
  s.window = 4096;
  expect_plans(device(kHopper, 90, 132, 232448), s, true, separate);
  s.length = s.keys = 333, s.window = 100;
  expect_plans(device("NVIDIA A100-SXM4-80GB", 80, 108, 166912), s, true, separate);
}

TEST(CudnnPlans, OfAttentionToOtherTokens) {
  AttentionSizes s = sizes(2, 320, 4, 2, 64);
  s.keys = 1500;
  expect_plans(device(kHopper, 90, 132, 232448), s, false, separate);
  s.length = 1500, s.keys = 77;
  expect_plans(device(kHopper, 90, 132, 232448), s, false, separate);
}

TEST(CudnnPlans, OfLatentHeadsOnHopper) {
  AttentionSizes s = sizes(1, 4096, 16, 16, 192);
  s.value = 128;
  expect_plans(device(kHopper, 90, 132, 232448), s, true, separate);
}

TEST(CudnnPlans, OfWideHeadsOnHopper) {
  AttentionSizes s = sizes(1, 4096, 8, 4, 256);
  expect_plans(device(kHopper, 90, 132, 232448), s, true);
  s.window = 1024;
  expect_plans(device(kHopper, 90, 132, 232448), s, true, separate);
}

TEST(CudnnPlans, OfSoftcap) {
  AttentionSizes s = sizes(1, 4096, 8, 4, 128);
  s.cap = 50;
  expect_plans(device(kHopper, 90, 132, 232448), s, true, separate);
  s.window = 1024, s.head = s.value = 256;
  expect_plans(device(kHopper, 90, 132, 232448), s, true, separate);
}

TEST(CudnnPlans, ThereIsNoneForVolta) {
  const CudnnAttentionShape shape = packed(sizes(1, 1024, 12, 12, 64), {1, 12}, true);
  EXPECT_THROW(attention_graph(shape).plan(CudnnTarget::described(device("Tesla V100", 70, 80, 98304)), true), Failure);
}

// The default limit of 1 GiB holds Llama 8B at 8,192 tokens and 70B's share of 8 ranks at 4,096.
TEST(CudnnPlans, OfLongContextsOnHopper) {
  const std::string h100 = device("NVIDIA H100 80GB HBM3", 90, 132, 232448);
  expect_plans(h100, sizes(1, 8192, 32, 8, 128), true);
  expect_plans(h100, sizes(1, 4096, 8, 1, 128), true);
}

TEST(CudnnPlans, SlicesAreSamplesThenHeads) {
  const auto slice = [](const AttentionSizes& s, bool deterministic, size_t limit) {
    Options o = options(deterministic);
    o.attention_workspace = limit;
    return cudnn_backward_slice(s, o);
  };
  constexpr size_t kMiB = size_t{1} << 20;
  const AttentionSizes gpt2 = sizes(64, 1024, 12, 12, 64), llama = sizes(3, 4096, 32, 8, 128);
  EXPECT_EQ(slice(gpt2, true, 256 * kMiB).batch, 8);
  EXPECT_EQ(slice(gpt2, true, 256 * kMiB).kv_heads, 12);
  EXPECT_EQ(slice(gpt2, true, 1024 * kMiB).batch, 32);
  EXPECT_EQ(slice(gpt2, false, 256 * kMiB).batch, 32);
  EXPECT_EQ(slice(llama, true, 256 * kMiB).batch, 1);
  EXPECT_EQ(slice(llama, true, 256 * kMiB).kv_heads, 1);
  EXPECT_EQ(slice(llama, true, 1024 * kMiB).kv_heads, 4);
  EXPECT_EQ(slice(sizes(1, 8192, 32, 8, 128), true, 256 * kMiB).batch, 0);
  EXPECT_EQ(slice(gpt2, false, 0).batch, 0);
}

}  // namespace
}  // namespace prun::cuda
