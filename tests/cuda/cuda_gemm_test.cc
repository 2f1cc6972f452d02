// Tests the GEMMs of the CUDA device over the substitute for cuBLASLt: sizes at the edges, and epilogues or GEMMs for
// which the library has no algorithm.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <list>
#include <memory>
#include <random>
#include <string>

#include "device/plugin_device.h"
#include "device/queue_device.h"
#include "kernels/devices.h"
#include "tests/unit/one_op.h"

namespace prun {
namespace {

using Values = std::vector<double>;

struct Case {
  const char* kind;
  std::vector<Shape> reads, writes;
  bool gradients = false;  // the writes are f32
  const char* attr = nullptr;
  int64_t attr_value = 1;
  const char* act = "";
  size_t sums = SIZE_MAX;  // reads from this one on are f32
  bool experts = false;    // read 2 has the number of rows of each expert, here all

  Dtype read(size_t i, Dtype dtype) const {
    if (experts && i == 2) return Dtype::i32;
    return i < sums ? dtype : Dtype::f32;
  }
  Dtype result(Dtype dtype) const { return gradients ? Dtype::f32 : dtype; }
};

// The GEMMs that the substitute has algorithms for.
enum Offers { kNothing = 0, kProducts = 1, kAll = 2 };

// A tensor in memory that both sides reach.
struct Operand {
  Operand(QueueDevice& device, Dtype of, const Shape& dims)
      : dtype(of),
        shape(dims),
        memory(device, std::max<int64_t>(element_count(dims), 1) * dtype_bytes(of), PRUN_PLACE_PINNED) {}
  int64_t count() const { return element_count(shape); }
  void set(const Values& values) {
    for (size_t i = 0; i < values.size(); ++i) {
      const float x = static_cast<float>(values[i]);
      if (dtype == Dtype::i32)
        reinterpret_cast<int32_t*>(memory.get())[i] = static_cast<int32_t>(x);
      else if (dtype == Dtype::f32)
        reinterpret_cast<float*>(memory.get())[i] = x;
      else
        reinterpret_cast<bf16*>(memory.get())[i] = to_bf16(x);
    }
  }
  Values get() const {
    Values values;
    for (int64_t i = 0; i < count(); ++i)
      values.push_back(dtype == Dtype::f32 ? reinterpret_cast<const float*>(memory.get())[i]
                                           : to_float(reinterpret_cast<const bf16*>(memory.get())[i]));
    return values;
  }
  prun_tensor tensor() const {
    return {memory.get(), shape.data(), static_cast<int>(shape.size()), static_cast<int>(dtype)};
  }
  Dtype dtype;
  Shape shape;
  DeviceMemory memory;
};

// The log of the device since it was opened.
std::string logged;
const prun_device* listened_to;
prun_status open_and_listen(const prun_device_params* params, prun_dev** device, prun_result* result) {
  prun_device_params ours = *params;
  ours.log = [](int, const char* text) { logged += std::string(text) + "\n"; };
  logged.clear();
  return listened_to->open(&ours, device, result);
}

class Cuda {
 public:
  explicit Cuda(Offers offers = kAll, const std::string& options = "", int capability = 90) {
    setenv("PRUN_SUBSTITUTE_ALGORITHMS", offers == kNothing ? "0" : "1", 1);
    setenv("PRUN_SUBSTITUTE_EPILOGUES", offers == kAll ? "1" : "0", 1);
    setenv("PRUN_SUBSTITUTE_CAPABILITY", std::to_string(capability).c_str(), 1);
    device_ = make_table_device(load_device_plugin({"cuda", PRUN_CUDA_DEVICE}));
    listened_to = device_->queue();
    table_ = *listened_to;
    table_.open = open_and_listen;
    queue_ = std::make_unique<QueueDevice>(table_, 0, options);
  }

