// Reads the script child's document into a Plan, and rejects documents that violate the schema.
#include "ir/plan_reader.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "ir/ops.h"
#include "tests/unit/expected_text.h"

namespace prun {
namespace {

using Json = nlohmann::json;

Json training() {
  return Json::parse(R"({
    "path": "plans/mlp.lua", "kind": "plan", "mesh": {"axes": [["dp", 4]], "site": ["plans/mlp.lua", 3]},
    "values": [
      {"name": "x", "dtype": "f32", "shape": [2, 8], "kind": "input", "unit": -1, "site": ["a.lua", 1]},
      {"name": "fc.weight", "dtype": "f32", "shape": [8, 4.0], "kind": "parameter", "unit": 0,
       "init": {"kind": "normal", "scale": 0.02}, "blocks": [1, 3], "site": ["a.lua", 2]},
      {"name": "h", "dtype": "f32", "shape": [2, 4], "kind": "activation", "unit": -1, "site": ["a.lua", 3]},
      {"name": "loss", "dtype": "f32", "shape": {}, "kind": "activation", "unit": -1, "site": ["a.lua", 4]}],
    "nodes": [
      {"op": "linear", "inputs": [0, 1], "outputs": [2], "attrs": {"act": "relu"}, "call": 0, "site": ["a.lua", 3]},
      {"op": "mean_square", "inputs": [2], "outputs": [3], "attrs": {}, "call": 0, "site": ["a.lua", 4]}],
    "units": [{"name": "fc", "class": "fc", "parameters": [1]}], "calls": [{"unit": 0}],
    "loss": 3, "steps": 20.0, "seed": 7, "reduce": "rank_order", "dtype": "f32",
    "data": {"kind": "random", "path": "", "batch": 8, "site": ["a.lua", 9]},
    "optimizer": {"kind": "adamw", "lr": 0.01, "betas": [0.8, 0.9], "clip": 1, "site": ["a.lua", 10]},
    "batch_axes": ["dp"], "micro": 2,
    "strategies": [{"name": "ddp", "axes": ["dp"], "splits": "batch", "site": ["a.lua", 11], "units": [
      {"class": "fc", "sharded": false, "shard_axis": "", "hooks": [
        {"when": "after", "phase": "backward", "intents": [
          {"kind": "all_reduce", "target": "grads", "axis": "dp", "stream": "reduce", "op": "avg", "inflight": 2,
           "bucket": 26214400, "first": 1048576, "site": ["b.lua", 5]}]}]}]}]})");
}

Plan read(const Json& json) {
  std::vector<uint8_t> cbor = Json::to_cbor(json);
  return read_plan({reinterpret_cast<const char*>(cbor.data()), cbor.size()});
}

std::string message(const Json& json) {
  try {
    read(json);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::plan);
    return error.what();
  }
  return "accepted";
}

TEST(PlanReader, ReadsATrainingPlan) {
  Plan plan = read(training());
  EXPECT_EQ(plan.path, "plans/mlp.lua");
  EXPECT_EQ(plan.mesh.text(), "dp=4");
  EXPECT_EQ(plan.mesh_site.text(), "plans/mlp.lua:3");
  ASSERT_EQ(plan.graph.values.size(), 4u);
  EXPECT_EQ(plan.graph.values[1].type.shape, (Shape{8, 4}));
  EXPECT_EQ(plan.graph.values[1].kind, ValueKind::parameter);
  EXPECT_EQ(plan.graph.values[1].init.kind, "normal");
  EXPECT_EQ(plan.graph.values[1].init.scale, 0.02);
  EXPECT_EQ(plan.graph.values[1].blocks, (std::vector<int64_t>{1, 3}));
  EXPECT_TRUE(plan.graph.values[0].blocks.empty());
  EXPECT_EQ(plan.graph.values[3].type.shape, Shape{});
  EXPECT_EQ(plan.graph.nodes[0].op, &ops::linear);
  EXPECT_EQ(plan.graph.nodes[0].attrs.text("act"), "relu");
  EXPECT_EQ(plan.graph.nodes[1].site.text(), "a.lua:4");
  EXPECT_EQ(plan.graph.units[0].parameters, std::vector<ValueId>{1});
  EXPECT_EQ(plan.graph.loss, 3);
  EXPECT_EQ(plan.steps, 20);
  EXPECT_EQ(plan.seed, 7u);
  EXPECT_TRUE(plan.rank_order);
  EXPECT_EQ(plan.data.global_batch, 8);
  EXPECT_EQ(plan.optimizer.numbers.number("beta1"), 0.8);
  EXPECT_EQ(plan.optimizer.numbers.number("eps"), 1e-8);
  EXPECT_EQ(plan.optimizer.clip, 1);
  const Hook& hook = plan.strategies.at(0).units.at(0).hooks.at(0);
  EXPECT_TRUE(hook.after);
  EXPECT_EQ(hook.phase, Phase::backward);
  EXPECT_EQ(hook.actions[0].bucket, 25 << 20);
  EXPECT_EQ(hook.actions[0].inflight, 2);
  EXPECT_EQ(hook.actions[0].handle, -1);
  EXPECT_EQ(hook.actions[0].site.text(), "b.lua:5");
}

