// The runner of the passes: it reports each pass in order, once or per class of ranks, with the text of its result.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "ir/ops.h"

namespace prun {
namespace {

struct Reported {
  std::string name, text;
  int rank_class;
  double seconds;
};

// y = x·w + b twice, with a loss; a pipeline of `ranks` stages if there are several.
Plan two_layers(int ranks) {
  Plan plan;
  plan.path = "two_layers";
  plan.mesh = Mesh({{"pp", ranks}});
  plan.optimizer.op = &ops::sgd;
  plan.data.kind = "random";
  plan.data.global_batch = 4;
  Graph& graph = plan.graph;
  const auto value = [&](const std::string& name, const Shape& shape, ValueKind kind, UnitId unit = {}) {
    Value made;
    made.name = name;
    made.type = {Dtype::f32, shape};
    made.kind = kind;
    made.unit = unit;
    if (unit >= 0) graph.units[unit].parameters.push_back(graph.values.next());
    graph.values.push_back(made);
    return graph.values.next().index() - 1;
  };
  ValueId x = value("x", {4, 8}, ValueKind::input), y = value("y", {4, 8}, ValueKind::input);
  for (int layer = 0; layer < 2; ++layer) {
    const std::string name = "layer" + std::to_string(layer);
    graph.units.push_back({name, "layer", {}, {}, {}});
    graph.calls.push_back({layer, 0});
    const ValueId w = value(name + ".weight", {8, 8}, ValueKind::parameter, layer);
    const ValueId out = value(name + ".out", {4, 8}, ValueKind::activation);
    graph.nodes.push_back({&ops::linear, {x, w}, {out}, {}, layer, {}});
    x = out;
  }
  graph.loss = value("loss", {}, ValueKind::activation);
  graph.nodes.push_back({&ops::mse, {x, y}, {graph.loss}, {}, 1, {}});
  if (ranks > 1) {
    plan.pipeline = Pipeline{.axis = "pp", .schedule = "gpipe"};
    plan.pipeline->turns.assign(ranks, {{PipelineTurn::Kind::forward, 0, 0}, {PipelineTurn::Kind::backward, 0, 0}});
  }
  return plan;
}

std::vector<Reported> reports(const Plan& plan) {
  std::vector<Reported> all;
  CompileOptions options;
  options.after_pass = [&](const PassReport& report) {
    all.push_back({std::string(report.name), report.text(), report.rank_class, report.seconds});
  };
  compile(plan, options);
  return all;
}

const Reported& last(const std::vector<Reported>& all, std::string_view name) {
  return *std::find_if(all.rbegin(), all.rend(), [&](const Reported& one) { return one.name == name; });
}

TEST(Passes, AreReportedInTheirOrder) {
  std::vector<std::string_view> wanted = pass_names();
  for (const std::string_view other :
       {"lower_program", "decode", "generate", "forward"})  // of programs that train nothing
    std::erase(wanted, other);
  std::vector<std::string_view> found;
  const std::vector<Reported> all = reports(two_layers(1));
  for (const Reported& one : all) {
    found.push_back(one.name);
    EXPECT_GE(one.seconds, 0);
  }
  EXPECT_EQ(found, wanted);
}

TEST(Passes, OfAProgramAreReportedForEachClassOfRanks) {
  std::map<std::string, std::vector<int>> classes;
  for (const Reported& one : reports(two_layers(2))) classes[one.name].push_back(one.rank_class);
  EXPECT_EQ(classes["autodiff"], std::vector<int>{-1});
  EXPECT_EQ(classes["step"], (std::vector<int>{0, 1}));
  EXPECT_EQ(classes["memory"], (std::vector<int>{0, 1}));
  EXPECT_EQ(classes["put_offsets"], std::vector<int>{-1});
}

TEST(Passes, ShowWhatStandsAfterThem) {
  const std::vector<Reported> all = reports(two_layers(2));
  const auto shows = [&](std::string_view pass, std::string_view text) {
    return last(all, pass).text.find(text) != std::string::npos;
  };
  EXPECT_TRUE(shows("partition", "forward layer1 (call 1, stage 1)")) << last(all, "partition").text;
  EXPECT_TRUE(shows("partition", "linear  x:f32[4,8], layer0.weight -> layer0.out:f32[4,8]"));
  EXPECT_FALSE(shows("partition", "backward"));
  EXPECT_TRUE(shows("autodiff", "backward layer0 (call 0, stage 0)"));
  EXPECT_TRUE(shows("place", "ranks    1 of 2")) << last(all, "place").text;
  EXPECT_TRUE(shows("schedule", "backward of microbatch 0, stage 1: layer1")) << last(all, "schedule").text;
  EXPECT_TRUE(shows("step", "unplaced"));
  EXPECT_FALSE(shows("memory", "unplaced"));
  EXPECT_TRUE(shows("put_offsets", "ranks    0 of 2"));
}

}  // namespace
}  // namespace prun
