// A schedule with a repeated period: unrolled it equals the full schedule, the verifier and proofs treat both alike,
// and a violation of its periodicity is rejected.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "compile/compile.h"
#include "exec/virtual_ranks.h"
#include "ir/plan_reader.h"
#include "kernels/devices.h"
#include "script/script.h"
#include "tests/parity/parity_job.h"
#include "verify/verify.h"

namespace prun::test {
namespace {

struct Case {
  std::string plan;
  int ranks;
  Settings settings;
};

void PrintTo(const Case& one, std::ostream* out) {
  *out << one.plan << "@" << one.ranks;
  for (const auto& [name, value] : one.settings) *out << "," << name << "=" << value;
}

Job compiled(const Case& one, bool every_microbatch) {
  ScriptOptions script;
  script.plan_path = PRUN_SOURCE_DIR "/" + one.plan;
  script.lua_dir = PRUN_SOURCE_DIR "/lua";
  script.world = one.ranks;
  script.settings = one.settings;
  const std::unique_ptr<Device> device = open_device("cpu");
  CompileOptions options;
  options.every_microbatch = every_microbatch;
  options.workspace_bytes = [&](const Program& program, const Op& op) { return device->workspace_bytes(program, op); };
  options.fuses = [&](std::string_view kind) { return device->fuses(kind); };
  Job job = compile(read_plan(run_script(script).plan_cbor), options);
  for (Program& program : job.classes) program.schedule.steps = 2;
  return job;
}

std::string first_finding(const Job& job) {
  const std::vector<Finding> findings = verify_job(job, 0);
  return findings.empty() ? "" : findings.front().rule + ": " + findings.front().message;
}

// Describes an op independent of tensor ids and offsets.
std::string text_of(const Program& program, const Op& op) {
  std::string text = std::string(op.def->name) + " " + op.axis + " " + std::to_string(op.lane) + " " + op.unit + " " +
                     std::to_string(op.microbatch) + " " + op.site.text();
  for (const std::vector<TensorId>* ids : {&op.reads, &op.writes}) {
    text += ids == &op.reads ? " <" : " >";
    for (const TensorId id : *ids) {
      const Tensor& tensor = program.tensors[id];
      text += " " + tensor.name + "@" + std::to_string(tensor.byte_offset) + shape_text(tensor.shape) + " of " +
              program.buffers[tensor.buffer].name;
    }
  }
  for (const auto& [name, value] : op.attrs.values()) text += " " + name + "=" + attr_text(value);
  for (const Edge& edge : op.waits)
    text +=
        " " + std::to_string(edge.stream.index()) + "#" + std::to_string(edge.index) + "/" + std::to_string(edge.back);
  return text;
}

class Repeats : public testing::TestWithParam<Case> {};

TEST_P(Repeats, WrittenOutAreTheScheduleAsItIs) {
  const Job listed = compiled(GetParam(), false), whole = compiled(GetParam(), true);
  ASSERT_TRUE(listed.classes.front().step().repeat.any());
  ASSERT_FALSE(whole.classes.front().step().repeat.any());
  const Job out = written_out(listed);
  ASSERT_EQ(out.classes.size(), whole.classes.size());
  for (size_t c = 0; c < out.classes.size(); ++c) {
    const Program &a = out.classes[c], &b = whole.classes[c];
    EXPECT_LT(listed.classes[c].step().op_count(), b.step().op_count() * 3 / 4);
    EXPECT_EQ(a.tokens_per_step, b.tokens_per_step);
    ASSERT_EQ(a.bodies.size(), b.bodies.size());
    for (const BodyId body : a.bodies.ids()) {
      ASSERT_EQ(a.bodies[body].streams.size(), b.bodies[body].streams.size());
      for (const StreamId stream : a.bodies[body].streams.ids()) {
        const auto& [name, mine] = a.bodies[body].streams[stream];
        const std::vector<Op>& its = b.bodies[body].streams[stream].ops;
        const std::string where = "class " + std::to_string(c) + ", " + a.bodies[body].name + ", " + name;
        ASSERT_EQ(mine.size(), its.size()) << where;
        for (size_t i = 0; i < mine.size(); ++i)
          ASSERT_EQ(text_of(a, mine[i]), text_of(b, its[i])) << where << "#" << i;
      }
    }
  }
}

TEST_P(Repeats, AreProvedAsTheScheduleIs) {
  const Job listed = compiled(GetParam(), false);
  EXPECT_EQ(first_finding(listed), "");
  EXPECT_EQ(first_finding(written_out(listed)), "");
}

TEST_P(Repeats, TrainToTheSameBits) {
  const std::unique_ptr<Device> device = open_device("cpu");
  const VirtualRun listed = run_virtual_ranks(compiled(GetParam(), false), *device);
  const VirtualRun whole = run_virtual_ranks(compiled(GetParam(), true), *device);
  EXPECT_EQ(listed.losses, whole.losses);
  EXPECT_EQ(listed.eval_losses, whole.eval_losses);
  ASSERT_EQ(listed.persistent.size(), whole.persistent.size());
  for (size_t rank = 0; rank < whole.persistent.size(); ++rank) {
    ASSERT_EQ(listed.persistent[rank].size(), whole.persistent[rank].size());
    for (size_t i = 0; i < whole.persistent[rank].size(); ++i)
      EXPECT_EQ(listed.persistent[rank][i].bytes, whole.persistent[rank][i].bytes)
          << "rank " << rank << " " << whole.persistent[rank][i].name;
  }
}

// Memory cost of listing one period, for plans with two or more layers per rank.
struct Costly {
  Case plan;
  double most, of_any;  // bounds of the ratio: for the largest arena, for any arena
};

void PrintTo(const Costly& one, std::ostream* out) { PrintTo(one.plan, out); }

class Arenas : public testing::TestWithParam<Costly> {};

TEST_P(Arenas, AreHardlyLargerThanThoseOfEveryMicrobatch) {
  const Job listed = compiled(GetParam().plan, false), whole = compiled(GetParam().plan, true);
  ASSERT_TRUE(listed.classes.front().step().repeat.any());
  EXPECT_EQ(first_finding(written_out(listed)), "");
  double most = 0, most_of_whole = 0;
  for (size_t c = 0; c < listed.classes.size(); ++c) {
    const auto bytes = static_cast<double>(listed.classes[c].arena_bytes);
    const auto of_whole = static_cast<double>(whole.classes[c].arena_bytes);
    EXPECT_LE(bytes, GetParam().of_any * of_whole) << "class " << c;
    most = std::max(most, bytes);
    most_of_whole = std::max(most_of_whole, of_whole);
  }
  EXPECT_LE(most, GetParam().most * most_of_whole);
}

// A microbatch's memory is freed after it, also if ops that no other op waits for have read it.
struct Growing {
  std::string plan;
  int ranks, micro = 8;
};
void PrintTo(const Growing& one, std::ostream* out) { *out << one.plan << "@" << one.ranks; }

class Microbatches : public testing::TestWithParam<Growing> {};

TEST_P(Microbatches, TakeNoMoreMemoryWhereThereAreMore) {
  const auto arenas = [](int micro) {
    const Settings settings = {
        {"layers", "8"}, {"width", "32"}, {"micro", std::to_string(micro)}, {"batch", std::to_string(8 * micro)}};
    std::vector<int64_t> bytes;  // without the batch
    for (const Program& program : compiled({GetParam().plan, GetParam().ranks, settings}, true).classes) {
      bytes.push_back(program.arena_bytes);
      for (const Buffer& buffer : program.buffers)
        if (buffer.role == Role::data) bytes.back() -= buffer.bytes;
    }
    return bytes;
  };
  const std::vector<int64_t> some = arenas(GetParam().micro), more = arenas(2 * GetParam().micro);
  ASSERT_EQ(some.size(), more.size());
  for (size_t c = 0; c < some.size(); ++c) EXPECT_LE(more[c], some[c]) << "class " << c;
}

INSTANTIATE_TEST_SUITE_P(Plans, Microbatches,
                         testing::Values(Growing{"plans/ddp.lua", 2}, Growing{"plans/zero3.lua", 2},
                                         Growing{"plans/fsdp.lua", 2}, Growing{"plans/moe.lua", 2},
                                         Growing{"plans/megatron.lua", 2}, Growing{"plans/1f1b.lua", 4},
                                         Growing{"plans/interleaved.lua", 4}, Growing{"plans/zero_bubble.lua", 4},
                                         Growing{"plans/one_sided.lua", 4}, Growing{"plans/3d.lua", 8},
                                         Growing{"plans/ring_attention.lua", 4},
                                         Growing{"tests/parity/evaluated.lua", 2, 128}));

const Settings kSmall = {{"layers", "4"}, {"width", "32"}, {"micro", "40"}, {"batch", "40"}};

Case of(const std::string& plan, int ranks, Settings settings) {
  settings.insert(kSmall.begin(), kSmall.end());
  return {plan, ranks, std::move(settings)};
}

const Settings kTwoLayers = {{"layers", "8"},   {"width", "64"}, {"heads", "2"},
                             {"context", "32"}, {"micro", "40"}, {"batch", "40"}};

Case two_layers(const std::string& plan, int ranks, Settings settings) {
  settings.insert(kTwoLayers.begin(), kTwoLayers.end());
  return {plan, ranks, std::move(settings)};
}

// Periods of several microbatches cost more because their ring buffers are full at different times.
INSTANTIATE_TEST_SUITE_P(
    Plans, Arenas,
    testing::Values(
        Costly{two_layers("plans/1f1b.lua", 2, {{"pp", "2"}, {"layers", "4"}}), 1.03, 1.03},
        Costly{two_layers("plans/1f1b.lua", 4, {{"pp", "4"}}), 1.03, 1.03},
        Costly{two_layers("plans/3d.lua", 8, {{"pp", "4"}, {"tp", "2"}}), 1.03, 1.03},
        Costly{two_layers("plans/custom/eager_1f1b.lua", 4, {{"pp", "4"}}), 1.03, 1.03},
        Costly{two_layers("plans/zero_bubble.lua", 4, {{"pp", "4"}}), 1.03, 1.03},
        Costly{two_layers("plans/zero_bubble.lua", 4, {{"pp", "4"}, {"schedule", "zb_v"}}), 1.05, 1.12},
        Costly{two_layers("plans/zero_bubble.lua", 4, {{"pp", "4"}, {"schedule", "dualpipe_v"}}), 1.05, 1.12},
        Costly{two_layers("plans/interleaved.lua", 2, {{"pp", "2"}}), 1.06, 1.07},
        Costly{two_layers("plans/interleaved.lua", 4, {{"pp", "4"}, {"micro", "96"}, {"batch", "96"}}), 1.06, 1.15}));

INSTANTIATE_TEST_SUITE_P(
    Plans, Repeats,
    testing::Values(of("plans/1f1b.lua", 2, {{"pp", "2"}}), of("plans/1f1b.lua", 2, {{"pp", "2"}, {"width", "64"}}),
                    of("plans/ddp.lua", 2, {{"batch", "80"}, {"width", "64"}}), of("plans/1f1b.lua", 4, {{"pp", "4"}}),
                    of("plans/1f1b.lua", 4, {{"pp", "2"}, {"batch", "80"}}),
                    of("plans/interleaved.lua", 2, {{"pp", "2"}}), of("plans/zero_bubble.lua", 4, {{"pp", "4"}}),
                    of("plans/zero_bubble.lua", 4, {{"pp", "2"}, {"schedule", "dualpipe_v"}, {"batch", "80"}}),
                    of("plans/3d.lua", 8, {{"batch", "80"}}), of("plans/zero3.lua", 2, {{"batch", "80"}}),
                    of("plans/ddp.lua", 2, {{"batch", "80"}}), of("plans/fsdp.lua", 2, {{"batch", "80"}}),
                    of("plans/zero2.lua", 2, {{"batch", "80"}}),
                    of("plans/ring_attention.lua", 4, {{"cp", "2"}, {"batch", "80"}}),
                    of("tests/parity/evaluated.lua", 2, {}), of("tests/parity/evaluated.lua", 4, {{"pp", "4"}}),
                    of("tests/parity/evaluated.lua", 2, {{"schedule", "interleaved"}}),
                    of("tests/parity/evaluated.lua", 4, {{"schedule", "zb_h1"}, {"batch", "80"}}),
                    of("tests/parity/evaluated.lua", 2, {{"schedule", "none"}, {"batch", "80"}})));

}  // namespace
}  // namespace prun::test