TEST(PlanReader, ReadsAScheduledLearningRate) {
  const LearningRate constant = read(training()).optimizer.lr;
  EXPECT_EQ(constant.last, 0.01);
  EXPECT_TRUE(constant.pieces.empty());
  Json json = training();
  const Json rise = {{"shape", "linear"}, {"end", 5.0}, {"from", 0}, {"to", 0.01}};
  const Json fall = {{"shape", "cosine"}, {"end", 20}, {"from", 0.01}, {"to", 0.001}};
  json["optimizer"]["curve"] = {{"text", "cosine"}, {"pieces", {rise, fall}}, {"last", 0.001}};
  const LearningRate rate = read(json).optimizer.lr;
  EXPECT_EQ(rate.text(), "cosine");
  EXPECT_EQ(rate.pieces, (std::vector<RatePiece>{{.end = 5, .to = 0.01}, {RateShape::cosine, 20, 0.01, 0.001}}));
  EXPECT_EQ(rate.last, 0.001);
  const auto changed = [&](const char* name, Json value) {
    Json other = json;
    other["optimizer"]["curve"]["pieces"][1][name] = std::move(value);
    return message(other);
  };
  EXPECT_EQ(changed("shape", "sine"), expected());
  EXPECT_EQ(changed("end", 5), expected());
  EXPECT_EQ(changed("to", -1), expected());
  json["optimizer"]["curve"] = {{"text", "a function"}, {"rates", {0.1, -0.1}}, {"last", 0}};
  EXPECT_EQ(message(json), expected());
}

TEST(PlanReader, ReadsAnEvaluation) {
  EXPECT_FALSE(read(training()).evaluation);
  Json json = training();
  json["eval"] = {{"every", 50}, {"batches", 4.0}, {"site", {"a.lua", 12}}};
  json["eval"]["data"] = {{"kind", "random"}, {"path", ""}, {"batch", 8}, {"site", {"a.lua", 13}}};
  const Plan plan = read(json);
  ASSERT_TRUE(plan.evaluation);
  EXPECT_EQ(plan.evaluation->every, 50);
  EXPECT_EQ(plan.evaluation->batches, 4);
  EXPECT_EQ(plan.evaluation->data.kind, "random");
  EXPECT_EQ(plan.evaluation->data.site.text(), "a.lua:13");
  json["eval"]["every"] = 0;
  EXPECT_EQ(message(json), expected());
}

TEST(PlanReader, ReadsAProgram) {
  Plan plan = read(Json::parse(R"({"path": "p.lua", "kind": "program", "mesh": {"axes": [["world", 2]]},
    "programs": [{"tensors": [{"name": "x", "dtype": "i64", "shape": [5]}],
                  "ops": [{"op": "values", "inputs": [], "outputs": [0], "attrs": {"values": [1, 2.0, 3]}},
                          {"op": "all_reduce", "inputs": [0], "outputs": [0], "attrs": {"op": "sum"}, "axis": "world",
                           "site": ["p.lua", 4]}]}],
    "program_of_rank": [0, 0]})"));
  EXPECT_EQ(plan.program_of_rank, (std::vector<int>{0, 0}));
  EXPECT_EQ(plan.programs[0].tensors[0].type.dtype, Dtype::i64);
  EXPECT_EQ(plan.programs[0].ops[0].attrs.integers("values"), (std::vector<int64_t>{1, 2, 3}));
  EXPECT_EQ(plan.programs[0].ops[1].axis, "world");
  EXPECT_EQ(plan.programs[0].ops[1].site.text(), "p.lua:4");
}

