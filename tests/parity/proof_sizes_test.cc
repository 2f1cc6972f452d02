// The small plan of a proof keeps the relations between sizes, and the proof does not blame the plan for errors that
// only its small plan has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ir/ops.h"
#include "ir/plan_reader.h"
#include "prove/prove.h"
#include "prove/small_plan.h"
#include "script/script.h"
#include "tests/parity/product_cases.h"

namespace prun::test {
namespace {

// Returns a function that records tests/parity/sizes.lua.
RecordPlan recorder(const Settings& settings, int ranks) {
  return [=](const PlanSizes& sizes) {
    ScriptOptions script;
    script.plan_path = PRUN_SOURCE_DIR "/tests/parity/sizes.lua";
    script.lua_dir = PRUN_SOURCE_DIR "/lua";
    script.world = ranks;
    script.settings = settings;
    if (!sizes.axes.empty()) script.sizes = sizes;
    return read_plan(run_script(script).plan_cbor);
  };
}

struct Case {
  int ranks;
  Settings settings;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      {2, {{"tp", "2"}, {"heads", "8"}, {"kv", "2"}}},
      {4, {{"tp", "4"}, {"heads", "16"}, {"kv", "4"}, {"size", "6"}, {"width", "20"}, {"vocab", "257"}}},
      {3, {{"tp", "3"}, {"heads", "9"}, {"kv", "3"}, {"hidden", "40"}, {"tied", "true"}}},
      {5, {{"tp", "5"}, {"heads", "5"}, {"kv", "5"}, {"turned", "5"}, {"hidden", "25"}}},
      {1, {{"heads", "7"}, {"kv", "1"}, {"size", "32"}, {"turned", "7"}}},
      {4, {{"tp", "2"}, {"cp", "2"}, {"heads", "4"}, {"kv", "2"}, {"context", "20"}}},
      {4, {{"tp", "2"}, {"cp", "2"}, {"heads", "4"}, {"kv", "2"}, {"size", "16"}, {"part", "12"}}},
      {4, {{"pp", "2"}, {"tp", "2"}, {"sequence", "true"}, {"kv", "2"}, {"micro", "2"}}},
      {4, {{"ep", "2"}, {"dp", "2"}, {"experts", "6"}, {"kv", "2"}, {"capacity", "1.0"}}},
      {2, {{"tp", "2"}, {"experts", "4"}, {"capacity", "0.5"}}},
  };
  return kCases;
}

Proof proof_of(const Case& one, const std::function<void(Job&)>& spoil = nullptr,
               const std::function<std::string(const Job&)>& problem = nullptr) {
  ProofOptions options;
  options.record = recorder(one.settings, one.ranks);
  options.spoil = spoil;
  options.problem = problem;
  return prove(options.record({}), options);
}

TEST(ProofSizes, PlansOfAllShapesEqualOneRank) {
  for (const Case& one : cases()) {
    const Proof proof = proof_of(one);
    EXPECT_EQ(proof.verdict, Proof::Verdict::equal) << one.ranks << ": " << proof.text;
  }
}

TEST(ProofSizes, SmallSizesHaveTheRelationsOfTheRealOnes) {
  for (const Case& one : cases()) {
    const RecordPlan record = recorder(one.settings, one.ranks);
    const Plan real = record({});
    Plan small = record(small_sizes(real).front());
    shrink_model(real, Shrink::dims, small, {});
    int64_t size_of_head = 0, heads = 0, kv_heads = 0, turned = 0, tables = 0;
    for (const Node& node : small.graph.nodes) {
      const Shape& shape = small.graph.values[node.inputs[0]].type.shape;
      if (node.op == &ops::rotary) {
        size_of_head = node.attrs.integer("size"), turned = node.attrs.integer("heads");
      } else if (node.op == &ops::attention) {
        heads = node.attrs.integer("heads"), kv_heads = node.attrs.integer("kv_heads");
        EXPECT_EQ((heads + 2 * kv_heads) * size_of_head, shape.back());
      }
    }
    const auto text = [&](const char* name, const char* usual) {
      const auto found = one.settings.find(name);
      return std::stoll(found == one.settings.end() ? usual : found->second);
    };
    EXPECT_EQ(heads, kv_heads * std::min<int64_t>(3, text("heads", "4") / text("kv", "4")));
    EXPECT_EQ(turned, text("turned", "0") > 0 ? heads : heads + kv_heads);
    EXPECT_LE(heads * size_of_head, text("heads", "4") * text("size", "8"));
    for (const Value& value : small.graph.values) {
      if (value.blocks.empty()) continue;
      tables++;
      EXPECT_EQ(value.blocks,
                (std::vector<int64_t>{heads * size_of_head, kv_heads * size_of_head, kv_heads * size_of_head}));
      EXPECT_EQ(std::accumulate(value.blocks.begin(), value.blocks.end(), int64_t{0}), value.type.shape.back());
    }
    EXPECT_GT(tables, 0);
  }
}

// Capacities remain if all ranks count the same tokens.
TEST(ProofSizes, CapacitiesStayUnlessRanksCountByThemselves) {
  for (const bool tokens_apart : {false, true}) {
    const RecordPlan record = recorder({{tokens_apart ? "dp" : "tp", "2"}, {"experts", "4"}, {"capacity", "0.5"}}, 2);
    const Plan real = record({});
    Plan small = record(small_sizes(real).front());
    shrink_model(real, Shrink::dims, small, {});
    for (const Node& node : small.graph.nodes) {
      if (node.op != &ops::route) continue;
      EXPECT_EQ(node.attrs.integer("capacity") > 0, !tokens_apart);
    }
    EXPECT_EQ(known_differences(real).size(), tokens_apart ? 1 : 0);
  }
}

TEST(ProofSizes, ProofsNameWhatTheyLeaveOut) {
  const Proof capacity = proof_of({2, {{"dp", "2"}, {"experts", "4"}, {"capacity", "1.0"}}});
  EXPECT_EQ(capacity.apart_from,
            std::vector<std::string>{"the capacity of experts (each rank drops choices of its own tokens)"});
  const Proof wire = proof_of({2, {{"dp", "2"}, {"wire", "bf16"}}});
  EXPECT_EQ(wire.verdict, Proof::Verdict::equal) << wire.text;
  EXPECT_EQ(wire.apart_from, std::vector<std::string>{"the rounding of wire = \"bf16\" (zero2 over dp)"});
  EXPECT_TRUE(proof_of({2, {{"dp", "2"}, {"wire", "f32"}}}).apart_from.empty());
  EXPECT_TRUE(proof_of({1, {{"wire", "bf16"}, {"experts", "4"}, {"capacity", "0.5"}}}).apart_from.empty());
  EXPECT_TRUE(proof_of({2, {{"dp", "2"}, {"experts", "4"}, {"capacity", "9.0"}}}).apart_from.empty());
}

// Replaces the first op of that kind by a fill with `value`.
std::function<void(Job&)> writes(const OpDef& kind, double value) {
  return [&kind, value](Job& job) {
    for (Program& program : job.classes)
      for (Stream& stream : program.step().streams)
        for (Op& op : stream.ops) {
          if (!op.is(kind)) continue;
          op.def = &ops::fill;
          op.reads.clear();
          op.writes.resize(1);
          op.attrs = {};
          op.attrs.set("value", value);
          return;
        }
  };
}

TEST(ProofSizes, OverflowIsNoDifferenceUnlessOneSideAloneHasIt) {
  const Case overflows{2, {{"dp", "2"}, {"overflow", "true"}}}, finite{2, {{"dp", "2"}}};
  const Proof both = proof_of(overflows);
  EXPECT_EQ(both.verdict, Proof::Verdict::not_run);
  EXPECT_TRUE(both.text.starts_with("numbers overflow in the small run (")) << both.text;
  for (const double value : {INFINITY, NAN})
    EXPECT_EQ(proof_of(finite, writes(ops::linear, value)).verdict, Proof::Verdict::differs) << value;
  // Only the one rank overflows: the other ranks have zeros in place of those values.
  EXPECT_EQ(proof_of(overflows, writes(ops::embedding, 0)).verdict, Proof::Verdict::differs);
}

TEST(ProofSizes, ASmallPlanThatIsWrongIsNotBlamedOnThePlan) {
  const Case one{2, {{"dp", "2"}}};
  const Proof invalid = proof_of(one, writes(ops::embedding, 0), [](const Job&) { return "8 heads have 7 sizes"; });
  EXPECT_EQ(invalid.verdict, Proof::Verdict::not_run);
  EXPECT_EQ(invalid.text, "the plan could not be made small: 8 heads have 7 sizes");
  int runs = 0;
  const Proof only_small = proof_of(one, [&](Job& job) {
    if (runs++ == 0) writes(ops::embedding, 0)(job);
  });
  EXPECT_EQ(only_small.verdict, Proof::Verdict::not_run);
  EXPECT_TRUE(only_small.text.starts_with("the plan equals one rank with its own dims (")) << only_small.text;
  EXPECT_EQ(proof_of(one, writes(ops::embedding, 0), [](const Job&) { return ""; }).verdict, Proof::Verdict::differs);
}

}  // namespace
}  // namespace prun::test