  std::vector<Values> run(const Case& c, Dtype dtype, const std::vector<Values>& reads) {
    std::list<Operand> in, out;
    std::vector<prun_tensor> in_tensors, out_tensors;
    for (size_t i = 0; i < reads.size(); ++i) {
      in.emplace_back(*queue_, c.read(i, dtype), c.reads[i]).set(reads[i]);
      in_tensors.push_back(in.back().tensor());
    }
    for (const Shape& shape : c.writes) {
      out.emplace_back(*queue_, c.result(dtype), shape);
      out.back().set(Values(static_cast<size_t>(element_count(shape)), std::nan("")));
      out_tensors.push_back(out.back().tensor());
    }
    std::vector<prun_attr> attrs = {{"act", PRUN_ATTR_TEXT, 0, 0, c.act, nullptr, nullptr, 0}};
    if (c.attr != nullptr) attrs.push_back({c.attr, PRUN_ATTR_INTEGER, c.attr_value, 0, nullptr, nullptr, nullptr, 0});
    prun_op op{};
    op.size = sizeof op;
    op.kind = c.kind;
    op.reads = in_tensors.data(), op.n_reads = in_tensors.size();
    op.writes = out_tensors.data(), op.n_writes = out_tensors.size();
    op.attrs = attrs.data(), op.n_attrs = attrs.size();
    queue_->call("workspace",
                 [&](prun_result* result) { return queue_->table().workspace(&op, &op.workspace_bytes, result); });
    EXPECT_LE(op.workspace_bytes, (size_t{32} << 20) + 256);  // with the alignment that cuBLASLt requires
    DeviceMemory workspace(*queue_, static_cast<int64_t>(op.workspace_bytes) + 64, PRUN_PLACE_DEVICE);
    op.workspace = workspace.get() + 64;  // the alignment of programs
    DeviceStream stream(*queue_);
    DeviceKernel kernel(*queue_, op);
    kernel.run(stream);
    stream.wait();
    std::vector<Values> results;
    for (const Operand& one : out) results.push_back(one.get());
    return results;
  }

