// Tests which attention ops of the CUDA device cuDNN computes, including the hops of ring attention, and that their
// scratch has exactly the size that the op table reports: with less, a kernel would allocate memory of its own.
#include <gtest/gtest.h>

#include <cstdlib>
#include <list>
#include <string>
#include <vector>

#include "device/plugin_device.h"
#include "device/queue_device.h"

namespace prun {
namespace {

using Dims = std::vector<int64_t>;

// A rank of a ring: its share of the tokens in `chunks`, and the keys of the rank `hop` places before it.
struct Hop {
  int64_t rank = 0, ranks = 1, chunks = 1, hop = 0;
};

struct Sizes {
  int64_t batch = 2, length = 128, heads = 2, kv_heads = 2, head = 64;
  int64_t width() const { return heads * head; }
  int64_t shared() const { return 2 * kv_heads * head; }
};

struct Made {
  size_t workspace = 0;
  int64_t taken = 0;  // bytes of memory that the kernel allocated
  bool by_cudnn = false;
};

std::string logged;
const prun_device* listened_to;
prun_status open_and_listen(const prun_device_params* params, prun_dev** device, prun_result* result) {
  prun_device_params ours = *params;
  ours.log = [](int, const char* text) { logged += text; };
  return listened_to->open(&ours, device, result);
}

prun_attr integer(const char* name, int64_t value) {
  return {name, PRUN_ATTR_INTEGER, value, 0, nullptr, nullptr, nullptr, 0};
}

struct Operand {
  Dims dims;
  int dtype = PRUN_BF16;
};

Made make(const char* kind, const std::vector<Operand>& reads, const std::vector<Operand>& writes, const Sizes& s,
          const Hop& hop, const std::string& options, const std::vector<prun_attr>& more = {}) {
  setenv("PRUN_SUBSTITUTE_CUDNN", "1", 1);
  listened_to = &load_device_plugin({"cuda", PRUN_CUDA_DEVICE});
  prun_device table = *listened_to;
  table.open = open_and_listen;
  QueueDevice device(table, 0, options);
  std::list<DeviceMemory> memory;
  const auto tensors = [&](const std::vector<Operand>& of) {
    std::vector<prun_tensor> all;
    for (const Operand& one : of) {
      int64_t bytes = one.dtype == PRUN_F32 ? 4 : 2;
      for (const int64_t dim : one.dims) bytes *= dim;
      all.push_back({memory.emplace_back(device, bytes, PRUN_PLACE_DEVICE).get(), one.dims.data(),
                     static_cast<int>(one.dims.size()), one.dtype});
    }
    return all;
  };
  const std::vector<prun_tensor> in = tensors(reads), out = tensors(writes);
  std::vector<prun_attr> attrs = {integer("heads", s.heads), integer("kv_heads", s.kv_heads),
                                  integer("chunks", hop.chunks), integer("hop", hop.hop),
                                  prun_attr{"tokens_axis", PRUN_ATTR_TEXT, 0, 0, "cp", nullptr, nullptr, 0}};
  attrs.insert(attrs.end(), more.begin(), more.end());
  prun_op op{};
  op.size = sizeof op;
  op.kind = kind;
  op.reads = in.data(), op.n_reads = in.size();
  op.writes = out.data(), op.n_writes = out.size();
  op.attrs = attrs.data(), op.n_attrs = attrs.size();
  op.share = [](const void* mesh, const char*, int64_t* index, int64_t* of) {
    *index = static_cast<const Hop*>(mesh)->rank, *of = static_cast<const Hop*>(mesh)->ranks;
  };
  op.mesh = &hop;
  op.options = options.c_str();
  Made made;
  device.call("workspace", [&](prun_result* result) { return table.workspace(&op, &made.workspace, result); });
  DeviceMemory workspace(device, static_cast<int64_t>(made.workspace) + 64, PRUN_PLACE_DEVICE);
  op.workspace = workspace.get() + 64, op.workspace_bytes = made.workspace;
  const auto free_bytes = [&] {
    uint64_t free = 0, total = 0;
    EXPECT_EQ(table.memory_info(device.get(), &free, &total), PRUN_OK);
    return static_cast<int64_t>(free);
  };
  logged.clear();
  const int64_t before = free_bytes();
  const DeviceKernel kernel(device, op);
  made.taken = before - free_bytes();
  made.by_cudnn = logged.find("by cuDNN") != std::string::npos;
  return made;
}

Made forward(const Sizes& s, const std::string& options = "") {
  return make("attention", {{{s.batch, s.length, s.width() + s.shared()}}},
              {{{s.batch, s.length, s.width()}}, {{s.batch, s.heads, s.length}, PRUN_F32}}, s, {}, options,
              {integer("causal", 1)});
}
Made backward(const Sizes& s, const std::string& options = "") {
  const Operand packed{{s.batch, s.length, s.width() + s.shared()}}, row{{s.batch, s.length, s.width()}};
  return make("attention_grad", {packed, row, row, {{s.batch, s.heads, s.length}, PRUN_F32}}, {packed}, s, {}, options,
              {integer("causal", 1)});
}
Made forward(const Sizes& s, const Hop& hop, const std::string& options = "") {
  const Operand sum{{s.batch, s.length, s.width()}, PRUN_F32}, lse{{s.batch, s.heads, s.length}, PRUN_F32};
  std::vector<Operand> reads = {{{s.batch, s.length, s.width() + s.shared()}}, {{s.batch, s.length, s.shared()}}};
  if (hop.hop > 0) reads.push_back(sum), reads.push_back(lse);
  return make("attention_block", reads, {sum, lse}, s, hop, options, {integer("causal", 1)});
}
Made backward(const Sizes& s, const Hop& hop, const std::string& options = "") {
  const Operand kv{{s.batch, s.length, s.shared()}}, row{{s.batch, s.length, s.width()}};
  std::vector<Operand> reads = {
      {{s.batch, s.length, s.width() + s.shared()}}, kv, row, row, {{s.batch, s.heads, s.length}, PRUN_F32}};
  if (hop.hop > 0) reads.push_back({row.dims, PRUN_F32});
  return make("attention_block_grad", reads, {{row.dims, PRUN_F32}, {kv.dims, PRUN_F32}}, s, hop, options,
              {integer("causal", 1)});
}

constexpr size_t kBoundary = 256;  // the op table adds it, so that scratch can begin on a multiple of it

TEST(CudaAttention, ScratchFollowsTheOptions) {
  const Sizes s;
  constexpr size_t kDots = 2 * 2 * 128 * 4, kScores = 2 * 2 * 128 * 128;  // f32 for each row; bf16, of one sample
  EXPECT_EQ(forward(s).workspace, 256 + kBoundary);
  EXPECT_EQ(backward(s).workspace, kDots + 2 * kScores + 256 + kBoundary);
  EXPECT_EQ(backward(s, "attention_workspace=80K").workspace, kDots + kScores + 256 + kBoundary);
  EXPECT_EQ(backward(s, "attention_workspace=1K").workspace, kDots + kBoundary);
  EXPECT_EQ(backward(s, "deterministic=0").workspace, kDots + 2 * (4 * 2 * 2 * 128 * 64) + 256 + kBoundary);
  EXPECT_EQ(forward(s, "cudnn=0").workspace, 0);
  EXPECT_EQ(backward(s, "cudnn=0").workspace, kDots + kBoundary);
}

TEST(CudaAttention, TakesNoMemoryBesideItsScratch) {
  for (const Sizes& s : {Sizes{}, Sizes{1, 192, 4, 2, 64}, Sizes{3, 100, 2, 1, 128}})
    for (const char* options : {"", "deterministic=0", "attention_workspace=80K", "attention_workspace=0", "cudnn=0"}) {
      SCOPED_TRACE(testing::Message() << s.length << " tokens, " << options);
      EXPECT_EQ(forward(s, options).taken, 0);
      EXPECT_EQ(backward(s, options).taken, 0);
      for (const int64_t chunks : {1, 2})
        for (const int64_t rank : {0, 1, 3})
          for (const int64_t hop : {0, 1, 3}) {
            EXPECT_EQ(forward(s, Hop{rank, 4, chunks, hop}, options).taken, 0);
            EXPECT_EQ(backward(s, Hop{rank, 4, chunks, hop}, options).taken, 0);
          }
    }
}

TEST(CudaAttention, HopsAreComputedByCudnn) {
  const Sizes s;
  for (const int64_t chunks : {1, 2})
    for (const int64_t rank : {0, 1, 2})
      for (const int64_t hop : {0, 1, 2}) {
        SCOPED_TRACE(testing::Message() << chunks << " chunks, rank " << rank << ", hop " << hop);
        const bool sees = chunks == 2 || hop <= rank;  // otherwise all keys come after all queries
        EXPECT_EQ(forward(s, Hop{rank, 3, chunks, hop}).by_cudnn, sees);
        EXPECT_EQ(backward(s, Hop{rank, 3, chunks, hop}).by_cudnn, sees);
        EXPECT_FALSE(forward(s, Hop{rank, 3, chunks, hop}, "cudnn=0").by_cudnn);
      }
}

// The op attend: tokens that it attends to, elements of a head of v, rules.
struct Separate {
  int64_t keys = 128, value = 64;
  std::vector<prun_attr> attrs;
};

// Both ops: forward and gradient.
std::vector<Made> attend(const Sizes& s, const Separate& of, const std::string& options = "") {
  const Operand q{{s.batch, s.length, s.width()}}, k{{s.batch, of.keys, s.kv_heads * s.head}};
  const Operand v{{s.batch, of.keys, s.kv_heads * of.value}}, out{{s.batch, s.length, s.heads * of.value}};
  const Operand lse{{s.batch, s.heads, s.length}, PRUN_F32};
  return {make("attend", {q, k, v}, {out, lse}, s, {}, options, of.attrs),
          make("attend_grad", {q, k, v, out, out, lse}, {q, k, v}, s, {}, options, of.attrs)};
}

TEST(CudaAttention, SeparateTensorsAreComputedByCudnn) {
  const prun_attr causal = integer("causal", 1), window = integer("window", 40), cap = integer("softcap", 3);
  const prun_attr scale{"scale", PRUN_ATTR_NUMBER, 0, 0.3, nullptr, nullptr, nullptr, 0};
  const prun_attr all = integer("of_heads", 16), axis{"kv_axis", PRUN_ATTR_TEXT, 0, 0, "cp", nullptr, nullptr, 0};
  const Sizes plain, shared{2, 128, 4, 2, 64}, wide{1, 128, 2, 1, 256}, latent{1, 128, 2, 2, 192},
      odd{2, 128, 2, 2, 60};
  struct Expected {
    Sizes sizes;
    Separate of;
    bool by_cudnn;
  };
  for (const auto& [s, of, by_cudnn] :
       {Expected{plain, {}, true}, Expected{shared, {128, 64, {causal, window, scale}}, true},
        Expected{shared, {200, 64, {scale}}, true}, Expected{latent, {128, 128, {causal}}, true},
        Expected{wide, {128, 256, {causal, window}}, true}, Expected{plain, {128, 64, {causal, cap}}, true},
        Expected{{2, 128, 2, 4, 64}, {128, 64, {causal, all, axis}}, true}, Expected{plain, {128, 64, {window}}, false},
        Expected{odd, {128, 60, {causal}}, false}})
    for (const char* options : {"", "deterministic=0", "attention_workspace=200K"}) {
      SCOPED_TRACE(testing::Message() << s.head << " elements, " << of.keys << " keys, " << options);
      for (const Made& made : attend(s, of, options)) {
        if (options == std::string()) {
          EXPECT_EQ(made.by_cudnn, by_cudnn);
        }
        EXPECT_EQ(made.taken, 0);
      }
    }
}

// cuDNN 9.10.0 and 9.10.1 are wrong in bf16, and until 9.13 its frontend limits heads of more than 128.
TEST(CudaAttention, VersionsThatComputeWronglyAreNotUsed) {
  const auto by_cudnn = [](const char* version, const Sizes& s, int64_t value) {
    setenv("PRUN_SUBSTITUTE_CUDNN_VERSION", version, 1);
    const std::vector<Made> both = attend(s, {s.length, value, {integer("causal", 1)}});
    unsetenv("PRUN_SUBSTITUTE_CUDNN_VERSION");
    return both[0].by_cudnn && both[1].by_cudnn;
  };
  const Sizes plain{2, 136, 2, 2, 64}, latent{1, 136, 2, 2, 192};
  EXPECT_FALSE(by_cudnn("91000", plain, 64));
  EXPECT_FALSE(by_cudnn("91001", plain, 64));
  EXPECT_TRUE(by_cudnn("91002", plain, 64));
  EXPECT_FALSE(by_cudnn("91201", latent, 128));
  EXPECT_TRUE(by_cudnn("91300", latent, 128));
}

}  // namespace
}  // namespace prun
