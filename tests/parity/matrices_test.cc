// The verifier rejects programs of Muon in which an owner omits a matrix, computes it from another direction or
// from a part, or in which an update takes another matrix.
#include <gtest/gtest.h>

#include <functional>

#include "ir/ops.h"
#include "tests/parity/parity_job.h"
#include "verify/verify.h"

namespace prun::test {
namespace {

Job muon_job(int ranks, Settings settings) {
  const Settings small = {{"width", "12"},  {"heads", "4"},        {"batch", "4"}, {"layers", "2"},
                          {"model", "gpt"}, {"optimizer", "muon"}, {"lr", "0.02"}};
  settings.insert(small.begin(), small.end());
  return parity_job(ranks, settings, "reference", "tests/parity/product.lua");
}

// Returns the first op of the kind in the step of the first class, which must exist.
Op& first(Job& job, const OpDef& kind) {
  for (Stream& stream : job.classes[0].step().streams)
    for (Op& op : stream.ops)
      if (op.is(kind)) return op;
  ADD_FAILURE() << kind.name;
  static Op none;
  return none;
}

void set(Op& op, const char* name, size_t at, int64_t value) {
  std::vector<int64_t> list = op.attrs.integers(name);
  ASSERT_LT(at, list.size());
  list[at] = value;
  op.attrs.set(name, list);
}

// Returns the first finding of a changed program as text; "" = none.
std::string finding(int ranks, const Settings& settings, const std::function<void(Job&)>& change) {
  Job job = muon_job(ranks, settings);
  EXPECT_TRUE(verify_job(job, 0).empty());
  change(job);
  const std::vector<Finding> findings = verify_job(job, 0);
  return findings.empty() ? "" : findings[0].rule + ": " + findings[0].message;
}

const Settings kShards = {{"dp", "2"}, {"data_parallel", "zero3"}};

TEST(Matrices, AnOwnerThatNoRankIsIsRejected) {
  const std::string found = finding(2, kShards, [](Job& job) { set(first(job, ops::orthogonalize), "owners", 0, 2); });
  EXPECT_NE(found.find("leaves a matrix to owner 2 of 2"), std::string::npos) << found;
}

TEST(Matrices, AnotherOwnerThanTheUpdateReadsIsRejected) {
  const std::string found = finding(2, kShards, [](Job& job) {
    Op& op = first(job, ops::orthogonalize);
    set(op, "owners", 0, 1 - op.attrs.integers("owners")[0]);
  });
  EXPECT_NE(found.find("matrices: "), std::string::npos) << found;
}

TEST(Matrices, ADirectionOfAnotherMatrixIsRejected) {
  const std::string found = finding(2, kShards, [](Job& job) {
    Op& op = first(job, ops::orthogonalize);
    set(op, "starts", 0, op.attrs.integers("starts")[0] + 1);
  });
  EXPECT_NE(found.find("are not computed from their directions"), std::string::npos) << found;
}

TEST(Matrices, AShardInPlaceOfAWholeMatrixIsRejected) {
  const std::string found = finding(2, kShards, [](Job& job) {
    Op& momentum = first(job, ops::muon_momentum);
    Op& op = first(job, ops::orthogonalize);
    op.reads[0] = momentum.writes[0];
  });
  EXPECT_NE(found, "");
}

TEST(Matrices, AnUpdateOfOneMatrixByAnotherIsRejected) {
  const std::string found = finding(1, {}, [](Job& job) {
    Op& op = first(job, ops::muon);
    set(op, "matrix_places", 0, op.attrs.integers("matrix_places")[1]);
  });
  EXPECT_NE(found.find("are not computed from their directions"), std::string::npos) << found;
}

TEST(Matrices, AMatrixThatNoUpdateReachesIsRejected) {
  const std::string found = finding(1, {}, [](Job& job) {
    Op& op = first(job, ops::muon);
    for (const char* name : {"matrix_starts", "matrix_counts", "matrix_places"}) {
      std::vector<int64_t> list = op.attrs.integers(name);
      list.pop_back();
      op.attrs.set(name, list);
    }
    std::vector<double> scales = op.attrs.numbers("matrix_scales");
    scales.pop_back();
    op.attrs.set("matrix_scales", scales);
  });
  EXPECT_NE(found.find("does not update all of 'block"), std::string::npos) << found;
}

TEST(Matrices, RowsInPlaceOfColumnsAreRejected) {
  const std::string found = finding(2, {{"tp", "2"}}, [](Job& job) {
    Op& op = first(job, ops::orthogonalize);
    const std::vector<int64_t> joined = op.attrs.integers("joined");
    for (size_t i = 0; i < joined.size(); ++i)
      if (joined[i] > 0) set(op, "joined", i, 3 - joined[i]);
  });
  EXPECT_NE(found.find("placement: "), std::string::npos) << found;
}

TEST(Matrices, ChunksThatAreNotGatheredAreRejected) {
  const std::string found = finding(
      2, {{"dp", "2"}}, [](Job& job) { first(job, ops::muon).reads[0] = first(job, ops::orthogonalize).writes[0]; });
  EXPECT_NE(found, "");
}

}  // namespace
}  // namespace prun::test
