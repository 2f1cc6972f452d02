// The verifier rejects programs of Adafactor whose means are not complete, whose lists name other parameters, sizes or
// places than the state has, or whose ops do not belong together.
#include <gtest/gtest.h>

#include <functional>

#include "ir/ops.h"
#include "tests/parity/parity_job.h"
#include "verify/verify.h"

namespace prun::test {
namespace {

Job adafactor_job(int ranks, Settings settings) {
  const Settings small = {{"width", "12"}, {"heads", "4"},   {"batch", "4"},
                          {"layers", "1"}, {"model", "gpt"}, {"optimizer", "adafactor"},
                          {"lr", "0.02"},  {"clip", "1"}};
  settings.insert(small.begin(), small.end());
  return parity_job(ranks, settings, "reference", "tests/parity/product.lua");
}

// Returns op number `number` of the kind in the step of the first class, which must exist.
Op& op_of(Job& job, const OpDef& kind, int number = 0) {
  for (Stream& stream : job.classes[0].step().streams)
    for (Op& op : stream.ops)
      if (op.is(kind) && number-- == 0) return op;
  ADD_FAILURE() << kind.name;
  static Op none;
  return none;
}

// Changes an entry of the list in all three ops of the first unit.
void set(Job& job, const char* name, size_t at, int64_t value) {
  for (const OpDef* kind : {&ops::factor_means, &ops::factor_norms, &ops::adafactor}) {
    Op& op = op_of(job, *kind);
    std::vector<int64_t> list = op.attrs.integers(name);
    ASSERT_LT(at, list.size());
    list[at] = value;
    op.attrs.set(name, list);
  }
}

// Replaces the reductions of vectors with this name by copies.
void leave_out_sums(Job& job, const char* name) {
  Program& program = job.classes[0];
  for (Op& op : program.step().streams[0].ops)
    if (op.is(ops::all_reduce) && program.tensors[op.reads[0]].name.starts_with(name)) {
      op.def = &ops::copy;
      op.axis = "";
    }
}

// Requires that a valid program is rejected after the change, with this text in a finding.
void expect_rejected(int ranks, const Settings& settings, const std::string& text,
                     const std::function<void(Job&)>& change) {
  Job job = adafactor_job(ranks, settings);
  ASSERT_TRUE(verify_job(job, 0).empty());
  change(job);
  std::string all;
  for (const Finding& finding : verify_job(job, 0)) all += finding.rule + ": " + finding.message + "\n";
  EXPECT_NE(all.find(text), std::string::npos) << all;
}

const Settings kShards = {{"dp", "2"}, {"data_parallel", "zero3"}};

TEST(Factored, MeansOfOneShardAreRejected) {
  expect_rejected(2, kShards, "averages sums of one rank's part over dp: a reduction over dp is missing",
                  [](Job& job) { leave_out_sums(job, "means"); });
}

TEST(Factored, NormsOfAPartAreRejected) {
  expect_rejected(2, {{"tp", "2"}}, "updates parameters by sums of one rank's part over tp",
                  [](Job& job) { leave_out_sums(job, "norms"); });
}

TEST(Factored, ListsThatDifferBetweenTheOpsAreRejected) {
  expect_rejected(1, {}, "follows a factor_means that lists other whole_rows", [](Job& job) {
    Op& op = op_of(job, ops::factor_means);
    std::vector<int64_t> list = op.attrs.integers("whole_rows");
    list[0] += 1;
    op.attrs.set("whole_rows", list);
  });
  expect_rejected(1, {}, "follows a factor_norms that has another beta2_decay",
                  [](Job& job) { op_of(job, ops::factor_norms).attrs.set("beta2_decay", -0.5); });
}

TEST(Factored, OtherSizesThanTheParametersAreRejected) {
  expect_rejected(1, {}, "divides by other sizes than the parameter's", [](Job& job) { set(job, "whole_rows", 0, 7); });
  expect_rejected(1, {}, "divides by other sizes than the parameter's",
                  [](Job& job) { set(job, "whole_count", 0, 7); });
  expect_rejected(1, {}, "of its", [](Job& job) { set(job, "rows", 0, 1); });
}

TEST(Factored, AMatrixAsAVectorIsRejected) {
  expect_rejected(1, {}, "takes a matrix for a vector", [](Job& job) { set(job, "row_in", 0, -1); });
}

TEST(Factored, OtherAveragesAreRejected) {
  expect_rejected(1, {}, "takes other averages than those that belong to it", [](Job& job) {
    const int64_t other = op_of(job, ops::adafactor).attrs.integers("column_at")[1];
    const int64_t own = op_of(job, ops::adafactor).attrs.integers("column_at")[0];
    set(job, "column_at", 0, other), set(job, "column_at", 1, own);
  });
}

TEST(Factored, NormsInOnePlaceAreRejected) {
  expect_rejected(1, {}, "has two means or norms in one place",
                  [](Job& job) { set(job, "norm_at", 0, op_of(job, ops::adafactor).attrs.integers("norm_at")[1]); });
}

TEST(Factored, AParameterThatIsNotListedIsRejected) {
  expect_rejected(1, {}, "does not update '", [](Job& job) {
    for (const OpDef* kind : {&ops::factor_means, &ops::factor_norms, &ops::adafactor}) {
      Op& op = op_of(job, *kind);
      std::vector<int64_t> list = op.attrs.integers("starts");
      list.pop_back();
      op.attrs.set("starts", list);
    }
  });
}

TEST(Factored, AnotherShardIsRejected) {
  expect_rejected(2, kShards, "updates a shard of 16 elements over 'dp'", [](Job& job) {
    for (const OpDef* kind : {&ops::factor_means, &ops::factor_norms, &ops::adafactor})
      op_of(job, *kind).attrs.set("shard", int64_t{16});
  });
}

TEST(Factored, OperandsOfAnotherUnitAreRejected) {
  expect_rejected(1, {}, "its lists of", [](Job& job) { op_of(job, ops::adafactor).reads.pop_back(); });
  expect_rejected(1, {}, "beyond a vector", [](Job& job) { set(job, "column_at", 0, 1 << 20); });
  expect_rejected(1, {{"layers", "2"}}, "needs one factor_means of its parameters", [](Job& job) {
    op_of(job, ops::factor_means, 1).reads[1] = op_of(job, ops::factor_means, 2).reads[1];
  });
}

TEST(Factored, StateOfAnotherShapeIsRejected) {
  expect_rejected(1, {}, "takes other averages than those that belong to it", [](Job& job) {
    for (StateTensor& state : job.classes[0].state)
      if (state.name.starts_with("optimizer.adafactor.col_var.")) state.shape = {2, state.shape[0] / 2};
  });
}

}  // namespace
}  // namespace prun::test
