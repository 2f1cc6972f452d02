// --prove without the static verifier before it: every valid plan of the parity product equals one rank, and mistakes
// are reported with tensor, line and likely cause.
//
// PRUN_PROVE=long: all cases of the product instead of those of CI.
#include "prove/prove.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>

#include "device/device.h"
#include "ir/ops.h"
#include "ir/plan_reader.h"
#include "prove/explain.h"
#include "script/script.h"
#include "tests/parity/product_cases.h"

namespace prun::test {
namespace {

using Spoil = std::function<void(Job&)>;

Proof proof_of(const std::string& path, int ranks, const Settings& settings, Spoil spoil = nullptr) {
  const auto record = [&](std::optional<PlanSizes> sizes) {
    ScriptOptions script;
    script.plan_path = PRUN_SOURCE_DIR "/" + path;
    script.lua_dir = PRUN_SOURCE_DIR "/lua";
    script.world = ranks;
    script.settings = settings;
    script.sizes = std::move(sizes);
    return read_plan(run_script(script).plan_cbor);
  };
  ProofOptions options;
  options.record = record;
  options.spoil = std::move(spoil);
  return prove(record(std::nullopt), options);
}

TEST(Prove, RightPlansEqualOneRank) {
  const bool all = std::getenv("PRUN_PROVE") != nullptr;
  int cases = 0;
  for (const ProductCase& one : product_cases()) {
    if (!all && !one.some) continue;
    const Proof proof = proof_of(one.plan, one.ranks, one.settings);
    EXPECT_TRUE(proof.verdict == Proof::Verdict::equal || proof.verdict == Proof::Verdict::undeclared)
        << one.strategy << " " << one.model << " " << one.mesh << ": " << proof.text;
    cases++;
  }
  EXPECT_GT(cases, 60);
}

TEST(Prove, DriftThatIsDeclaredIsCheckedAtTheAverages) {
  const Proof proof = proof_of("plans/custom/local_sgd.lua", 4, {});
  EXPECT_EQ(proof.verdict, Proof::Verdict::as_it_says) << proof.text;
  const auto added = [](Job& job) {
    for (Program& program : job.classes)
      for (Op& op : program.bodies[2].streams[0].ops)
        if (op.is(ops::all_reduce)) op.attrs.set("op", std::string("sum"));
  };
  const Proof spoilt = proof_of("plans/custom/local_sgd.lua", 4, {}, added);
  EXPECT_EQ(spoilt.verdict, Proof::Verdict::differs);
  EXPECT_NE(spoilt.text.find("added up over dp (2 ranks) where the average is due"), std::string::npos) << spoilt.text;
}

// Each fault applies a group to another part of the flat vectors.
TEST(Prove, GroupsOnTheWrongPartOfAVectorDiffer) {
  const auto spoilt = [](const std::function<void(Attrs&)>& change) {
    return [change](Job& job) {
      for (Program& program : job.classes)
        for (Stream& stream : program.step().streams)
          for (Op& op : stream.ops)
            if (op.attrs.has("piece_starts") && op.is(ops::adamw)) change(op.attrs);
    };
  };
  const std::map<std::string, Spoil> faults = {
      {"starts", spoilt([](Attrs& attrs) {
         std::vector<int64_t> starts = attrs.integers("piece_starts");
         for (size_t i = 1; i < starts.size(); i++) starts[i] += 32;
         attrs.set("piece_starts", starts);
       })},
      {"every rank's shard is the first", spoilt([](Attrs& attrs) { attrs.set("shard", int64_t{0}); })},
      {"settings of the neighbor", spoilt([](Attrs& attrs) {
         std::vector<double> factors = attrs.numbers("piece_lr_factors");
         std::rotate(factors.begin(), factors.begin() + 1, factors.end());
         attrs.set("piece_lr_factors", factors);
       })}};
  const Settings settings = {{"groups", "true"}, {"optimizer", "adamw"}, {"dp", "3"}, {"data_parallel", "zero3"}};
  EXPECT_EQ(proof_of("tests/parity/product.lua", 3, settings).verdict, Proof::Verdict::equal);
  for (const auto& [name, spoil] : faults) {
    const Proof proof = proof_of("tests/parity/product.lua", 3, settings, spoil);
    EXPECT_EQ(proof.verdict, Proof::Verdict::differs) << name << ": " << proof.text;
  }
}

TEST(Prove, FrozenWeightsThatChangeDiffer) {
  const Settings settings = {{"frozen", "block0.*|*.up.*"}, {"dp", "2"}, {"data_parallel", "zero3"}};
  EXPECT_EQ(proof_of("tests/parity/product.lua", 2, settings).verdict, Proof::Verdict::equal);
  const Proof proof = proof_of("tests/parity/product.lua", 2, settings, [](Job& job) {
    for (Program& program : job.classes)
      for (const TensorId id : program.tensors.ids()) {
        if (program.buffers[program.tensors[id].buffer].role != Role::frozen) continue;
        Op op;
        op.def = &ops::scale;
        op.reads = op.writes = {id};
        op.phase = Phase::step;
        op.attrs.set("factor", 0.5);
        program.step().streams[0].ops.push_back(op);
        break;
      }
  });
  EXPECT_EQ(proof.verdict, Proof::Verdict::differs) << proof.text;
}

TEST(Prove, AveragesOfSquaresAreCompared) {
  const Settings settings = {
      {"optimizer", "adafactor"}, {"lr", "0.02"}, {"dp", "2"}, {"tp", "2"}, {"data_parallel", "zero3"}};
  EXPECT_EQ(proof_of("tests/parity/product.lua", 4, settings).verdict, Proof::Verdict::equal);
  const Proof proof = proof_of("tests/parity/product.lua", 4, settings, [](Job& job) {
    for (Program& program : job.classes)
      for (Stream& stream : program.step().streams)
        for (Op& op : stream.ops)
          if (op.is(ops::factor_norms)) op.attrs.set("beta2_decay", -0.1);
  });
  EXPECT_EQ(proof.verdict, Proof::Verdict::differs);
  EXPECT_NE(proof.text.find("first:      adafactor.variance of '"), std::string::npos) << proof.text;
}

TEST(Prove, AdaptersEqualOneRankAndOtherScalesDiffer) {
  Settings settings = {{"lora", "*.qkv|*.proj|*.down"}, {"train", "head*"}, {"lr", "0.5"}};
  settings.insert({{"dp", "2"}, {"tp", "2"}, {"data_parallel", "zero3"}});
  const Proof right = proof_of("tests/parity/product.lua", 4, settings);
  EXPECT_EQ(right.verdict, Proof::Verdict::equal) << right.text;
  const Proof wrong = proof_of("tests/parity/product.lua", 4, settings, [](Job& job) {
    for (Program& program : job.classes)
      for (Stream& stream : program.step().streams)
        for (Op& op : stream.ops)
          if (op.is(ops::scale)) op.attrs.set("factor", op.attrs.number("factor") * 1.01);
  });
  EXPECT_EQ(wrong.verdict, Proof::Verdict::differs) << wrong.text;
}

struct Expected {
  const char* code;  // text of the reported line
  const char *first, *looks;
};

std::string code_at(const Site& site) {
  std::string path = site.file.str(), line;
  if (!path.starts_with("/")) path = PRUN_SOURCE_DIR "/" + path;
  std::ifstream file(path);
  for (int i = 0; i < site.line; i++) std::getline(file, line);
  return line;
}

void expect_told(const Proof& proof, const std::string& name, const Expected& expected) {
  EXPECT_EQ(proof.verdict, Proof::Verdict::differs) << name << ": " << proof.text;
  const std::string code = code_at(proof.site.value_or(Site{}));
  EXPECT_NE(code.find(expected.code), std::string::npos) << name << ": " << proof.text << "\n" << code;
  EXPECT_NE(proof.text.find(expected.first), std::string::npos) << name << ": " << proof.text;
  EXPECT_NE(proof.text.find(std::string("looks like: ") + expected.looks), std::string::npos)
      << name << ": " << proof.text;
}

// Plans with mistakes in their script.
TEST(Prove, WrongPlansAreTold) {
  struct Wrong {
    const char* name;
    int ranks;
    Expected expected;
  };
  const std::vector<Wrong> cases = {
      {"tokens_summed",
       2,
       {"arg.wrong and \"sum\"", "the gradient of 'head.logits.weight' on rank 0", "2 times too large"}},
      {"token_shards_summed",
       2,
       {"arg.wrong and \"sum\"", "the gradient of 'head.logits.weight' on rank 0", "2 times too large"}},
      {"summed_beside_an_average",
       2,
       {"arg.wrong and \"sum\"", "the gradient of 'head.logits.weight' on rank 0", "2 times too large"}},
      {"gradients_of_stages_added", 4, {"prun.all_reduce(unit.grads, { axis = \"pp\"", "the gradient of 'block1.", ""}},
      {"stages_averaged", 4, {"arg.wrong and \"pp\"", "'layer3.linear.", ""}},
      {"experts_averaged", 2, {"unit:every(1", "'block1.moe.down.weight' on rank 0", ""}},
      {"columns_averaged", 4, {"arg.wrong and \"tp\"", "'head.logits.weight' on rank 0", ""}},
      {"parts_averaged", 4, {"arg.wrong and #unit:find", "the gradient of 'embed.position.weight' on rank 0", ""}},
      {"shards_of_parts_averaged", 4, {"if arg.wrong", "the gradient of 'head.logits.weight' on rank 0", ""}},
      {"shards_of_parts_added", 4, {"if arg.wrong", "the gradient of 'head.logits.weight' on rank 0", ""}},
  };
  for (const Wrong& wrong : cases) {
    const Proof right = proof_of("tests/parity/laws.lua", wrong.ranks, {{"case", wrong.name}});
    EXPECT_TRUE(right.verdict == Proof::Verdict::equal || right.verdict == Proof::Verdict::undeclared)
        << wrong.name << ": " << right.text;
    expect_told(proof_of("tests/parity/laws.lua", wrong.ranks, {{"case", wrong.name}, {"wrong", "true"}}), wrong.name,
                wrong.expected);
  }
}

// Replaces an op by one that leaves its tensor unchanged.
void skip(Op& op) {
  op.def = &ops::scale;
  op.reads = {op.writes.at(0)};
  op.attrs = {};
  op.attrs.set("factor", 1.0);
  op.axis.clear();
}

template <class Which>
Spoil skip_first(Which which) {
  return [which](Job& job) {
    for (Program& program : job.classes)
      for (Stream& stream : program.step().streams)
        if (const auto op = std::find_if(stream.ops.begin(), stream.ops.end(), which); op != stream.ops.end())
          skip(*op);
  };
}

// Programs as a faulty compiler would generate them.
TEST(Prove, WrongProgramsAreTold) {
  const Settings small = {{"layers", "2"}, {"width", "64"}, {"context", "16"}, {"batch", "24"}, {"micro", "3"}};
  const auto reduces = [](const Op& op) { return op.is(ops::all_reduce) && op.phase == Phase::backward; };
  expect_told(
      proof_of("plans/ddp.lua", 2, small, skip_first(reduces)), "never reduced",
      {"prun.all_reduce(unit.grads", "the gradient of ", "this rank's own: the average over dp (2 ranks) is missing"});
  const auto adds = [](const Op& op) { return op.is(ops::add) && op.microbatch == 1 && op.unit == "embed"; };
  expect_told(proof_of("plans/ddp.lua", 2, small, skip_first(adds)), "a microbatch is lost",
              {"prun.all_reduce(unit.grads", "the gradient of 'embed.", "microbatch 1 is missing"});
  const auto updates = [](const Op& op) { return op.is(ops::adamw) && op.unit == "block0"; };
  expect_told(proof_of("plans/ddp.lua", 2, small, skip_first(updates)), "not updated",
              {"prun.adamw", "adamw.m of 'block0.", "zeros: nothing has arrived here"});
}

TEST(Prove, WhatDoesNotHoldIsNotClaimed) {
  ProofOptions options;
  options.record = [](const PlanSizes&) -> Plan { throw plan_error("this schedule wants 8 microbatches"); };
  Plan plan;
  plan.data.global_batch = 8;
  const Proof proof = prove(plan, options);
  EXPECT_EQ(proof.verdict, Proof::Verdict::not_run);
  EXPECT_EQ(proof.text, "the plan could not be made small: this schedule wants 8 microbatches");
}

TEST(LooksLike, NamesWhatItSees) {
  std::vector<double> right(12);
  std::iota(right.begin(), right.end(), 1.0);
  const auto looks = [&](std::vector<double> found, const std::vector<Suspect>& suspects = {}) {
    return looks_like(found, right, 12, {{2, "added up over dp"}}, suspects);
  };
  const auto changed = [&](auto change) {
    std::vector<double> found = right;
    for (size_t i = 0; i < found.size(); i++) found[i] = change(i);
    return found;
  };
  EXPECT_EQ(looks(changed([&](size_t i) { return 2 * right[i]; })), "2 times too large: added up over dp");
  EXPECT_EQ(looks(changed([&](size_t i) { return right[i] / 3; })), "1/3 of the right numbers");
  EXPECT_EQ(looks(std::vector<double>(12, 0)), "zeros: nothing has arrived here");
  EXPECT_EQ(looks(std::vector<double>(12, NAN)),
            "12 of 12 numbers are NaN: memory that is not written yet, or already reused");
  EXPECT_EQ(looks(changed([&](size_t i) { return right[(i + 6) % 12]; })),
            "its parts in another order: part 1 of 2 is where part 0 belongs");
  EXPECT_EQ(looks(changed([&](size_t i) { return right[i * 5 % 12]; })),
            "the same numbers in another order: a permutation");
  EXPECT_EQ(looks(changed([&](size_t i) { return i < 5 ? right[i] : -7.5; })),
            "5 of 12 numbers are right, element 5 is the first that is not");
  const std::vector<double> other = changed([](size_t i) { return std::sqrt(static_cast<double>(i) + 0.5); });
  EXPECT_EQ(looks(other, {{"the numbers of 'bias'", other}}), "the numbers of 'bias'");
  EXPECT_EQ(looks(other), "no factor, no missing summand, no permutation");
}

}  // namespace
}  // namespace prun::test
