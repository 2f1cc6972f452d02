// Compares every kernel of the cpu device with the reference device: odd sizes, f32 and bf16.
#include <gtest/gtest.h>

#include <set>

#include "ir/op_def.h"
#include "kernels/devices.h"
#include "tests/agreement/agreement.h"

namespace prun {
namespace {

void check_all(const std::vector<Case>& cases) {
  const std::unique_ptr<Device> cpu = open_device("cpu");
  for (const Case& c : cases) {
    for (int threads : {1, 3}) expect_agreement(c, *cpu, Dtype::f32, {threads});
    if (c.bf16) expect_agreement(c, *cpu, Dtype::bf16);
  }
}

TEST(CpuAgreement, Matrix) { check_all(matrix_cases()); }
TEST(CpuAgreement, Attention) { check_all(attention_cases()); }
TEST(CpuAgreement, Rows) { check_all(row_cases()); }
TEST(CpuAgreement, Pointwise) { check_all(pointwise_cases()); }
TEST(CpuAgreement, Arithmetic) { check_all(arithmetic_cases()); }
TEST(CpuAgreement, Windows) { check_all(window_cases()); }
TEST(CpuAgreement, Pieces) { check_all(piece_cases()); }
TEST(CpuAgreement, Views) { check_all(view_cases()); }
TEST(CpuAgreement, Training) { check_all(training_cases()); }
TEST(CpuAgreement, Sources) { check_all(source_cases()); }
TEST(CpuAgreement, Attend) { check_all(attend_cases()); }
TEST(CpuAgreement, AttentionBlocks) { check_all(attention_block_cases()); }
TEST(CpuAgreement, Decoding) { check_all(decode_cases()); }
TEST(CpuAgreement, Moe) { check_all(moe_cases()); }

// The cases also hold in f64, for devices that compute in it.
TEST(CpuAgreement, TheReferenceIsInF64) {
  const std::unique_ptr<Device> reference = open_device("reference");
  for (const Case& c : pointwise_cases()) expect_agreement(c, *reference, Dtype::f64);
  for (const Case& c : arithmetic_cases()) expect_agreement(c, *reference, Dtype::f64);
}

TEST(CpuAgreement, EveryComputeOpHasACase) {
  std::set<std::string_view> covered;
  for (const Case& c : all_cases()) covered.insert(c.op.kind);
  for (const OpDef* op : all_ops())
    EXPECT_EQ(op->op_class == OpClass::compute, covered.count(op->name) != 0) << op->name;
}

}  // namespace
}  // namespace prun