 private:
  std::unique_ptr<Device> device_;
  prun_device table_{};
  std::unique_ptr<QueueDevice> queue_;
};

std::vector<Values> random_reads(const Case& c, uint64_t seed = 3) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> real(-2, 2);
  std::vector<Values> reads;
  for (const Shape& shape : c.reads) {
    Values& values = reads.emplace_back(static_cast<size_t>(element_count(shape)));
    for (double& value : values) value = real(random);
  }
  if (c.experts) reads[2].assign(reads[2].size(), static_cast<double>(c.reads[0][1]));
  return reads;
}

std::vector<Values> wanted(const Case& c, Dtype dtype, const std::vector<Values>& reads) {
  static const std::unique_ptr<Device> reference = open_device("reference");
  test::OneOp op(c.kind);
  if (*c.act != 0) op.attr("act", std::string(c.act));
  if (c.attr != nullptr) op.attr(c.attr, c.attr_value);
  for (size_t i = 0; i < reads.size(); ++i) op.read(c.read(i, dtype), c.reads[i], reads[i]);
  for (const Shape& shape : c.writes) op.write(c.result(dtype), shape);
  return op.run(*reference).results();
}

void expect_near(const std::vector<Values>& found, const std::vector<Values>& right, double tolerance) {
  ASSERT_EQ(found.size(), right.size());
  for (size_t w = 0; w < right.size(); ++w) {
    double square = 0;
    for (const double value : right[w]) square += value * value;
    const double rms = right[w].empty() ? 0 : std::sqrt(square / static_cast<double>(right[w].size()));
    ASSERT_EQ(found[w].size(), right[w].size());
    for (size_t i = 0; i < right[w].size(); ++i)
      ASSERT_NEAR(found[w][i], right[w][i], tolerance * (std::abs(right[w][i]) + rms)) << "write " << w << " at " << i;
  }
}

// `reads`: without the number of rows of each expert.
Case experts(const std::string_view kind, std::vector<Shape> reads, const Shape& write) {
  reads.insert(reads.begin() + 2, {reads[0][0], 1});
  const size_t sums = kind.ends_with("_add") ? 3 : SIZE_MAX;
  return {kind.data(), std::move(reads), {write}, kind.find("_dw") != kind.npos, nullptr, 0, "", sums, true};
}

std::vector<Case> cases_of(int64_t m, int64_t k, int64_t n) {
  const Shape x = {m, k}, w = {k, n}, wt = {n, k}, b = {n}, y = {m, n};
  return {{"linear", {x, w}, {y}},
          {"linear", {x, w, b}, {y}, false, nullptr, 0, "relu"},
          {"linear", {x, wt, b}, {y}, false, "transpose", 1, "gelu"},
          {"linear_gelu", {x, w, b}, {y, y}},
          {"linear_gelu", {x, wt}, {y, y}, false, "transpose"},
          {"linear_dx", {y, w}, {x}},
          {"linear_dx", {y, wt}, {x}, false, "transpose"},
          {"linear_dx_gelu", {y, w, x}, {x}},
          {"linear_dx_gelu", {y, wt, x}, {x}, false, "transpose"},
          {"linear_dw", {x, y}, {w, b}, true},
          {"linear_dw", {x, y}, {wt, b}, true, "transpose"},
          {"linear_dw_add", {x, y, w, b}, {w, b}, true, nullptr, 0, "", 2},
          {"linear_dw_add", {x, y, wt, b}, {wt, b}, true, "transpose", 1, "", 2},
          {"linear_dw_add", {x, y, w}, {w}, true, nullptr, 0, "", 2},
          experts("expert_linear", {{3, m, k}, {3, k, n}}, {3, m, n}),
          experts("expert_linear_dx", {{3, m, n}, {3, k, n}}, {3, m, k}),
          experts("expert_linear_dw", {{3, m, k}, {3, m, n}}, {3, k, n}),
          experts("expert_linear_dw_add", {{3, m, k}, {3, m, n}, {3, k, n}}, {3, k, n})};
}

void check_all(Cuda cuda) {
  for (const Shape& s : {Shape{1, 1, 1}, {1, 7, 5}, {5, 1, 3}, {9, 6, 1}, {33, 17, 24}, {16, 48, 40}}) {
    for (const Case& c : cases_of(s[0], s[1], s[2]))
      for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
        SCOPED_TRACE(std::string(c.kind) + " of " + shape_text(s) + " in " + std::string(dtype_name(dtype)));
        const std::vector<Values> reads = random_reads(c);
        const double tolerance = c.result(dtype) == Dtype::f32 ? 4e-6 : 1.0 / 64;
        expect_near(cuda.run(c, dtype, reads), wanted(c, dtype, reads), tolerance);
        if (testing::Test::HasFatalFailure()) return;
      }
  }
}

TEST(CudaGemm, WithAllThatTheLibraryFuses) { check_all(Cuda(kAll)); }
TEST(CudaGemm, WhereGeluIsAKernelOfItsOwn) { check_all(Cuda(kAll, "", 80)); }
TEST(CudaGemm, WithoutEpilogues) { check_all(Cuda(kProducts)); }
TEST(CudaGemm, WithoutTheLibrary) { check_all(Cuda(kNothing)); }

TEST(CudaGemm, EmptyTensors) {
  Cuda cuda;
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    for (const Case& c : cases_of(0, 4, 3)) {
      SCOPED_TRACE(c.kind);
      const std::vector<Values> reads = random_reads(c), results = cuda.run(c, dtype, reads);
      for (size_t w = 0; w < results.size(); ++w)  // gradients of no rows
        for (size_t i = 0; i < results[w].size(); ++i)
          EXPECT_EQ(results[w][i], c.sums < reads.size() ? static_cast<float>(reads[c.sums + w][i]) : 0);
    }
    const Case none = experts("expert_linear", {{0, 4, 5}, {0, 5, 6}}, {0, 4, 6});
    EXPECT_EQ(cuda.run(none, dtype, random_reads(none)), std::vector<Values>{{}});
  }
}

