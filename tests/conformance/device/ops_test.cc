// Items ops, bits and errors. Each kind of op is a separate case, so that the line names the wrong ones.
#include <fmt/format.h>

#include <cstring>
#include <set>

#include "base/text.h"
#include "kernels/devices.h"
#include "tests/agreement/agreement.h"
#include "tests/conformance/device/suite.h"
#include "tests/conformance/items.h"

namespace prun::testing {
namespace {

constexpr Dtype kTypes[] = {Dtype::f32, Dtype::bf16, Dtype::f64};

std::unique_ptr<Device> with(bool captured = false) {
  return make_table_device(device_table(), {device_suite().index, device_suite().options, captured});
}

bool has_type(const Case& c, Dtype dtype) { return dtype != Dtype::bf16 || c.bf16; }

// Returns the kinds that the table has cases for, each once.
std::vector<std::string> kinds() {
  std::set<std::string> all;
  for (const Case& c : all_cases()) all.insert(c.op.kind);
  return {all.begin(), all.end()};
}

class Ops : public ::testing::TestWithParam<std::string> {
 protected:
  // Calls body(case, type) for each case of this kind that the device supports; returns false if there was none.
  bool each(const Device& device, const std::function<void(const Case&, Dtype)>& body) {
    bool any = false;
    for (const Case& c : all_cases())
      for (const Dtype dtype : kTypes) {
        if (c.op.kind != GetParam() || !has_type(c, dtype) || !supported(c, device, dtype)) continue;
        any = true;
        body(c, dtype);
        if (HasFatalFailure()) return true;
      }
    return any;
  }
};
class Bits : public Ops {};

TEST_P(Ops, Agrees) {
  const std::unique_ptr<Device> device = with(), cpu = open_device("cpu");
  const bool any = each(*device, [&](const Case& c, Dtype dtype) {
    AgreementOptions options{.tensor_cores = on_tensor_cores(c.op.kind), .rounds_heads = may_round_heads(c.op.kind)};
    expect_agreement(c, *device, dtype, options);
    options.skew = 1;  // kernels with 16-byte loads must check the alignment
    if (!HasFatalFailure()) expect_agreement(c, *device, dtype, options);
    if (HasFatalFailure() || dtype == Dtype::f64 || !has_bits_of_the_cpu(c.op.kind)) return;
    expect_agreement(c, *device, dtype, {.exactly_as = cpu.get()});
  });
  if (!any) GTEST_SKIP() << GetParam();
}

TEST_P(Bits, AreTheSameEveryTime) {
  const std::unique_ptr<Device> device = with();
  each(*device, [&](const Case& c, Dtype dtype) { expect_agreement(c, *device, dtype, {.exactly_as = device.get()}); });
}

TEST_P(Bits, AreTheSameCaptured) {
  const std::unique_ptr<Device> device = with(), graph = with(true);
  if (device_table().capture_begin == nullptr) return;
  each(*device, [&](const Case& c, Dtype dtype) { expect_agreement(c, *graph, dtype, {.exactly_as = device.get()}); });
}

std::string named(const ::testing::TestParamInfo<std::string>& kind) { return kind.param; }
INSTANTIATE_TEST_SUITE_P(Each, Ops, ::testing::ValuesIn(kinds()), named);
INSTANTIATE_TEST_SUITE_P(Each, Bits, ::testing::ValuesIn(kinds()), named);

class Errors : public OpenDevice {};

const int64_t kDims[] = {64};

TEST_F(Errors, OpsThatThereAreNotAreNamed) {
  const prun_op op{.size = sizeof op, .kind = "sclae"};
  prun_status status = PRUN_OK;
  const std::string message = refused([&](prun_result* r) { return status = table_.supports(&op, r); });
  EXPECT_EQ(status, PRUN_ENOTSUP);
  EXPECT_NE(message.find("sclae"), std::string::npos) << message;
  refused([&](prun_result* r) {
    prun_kernel* kernel = nullptr;
    return table_.kernel_create(device_.get(), &op, &kernel, r);
  });
}

TEST_F(Errors, TypesThatAnOpHasNotAreRefused) {
  const DeviceMemory x = memory(64 * 8), y = memory(64 * 8);
  for (const auto& [in, out] : {std::pair{PRUN_U8, PRUN_F32}, {PRUN_F32, PRUN_I8}, {PRUN_F16, PRUN_U8}}) {
    const prun_tensor from{x.get(), kDims, 1, in}, to{y.get(), kDims, 1, out};
    prun_op op{.size = sizeof op, .kind = "gelu", .reads = &from, .n_reads = 1, .writes = &to, .n_writes = 1};
    op.threads = 1;
    refused([&](prun_result* r) { return table_.supports(&op, r); });
    refused([&](prun_result* r) {
      prun_kernel* kernel = nullptr;
      return table_.kernel_create(device_.get(), &op, &kernel, r);
    });
  }
}

// A program compiled for another machine: a kernel allocates its own memory, or returns an error.
TEST_F(Errors, AWorkspaceThatIsTooSmallIsMadeUpOrSaid) {
  const int64_t n = 70001, dims[] = {n};
  const DeviceMemory x = memory(n * 4), y = memory(8);
  const prun_tensor from{x.get(), dims, 1, PRUN_F32}, to{y.get(), nullptr, 0, PRUN_F64};
  prun_op op{.size = sizeof op, .kind = "norm2", .reads = &from, .n_reads = 1, .writes = &to, .n_writes = 1};
  op.threads = 1;
  op.share = [](const void*, const char*, int64_t* index, int64_t* of) { *index = 0, *of = 1; };
  prun_result result = empty_result();
  if (table_.supports(&op, &result) != PRUN_OK) GTEST_SKIP() << "it has no norm2 of f32";
  size_t bytes = 0, again = 1;
  ASSERT_EQ(table_.workspace(&op, &bytes, &result), PRUN_OK) << result.message;
  ASSERT_EQ(table_.workspace(&op, &again, &result), PRUN_OK) << result.message;
  EXPECT_EQ(bytes, again);
  std::vector<float> ones(static_cast<size_t>(n), 1);
  prun_kernel* made = nullptr;
  if (table_.kernel_create(device_.get(), &op, &made, &result) != PRUN_OK) {
    EXPECT_STRNE(result.message, "");
    return;
  }
  own_.copy(x.get(), ones.data(), n * 4);
  device_.call("norm2", [&](prun_result* r) { return table_.kernel_run(device_.get(), made, own_.get(), r); });
  double sum = 0;
  own_.copy(&sum, y.get(), 8);
  own_.wait();
  table_.kernel_free(device_.get(), made);
  EXPECT_EQ(sum, static_cast<double>(n));
}

TEST_F(Errors, LeaveTheDeviceUsable) {
  const prun_op op{.size = sizeof op, .kind = "sclae"};
  for (int i = 0; i < 100; ++i) {
    prun_result result = empty_result();
    prun_kernel* kernel = nullptr;
    void* ptr = nullptr;
    EXPECT_NE(table_.kernel_create(device_.get(), &op, &kernel, &result), PRUN_OK);
    EXPECT_NE(table_.alloc(device_.get(), size_t{1} << 60, PRUN_PLACE_DEVICE, &ptr, &result), PRUN_OK);
  }
  EXPECT_EQ(read(array(100, 6)), Numbers(100, 6));
}

}  // namespace
}  // namespace prun::testing