// The Lua functions of a plan reject these too; the reader repeats the checks because the compiler relies on them.
TEST(PlanReader, RefusesWhatWouldCrashTheCompiler) {
  const auto changed = [](auto change) {
    Json json = training();
    change(json);
    return message(json);
  };
  EXPECT_EQ(changed([](Json& j) { j["values"][0]["shape"] = {1LL << 40, 1LL << 40}; }), expected());
  for (const double rate : {-0.1, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()})
    for (const char* name : {"lr", "clip", "weight_decay"})
      EXPECT_EQ(changed([&](Json& j) { j["optimizer"][name] = rate; }).find("a.lua:10: the plan's optimizer"), 0u)
          << name << " " << rate;
  for (const char* name : {"prefetch", "inflight", "bucket", "first"})
    EXPECT_EQ(changed([&](Json& j) {
                j["strategies"][0]["units"][0]["hooks"][0]["intents"][0][name] = -1;
              }).find("b.lua:5: the plan's strategies[0].units[0].hooks[0].intents[0]"),
              0u)
        << name;
}

TEST(PlanReader, NamesThePlaceInTheDocument) {
  auto changed = [](auto change) {
    Json json = training();
    change(json);
    return message(json);
  };
  EXPECT_EQ(changed([](Json& j) { j.erase("loss"); }), expected());
  EXPECT_EQ(changed([](Json& j) { j["loss"] = 4; }), expected());
  EXPECT_EQ(changed([](Json& j) { j["steps"] = 2.5; }), expected());
  EXPECT_EQ(changed([](Json& j) { j["nodes"][1]["inputs"][0] = -1; }), expected());
  EXPECT_EQ(changed([](Json& j) { j["nodes"][1]["op"] = "medium"; }), expected());
  EXPECT_EQ(changed([](Json& j) { j["nodes"][1]["op"] = "adamw"; }), expected());
  EXPECT_EQ(changed([](Json& j) { j["values"][2]["shape"] = {2, 5}; }), expected());
  EXPECT_EQ(changed([](Json& j) { j["values"][1]["blocks"] = {1, 2}; }), expected());
  EXPECT_EQ(changed([](Json& j) { j["values"][0]["dtype"] = "f33"; }), expected());
  EXPECT_EQ(changed([](Json& j) { j["kind"] = 3; }), expected());
  EXPECT_EQ(changed([](Json& j) { j["optimizer"]["betas"] = {1}; }), expected());
  EXPECT_EQ(changed([](Json& j) { j["mesh"]["axes"][0][1] = 0; }), expected());
  EXPECT_EQ(message(3), expected());
}

TEST(PlanReader, ShapesThatDoNotFitAreTheUsersMistakeAndCarryTheirLine) {
  Json json = training();
  json["values"][0]["shape"] = {2, 9};
  EXPECT_EQ(message(json), expected());
}

TEST(PlanReader, TheModelReturnsALoss) {
  Json json = training();
  json["nodes"].push_back({{"op", "scale"},
                           {"inputs", {3}},
                           {"outputs", {4}},
                           {"attrs", {{"factor", 2}}},
                           {"call", 0},
                           {"site", {"a.lua", 6}}});
  json["values"].push_back({{"name", "twice"}, {"dtype", "f32"}, {"shape", Json::array()}, {"kind", "activation"}});
  json["loss"] = 4;
  EXPECT_EQ(message(json), expected());
  json["loss"] = 0;
  EXPECT_EQ(message(json), expected());
}

TEST(PlanReader, ValuesAreMadeOnceAndBeforeTheyAreUsed) {
  Json json = training();
  std::swap(json["nodes"][0], json["nodes"][1]);
  EXPECT_EQ(message(json), expected());
  json = training();
  json["nodes"].push_back(json["nodes"][1]);
  EXPECT_EQ(message(json), expected());
}