// The accumulators of a tile are complete before C is added, so one rounding follows another as in two ops.
TEST(CudaGemm, SumsOfMicrobatchesHaveTheBitsOfAnAdd) {
  for (const Offers offers : {kProducts, kNothing})
    for (const Case& adds : cases_of(33, 200, 24)) {
      if (!std::string(adds.kind).ends_with("_add")) continue;
      Cuda cuda(offers);
      Case alone = adds;
      const std::string kind(adds.kind, std::string(adds.kind).size() - 4);
      alone.kind = kind.c_str();
      alone.reads.resize(adds.sums);
      for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
        SCOPED_TRACE(adds.kind);
        const std::vector<Values> reads = random_reads(adds), sums = cuda.run(adds, dtype, reads);
        const std::vector<Values> fresh =
            cuda.run(alone, dtype, {reads.begin(), reads.begin() + static_cast<std::ptrdiff_t>(adds.sums)});
        for (size_t w = 0; w < sums.size(); ++w)
          for (size_t i = 0; i < sums[w].size(); ++i)
            ASSERT_EQ(sums[w][i], static_cast<float>(reads[adds.sums + w][i]) + static_cast<float>(fresh[w][i]));
      }
    }
}

TEST(CudaGemm, AutotuningKeepsTheBits) {
  Cuda plain, tuned(kAll, "autotune=1");
  for (const Case& c : cases_of(33, 200, 24))
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
      for (const uint64_t seed : {1, 2}) {  // the second time with the choice of the first
        SCOPED_TRACE(c.kind);
        EXPECT_EQ(tuned.run(c, dtype, random_reads(c, seed)), plain.run(c, dtype, random_reads(c, seed)));
      }
}

// The timing favours the other gelu; the comparison of results excludes it.
TEST(CudaGemm, AutotuningKeepsTheBitsOfWhatFollowsTheSums) {
  const auto results = [](const std::string& options) {
    Cuda cuda(kAll, options);
    std::vector<std::vector<Values>> all;
    for (const Case& c : cases_of(33, 200, 24))
      if (std::string(c.kind).find("gelu") != std::string::npos)
        all.push_back(cuda.run(c, Dtype::bf16, random_reads(c)));
    return all;
  };
  setenv("PRUN_SUBSTITUTE_ROUGH", "1", 1);
  const auto tuned = results("autotune=1"), plain = results("");
  unsetenv("PRUN_SUBSTITUTE_ROUGH");
  EXPECT_EQ(tuned.size(), 4u);
  EXPECT_EQ(tuned, plain);
}

// A bias gradient is bitwise identical to the program's own column sums, even if the library's epilogue is faster,
// because ranks that hold the same gradient measure independently.
TEST(CudaGemm, BiasGradientsAreColumnSumsOfTheProgram) {
  setenv("PRUN_SUBSTITUTE_FUSED_FAST", "1", 1);
  const Shape x = {200, 24}, w = {24, 40}, y = {200, 40}, b = {40};
  for (const char* options : {"", "autotune=1"})
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      Cuda cuda(kAll, options);
      const Case with_dw{"linear_dw", {x, y}, {w, b}, true}, alone{"bias_grad", {y}, {b}, true};
      const std::vector<Values> reads = random_reads(with_dw);
      EXPECT_EQ(cuda.run(with_dw, dtype, reads)[1], cuda.run(alone, dtype, {reads[1]})[0]) << options;
    }
  unsetenv("PRUN_SUBSTITUTE_FUSED_FAST");
}

// With few rows both ways add in the same order. Only then, and only after a measurement, the time decides.
TEST(CudaGemm, BiasGradientsAreFusedWhereThatIsQuickerAndGivesTheSameBits) {
  const auto kernels = [](int64_t rows, const char* options) {
    const Case c{"linear_dw", {{rows, 24}, {rows, 40}}, {{24, 40}, {40}}, true};
    Cuda cuda(kAll, options);
    cuda.run(c, Dtype::bf16, random_reads(c));
    const size_t at = logged.find("bias gradient: ");
    return at == std::string::npos ? "" : logged.substr(at + 15, 3);
  };
  setenv("PRUN_SUBSTITUTE_FUSED_FAST", "1", 1);
  EXPECT_EQ(kernels(6, "autotune=1"), "one");
  EXPECT_EQ(kernels(200, "autotune=1"), "two");  // another result
  EXPECT_EQ(kernels(6, ""), "");
  unsetenv("PRUN_SUBSTITUTE_FUSED_FAST");
  setenv("PRUN_SUBSTITUTE_FUSED_SLOW", "1", 1);
  EXPECT_EQ(kernels(6, "autotune=1"), "two");
  unsetenv("PRUN_SUBSTITUTE_FUSED_SLOW");
}

// The library may refuse the algorithms that its heuristic returns first.
TEST(CudaGemm, WhereTheLibraryRefusesWhatItsHeuristicNames) {
  for (const char* refused : {"1", "2"}) {
    setenv("PRUN_SUBSTITUTE_REFUSED", refused, 1);
    for (const Case& c : cases_of(5, 40, 24))
      for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
        SCOPED_TRACE(std::string(c.kind) + " in " + std::string(dtype_name(dtype)));
        const std::vector<Values> reads = random_reads(c);
        const double tolerance = c.result(dtype) == Dtype::f32 ? 4e-6 : 1.0 / 64;
        expect_near(Cuda().run(c, dtype, reads), wanted(c, dtype, reads), tolerance);
      }
    unsetenv("PRUN_SUBSTITUTE_REFUSED");
  }
}

// An algorithm can pass the library's check and be refused at launch. Then the next one takes over, and after the last
// one a kernel of prun.
TEST(CudaGemm, WhereTheLibraryRefusesALaunchThatPassedItsCheck) {
  for (const char* refused : {"1", "2", "16"})
    for (const char* options : {"", "autotune=1"}) {
      setenv("PRUN_SUBSTITUTE_REFUSED_LATE", refused, 1);
      for (const Case& c : cases_of(5, 40, 24))
        for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
          SCOPED_TRACE(std::string(c.kind) + " in " + std::string(dtype_name(dtype)) + ", refused " + refused);
          const std::vector<Values> reads = random_reads(c);
          const double tolerance = c.result(dtype) == Dtype::f32 ? 4e-6 : 1.0 / 64;
          expect_near(Cuda(kAll, options).run(c, dtype, reads), wanted(c, dtype, reads), tolerance);
        }
      unsetenv("PRUN_SUBSTITUTE_REFUSED_LATE");
    }
}

TEST(CudaGemm, NumbersThatAreNoneStayThat) {
  for (const Offers offers : {kAll, kProducts, kNothing}) {
    Cuda cuda(offers);
    for (const char* act : {"", "relu", "gelu"}) {
      const Case c{"linear", {{2, 8}, {8, 8}, {8}}, {{2, 8}}, false, nullptr, 0, act};
      std::vector<Values> reads = random_reads(c);
      reads[0][3] = std::numeric_limits<double>::quiet_NaN();
      for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
        const Values y = cuda.run(c, dtype, reads)[0];
        for (size_t i = 0; i < 8; ++i) EXPECT_TRUE(std::isnan(y[i])) << act;
        for (size_t i = 8; i < 16; ++i) EXPECT_FALSE(std::isnan(y[i])) << act;
      }
    }
  }
}

}  // namespace
}  // namespace prun