// Two layers, the second encoded as a repetition of the first, and the units after it.
Json repeating() {
  Json json = training();
  json["units"] = Json::parse(R"([{"name": "fc0", "class": "fc", "parameters": [1]},
                                  {"name": "fc1", "class": "fc", "parameters": [3]},
                                  {"name": "loss", "class": "loss", "parameters": []}])");
  json["calls"] = Json::parse(R"([{"unit": 0, "first": 1, "values": 2, "nodes": 1},
                                  {"unit": 1, "like": 0, "first": 3, "takes": [2]}, {"unit": 2}])");
  json["values"][0]["shape"] = {2, 4};
  json["values"][1]["shape"] = {4, 4};
  json["values"][1]["name"] = "fc0.weight";
  json["values"][2]["name"] = "fc0.h";
  json["nodes"][1].update({{"inputs", {4}}, {"outputs", {5}}, {"call", 2}});
  json["loss"] = 5;
  return json;
}

TEST(PlanReader, CallsThatRepeatAreWrittenDownOnce) {
  const Graph graph = read(repeating()).graph;
  ASSERT_EQ(graph.values.size(), 6u);
  EXPECT_EQ(graph.values[3].name, "fc1.weight");
  EXPECT_EQ(graph.values[3].unit, 1);
  EXPECT_EQ(graph.values[3].init.scale, 0.02);
  EXPECT_EQ(graph.values[4].name, "fc1.h");
  EXPECT_EQ(graph.values[5].name, "loss");
  ASSERT_EQ(graph.nodes.size(), 3u);
  EXPECT_EQ(graph.nodes[1].op, &ops::linear);
  EXPECT_EQ(graph.nodes[1].inputs, (std::vector<ValueId>{2, 3}));
  EXPECT_EQ(graph.nodes[1].outputs, std::vector<ValueId>{4});
  EXPECT_EQ(graph.nodes[1].call, 1);
  EXPECT_EQ(graph.nodes[1].attrs.text("act"), "relu");
  EXPECT_EQ(graph.nodes[2].call, 2);
}

TEST(PlanReader, CallsThatRepeatWhatIsNotThereAreRefused) {
  const auto changed = [](auto change) {
    Json json = repeating();
    change(json["calls"], json);
    return message(json);
  };
  EXPECT_EQ(changed([](Json& c, Json&) { c[1]["like"] = 1; }), expected());
  EXPECT_EQ(changed([](Json& c, Json&) { c[1]["like"] = -1; }), expected());
  EXPECT_EQ(changed([](Json& c, Json&) { c[0].erase("first"); }), expected());
  EXPECT_EQ(changed([](Json& c, Json&) { c[1].erase("first"); }), expected());
  EXPECT_EQ(changed([](Json& c, Json&) { c[1]["first"] = 2; }), expected());
  EXPECT_EQ(changed([](Json& c, Json&) { c[1]["first"] = 9; }), expected());
  EXPECT_EQ(changed([](Json& c, Json&) { c[0]["values"] = 1 << 24; }), expected());
  EXPECT_EQ(changed([](Json& c, Json&) { c[0]["values"] = c[0]["nodes"] = INT32_MAX - 1; }), expected());
  EXPECT_EQ(changed([](Json& c, Json&) { c[0]["values"] = 3; }), expected());
  EXPECT_EQ(changed([](Json& c, Json&) { c[0]["nodes"] = 2; }), expected());
  EXPECT_EQ(changed([](Json& c, Json&) { c[1]["takes"] = Json::array(); }), expected());
  EXPECT_EQ(changed([](Json& c, Json&) { c[1]["takes"] = {2, 2}; }), expected());
  EXPECT_EQ(changed([](Json& c, Json&) { c[1]["takes"] = {1}; }), expected());
  EXPECT_EQ(changed([](Json& c, Json&) { c[1]["takes"] = {99}; }), expected());
  EXPECT_EQ(changed([](Json& c, Json&) { c[1]["takes"] = {4}; }), expected());
  EXPECT_EQ(changed([](Json&, Json& j) { j["values"][1]["name"] = "other.weight"; }), expected());
  EXPECT_EQ(changed([](Json&, Json& j) { j["values"][1]["unit"] = 2; }), expected());
}

TEST(PlanReader, BytesThatAreNoDocumentAreRefused) {
  for (std::string bytes : {"", "\xff", "\xa1\x61"}) EXPECT_THROW(read_plan(bytes), Error);
}

}  // namespace
}  // namespace prun
