// The script child: forbidden operations, positions in errors, and identical bytes for the same plan.
//
// Scripts report to this test through error messages because a failing script returns nothing else.
#include "script/script.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ir/plan_reader.h"
#include "script/limits.h"
#include "script/script_server.h"

namespace prun {
namespace {

namespace fs = std::filesystem;

class Script : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("script_test." + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return (folder_ / name).string();
  }
  ScriptOptions options(const std::string& plan_path) {
    ScriptOptions options;
    options.plan_path = plan_path;
    options.lua_dir = PRUN_SOURCE_DIR "/lua";
    options.cpu_seconds = 1;
    options.memory_bytes = 64 << 20;
    return options;
  }
  Error run_failing(const ScriptOptions& given) {
    try {
      run_script(given);
    } catch (const Error& error) {
      return error;
    }
    return Error(Exit::ok, "no error");
  }
  Error failure_of(const std::string& text) { return run_failing(options(write("plan.lua", text))); }
  // Returns the message of a script's error(...).
  std::string said(const std::string& text) { return failure_of(text).message(); }

  fs::path folder_;
};

const char* const kForbidden[] = {"io",         "os",       "debug",  "package",        "coroutine", "load",
                                  "loadstring", "loadfile", "dofile", "collectgarbage", "xpcall",    "_G"};

TEST_F(Script, HasNoNameThatReachesTheSystem) {
  for (const char* name : kForbidden) {
    Error error = failure_of("\nlocal x = " + std::string(name));
    EXPECT_EQ(error.code(), Exit::plan);
    EXPECT_EQ(error.message(), std::string(name) + " is not available in a plan: a plan describes a run, it does not " +
                                   "act on the machine");
    EXPECT_EQ(error.site()->line, 2);
  }
  EXPECT_EQ(said("error(tostring(('').dump), 0)"), "nil");
  EXPECT_EQ(said("error(tostring(pcall(require, 'host')), 0)"), "false");
  EXPECT_EQ(said("local x = host"), "unknown name 'host'");
}

TEST_F(Script, ProtectsItsEnvironment) {
  EXPECT_EQ(said("setmetatable(_ENV, {})"), "this metatable is protected");
  EXPECT_EQ(said("setmetatable({}, { __gc = print })"), "a plan cannot have finalizers (__gc)");
}

TEST_F(Script, RequiresFromItsFolderOnly) {
  write("parts/model.lua", "return { width = 7 }");
  write("loop.lua", "return require 'loop'");
  EXPECT_EQ(said("error({})"), "error with a table as its value");
  EXPECT_EQ(said("error('width ' .. require('parts.model').width, 0)"), "width 7");
  for (const char* name : {"../plan", "/etc/passwd", "..plan", "a..b", ".a", "", "a/b"})
    EXPECT_NE(said("require '" + std::string(name) + "'").find("is not a module name"), std::string::npos) << name;
  EXPECT_EQ(said("require 'loop'"), "module 'loop' requires itself, by way of others");
}

TEST_F(Script, ExplainsWordsOfOtherLanguages) {
  const std::pair<const char*, const char*> kWays[] = {
      {"if 1 != 2 then end", "a ~= b"},
      {"if not 1 !== 2 then end", "a ~= b"},
      {"local x = !true", "not a"},
      {"local x = 1 x += 1", "a = a + b"},
      {"local x = 1 x -= 1", "a = a - b"},
      {"local x = '' x ..= 'a'", "a = a .. b"},
      {"local x = 1 x++", "a = a + 1"},
      {"local x = true && false", "a and b"},
      {"local x = true || false", "a or b"},
      {"local x = 2 ** 3", "a ^ b"},
      {"local x = 1 === 1", "a == b"},
      {"local x = 1 ? 2 : 3", "a and b or c"},
      {"local x = [1, 2]", "{ a, b }"},
      {"local x = { 'a': 1 }", "{ a = b }"},
      {"local x = { a: 1 }", "{ a = b }"},
      {"local x: int = 1", "local a = b"},
      {"let x = 1", "local a = b"},
      {"# a comment", "-- a comment"},
      {"local x = 1\n// a comment", "-- a comment"},
      {"def f(a)", "function f(a) .. end"},
      {"if 1 then\nelif 2 then\nend", "elseif a then"},
      {"import torch", "local a = require \"a\""},
      {"local x = null", "nil"},
      {"local x = None", "nil"},
      {"local x = True", "true"},
      {"local x = False", "false"},
      {"local x = len('a')", "#list"},
      {"local x = max(1, 2)", "math.max"},
  };
  for (const auto& [text, way] : kWays) {
    const std::string hint = std::string(" (in Lua: ") + way + ")";
    EXPECT_TRUE(said(text).ends_with(hint)) << text << ": " << said(text);
  }
  EXPECT_EQ(said("local x = '!= &&' .. )"), "unexpected symbol near ')'");
  EXPECT_EQ(said("local x = 1 != 2 -- x += 1"), "unexpected symbol near '!' (in Lua: a ~= b)");
}

TEST_F(Script, NamesTheFamilyOfABareName) {
  const std::pair<const char*, const char*> kNames[] = {
      {"world", "(here: prun.world)"},
      {"mesh", "(here: prun.mesh)"},
      {"zero3", "(here: prun.zero3)"},
      {"gpt", "(here: prun.models.gpt)"},
      {"bytes", "(here: prun.data.bytes)"},
      {"rmsnorm", "(here: prun.nn.rmsnorm)"},
      {"linear", "(here: prun.linear or prun.nn.linear)"},
      {"zero33", "(did you mean 'prun.zero3'?)"},
      {"world_size", "(here: prun.world)"},
  };
  for (const auto& [name, hint] : kNames)
    EXPECT_EQ(said(std::string("local x = ") + name), "unknown name '" + std::string(name) + "' " + hint);
}

TEST_F(Script, PrintsOnce) {
  const std::string plan = write("once.lua", "print('once')\nerror('end', 0)");
  testing::internal::CaptureStderr();
  ScriptOptions given = options(plan);
  given.help = true;
  run_failing(given);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  for (const char* text : {"once\n", "", ""}) {
    testing::internal::CaptureStderr();
    run_failing(options(plan));
    EXPECT_EQ(testing::internal::GetCapturedStderr(), text);
  }
  print_again();
  testing::internal::CaptureStderr();
  run_failing(options(plan));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "once\n");
}

// A plan may have any name; a file is rejected by its name only if it is no Lua.
TEST_F(Script, RunsAPlanOfAnyName) {
  for (const char* name : {"plan.txt", "plan.json", "plan.py", "plan.yaml", "plan"})
    EXPECT_EQ(run_failing(options(write(name, "error('it runs', 0)"))).message(), "it runs");
  EXPECT_EQ(run_failing(options(write("plan.txt", "local prun = require 'prun'\nx ="))).message(),
            "unexpected symbol near <eof>");
  const auto refused = [this](const char* name, const std::string& text) {
    const std::string plan = write(name, text);
    const Error error = run_failing(options(plan));
    EXPECT_EQ(error.code(), Exit::usage) << name;
    return error.message().substr(plan.size() + 2);
  };
  const std::string end = ", and a plan is a Lua script (`prun init` writes a first one)";
  EXPECT_EQ(refused("train.py", "import torch\n"), " is a Python script" + end);
  EXPECT_EQ(refused("notes.txt", "Some notes.\n"), " is a text" + end);
  EXPECT_EQ(refused("config", "  { \"a\": 1 }"), " is JSON" + end);
  EXPECT_EQ(refused("train", "#!/usr/bin/env python3\nx = [1]\n"), " is a Python script" + end);
  EXPECT_EQ(refused("weights.safetensors", std::string("\1\0\0\0{", 5)), " is weights" + end);
  EXPECT_EQ(refused("data.bin", std::string("a\0b", 3)), " is binary data" + end);
}

struct Endless {
  const char* name;
  const char* text;
};
class EndlessScript : public Script, public testing::WithParamInterface<Endless> {};

TEST_P(EndlessScript, IsStoppedWithItsLine) {
  Error error = failure_of(GetParam().text);
  EXPECT_EQ(error.code(), Exit::script_limit);
  EXPECT_EQ(error.message(), "the script has run for 1 s of processor time, which is its limit");
  EXPECT_EQ(error.site()->line, 2);
}

INSTANTIATE_TEST_SUITE_P(
    All, EndlessScript,
    testing::Values(Endless{"loop", "\nwhile true do end"},
                    Endless{"pcall", "\nwhile true do pcall(function() while true do end end) end"},
                    Endless{"pattern", "\nlocal s = ('a'):rep(1e5); pcall(s.find, s, ('a-'):rep(30) .. 'b')"}),
    [](const auto& test) { return test.param.name; });

TEST_F(Script, IsStoppedWhenItEatsMemory) {
  const std::string text = "the script needs more than 64 MiB of memory, which is its limit";
  for (const char* script : {"\nlocal t = {} for i = 1, 1e9 do t[i] = { i } end", "\nlocal s = ('x'):rep(1e9)",
                             "\nlocal s = 'x' while true do pcall(function() s = s .. s end) end"}) {
    Error error = failure_of(script);
    EXPECT_EQ(error.code(), Exit::script_limit) << script;
    EXPECT_EQ(error.message(), text) << script;
    EXPECT_EQ(error.site()->line, 2) << script;
  }
  // Garbage does not count towards the memory limit.
  EXPECT_EQ(said("for i = 1, 8 do local s = ('x'):rep(1e7) .. i end error('done', 0)"), "done");
}

TEST_F(Script, GoesThroughTablesInOrder) {
  const std::string text = R"(
    local t, names = {}, {}
    for _, key in ipairs { "zebra", "ant", 3, 1, 2.5, true, "middle" } do t[key] = 1 end
    for key in pairs(t) do names[#names + 1] = tostring(key) end
    local key = next(t)
    while key do names[#names + 1] = tostring(key); key = next(t, key) end
    error(table.concat(names, " "), 0))";
  EXPECT_EQ(said(text), "1 2.5 3 ant middle zebra true 1 2.5 3 ant middle zebra true");
  EXPECT_NE(said("for k in pairs { [{}] = 1 } do end").find("have no fixed order"), std::string::npos);
}

TEST_F(Script, NamesTheLineOfATailCall) {
  Error error = failure_of("local prun = require 'prun'\nlocal function f()\n  return prun.mesh { dp = 0 }\nend\nf()");
  EXPECT_EQ(error.site()->line, 3);
  EXPECT_EQ(error.site()->file, (folder_ / "plan.lua").string());
}

TEST_F(Script, LongPathsKeepTheirLines) {
  Error error = run_failing(options(write(std::string(150, 'd') + "/plan.lua", "\n\nlocal x = nil + 1")));
  EXPECT_EQ(error.site()->line, 3);
  EXPECT_EQ(error.message(), "attempt to perform arithmetic on a nil value");
}

TEST_F(Script, ListsArgumentsWithoutRunningThePlan) {
  ScriptOptions help = options(write("plan.lua",
                                     "-- A plan for this test.\nlocal prun = require 'prun'\n"
                                     "prun.args { layers = { 4, 'blocks' }, name = 'x' }\nerror 'never'"));
  help.help = true;
  ScriptResult result = run_script(help);
  EXPECT_EQ(result.description, "A plan for this test.");
  ASSERT_EQ(result.arguments.size(), 2u);
  EXPECT_EQ(result.arguments[0].name, "layers");
  EXPECT_EQ(result.arguments[0].kind, "integer");
  EXPECT_EQ(result.arguments[0].initial, "4");
  EXPECT_EQ(result.arguments[0].help, "blocks");
  EXPECT_EQ(result.arguments[1].initial, "x");
  EXPECT_EQ(result.arguments[1].help, "");
}

TEST_F(Script, PlansOfTheRepositoryAreReadable) {
  for (const char* name : {"zero3", "ddp", "mlp", "ddp_simple", "ddp_example", "collectives", "single"}) {
    ScriptOptions given = options(std::string(PRUN_SOURCE_DIR "/plans/") + name + ".lua");
    given.memory_bytes = 512 << 20;
    given.world = std::string(name) == "single" ? 1 : 4;
    std::string first = run_script(given).plan_cbor, second = run_script(given).plan_cbor;
    EXPECT_EQ(first, second) << name;
    Plan plan = read_plan(first);
    EXPECT_EQ(plan.mesh.ranks(), given.world) << name;
  }
}

// A server handles each script as a process of its own would: bytes, arguments, error positions, limits.
TEST_F(Script, AServerRunsWhatAProcessWouldByItself) {
  std::vector<std::string> plans;
  for (const char* name : {"zero3", "3d", "gpt", "moe", "collectives"})
    plans.push_back(std::string(PRUN_SOURCE_DIR "/plans/") + name + ".lua");
  write("wide.lua", "return { width = 0 / 0 }");
  const std::string head = "local prun = require 'prun'\n";
  int number = 0;
  for (const char* text :
       {"prun.gtp()", "error('here', 0)", "while true do end", "local t = {} while true do t = { t } end",
        "return prun.plan {}", "prun.zero3 { axs = 'dp' }", "error(require('wide').width)", "x = = 1"})
    plans.push_back(write("served" + std::to_string(number++) + ".lua", head + text));
  const auto say = [&] {
    std::vector<std::string> said;
    for (const std::string& path : plans) {
      ScriptOptions given = options(path);
      given.world = 8;
      if (path.starts_with(PRUN_SOURCE_DIR)) given.memory_bytes = 512 << 20;
      try {
        said.push_back(run_script(given).plan_cbor);
      } catch (const Error& error) {
        said.push_back(std::to_string(static_cast<int>(error.code())) + " " + error.what());
      }
    }
    return said;
  };
  const std::vector<std::string> alone = say();
  std::vector<std::string> served;
  {
    const ScriptServer server(PRUN_SOURCE_DIR "/lua");
    ASSERT_EQ(ScriptServer::current(), &server);
    served = say();
    EXPECT_EQ(ScriptServer::current(), &server) << "it has died";
    const ScriptServer second(PRUN_SOURCE_DIR "/lua");
    EXPECT_EQ(ScriptServer::current(), &server);
  }
  EXPECT_EQ(ScriptServer::current(), nullptr);
  for (size_t i = 0; i < plans.size(); ++i) EXPECT_EQ(alone[i], served[i]) << plans[i];
}

// One script records a plan at several sizes; each result equals that of recording the size alone.
TEST_F(Script, OtherSizesAreRecordedBesideTheFirst) {
  ScriptOptions given = options(PRUN_SOURCE_DIR "/plans/gpt.lua");
  given.memory_bytes = 512 << 20;
  given.world = 8;
  given.settings = {{"pp", "4"}, {"layers", "12"}, {"batch", "32"}};
  const auto sizes = [](int stages, int microbatches) {
    return PlanSizes{{{"pp", stages}, {"dp", 2}, {"cp", 1}, {"tp", 1}}, microbatches, 2 * microbatches};
  };
  given.sizes = sizes(2, 3);
  given.more_sizes = {sizes(3, 4), sizes(2, 5)};
  const std::vector<Plan> together = read_plans(run_script(given).plan_cbor);
  ASSERT_EQ(together.size(), 3U);
  const std::vector<PlanSizes> all = {*given.sizes, given.more_sizes[0], given.more_sizes[1]};
  given.more_sizes.clear();
  for (size_t i = 0; i < all.size(); ++i) {
    given.sizes = all[i];
    const Plan alone = read_plan(run_script(given).plan_cbor);
    EXPECT_EQ(together[i].mesh, alone.mesh) << i;
    EXPECT_EQ(together[i].microbatches, alone.microbatches) << i;
    EXPECT_EQ(together[i].data.global_batch, alone.data.global_batch) << i;
    EXPECT_EQ(together[i].graph.nodes.size(), alone.graph.nodes.size()) << i;
    ASSERT_EQ(together[i].pipeline->turns.size(), alone.pipeline->turns.size()) << i;
    for (size_t rank = 0; rank < alone.pipeline->turns.size(); ++rank)
      EXPECT_EQ(together[i].pipeline->turns[rank].size(), alone.pipeline->turns[rank].size()) << i << " " << rank;
  }
}

TEST_F(Script, StubsForEditorsAreUpToDate) {
  for (const auto& [name, of_models] : {std::pair("stubs", "false"), std::pair("model_stubs", "true")}) {
    const std::string path = fmt::format(PRUN_SOURCE_DIR "/lua/prun/{}.lua", name);
    const std::string text = said(fmt::format("error(require('prun.stub_writer')({}), 0)", of_models));
    if (getenv("PRUN_UPDATE") != nullptr) std::ofstream(path) << text;
    std::ifstream file(path);
    const std::string found{std::istreambuf_iterator<char>(file), {}};
    EXPECT_TRUE(found == text) << "run PRUN_UPDATE=1 script_test --gtest_filter=*Stubs*, and read the diff";
  }
}

TEST_F(Script, EveryOptionOfEveryWordIsTypedAndRanged) {
  ScriptOptions walk = options(PRUN_SOURCE_DIR "/tests/unit/words_walk.lua");
  walk.memory_bytes = 512 << 20;
  walk.cpu_seconds = 10;
  EXPECT_EQ(run_failing(walk).message(), "all refused");
}

TEST_F(Script, TiedHeadCallsTheEmbeddingTwice) {
  std::string plan_path = write("plan.lua", R"(
    local prun = require "prun"
    return prun.plan {
      mesh = prun.mesh {},
      model = prun.models.gpt { vocab = 300, layers = 1, width = 8, heads = 2, context = 4, tied = true },
      data = prun.data.bytes { path = "text/sample.txt", batch = 2 },
      optimizer = prun.sgd {},
    })");
  Plan plan = read_plan(run_script(options(plan_path)).plan_cbor);
  ASSERT_EQ(plan.graph.units.size(), 3u);
  ASSERT_EQ(plan.graph.calls.size(), 4u);
  EXPECT_EQ(plan.graph.calls.front().unit, plan.graph.calls.back().unit);
  EXPECT_EQ(plan.graph.nodes.back().call, 3);
  EXPECT_EQ(plan.data.vocab, 256);
}

TEST_F(Script, EqualRanksAreOneClass) {
  std::string plan_path = write("plan.lua", R"(
    local prun = require "prun"
    return prun.program(function(r)
      prun.all_reduce(prun.full({ 2 }, r.rank == 0 and 1 or 2), "sum")
    end))");
  ScriptOptions given = options(plan_path);
  given.world = 4;
  Plan plan = read_plan(run_script(given).plan_cbor);
  EXPECT_EQ(plan.programs.size(), 2u);
  EXPECT_EQ(plan.program_of_rank, (std::vector<int>{0, 1, 1, 1}));
}

// The garbage is several times the memory limit.
TEST_F(Script, GarbageIsCollected) {
  ScriptOptions given = options(write("plan.lua", R"(
    for i = 1, 4000000 do local garbage = { i } end
    error("done"))"));
  given.cpu_seconds = 10;
  EXPECT_EQ(run_failing(given).message(), "done");
}

// Records a model twice: once with units of one class, where a call may be recorded as repeating an earlier one, and
// once with a class for each unit, where none may. The graphs must be equal.
TEST_F(Script, CallsThatFollowOthersAreWhatTheyWouldBeAlone) {
  const std::string path = write("plan.lua", R"lua(
    local prun = require "prun"
    local nn = prun.nn
    local arg = prun.args { ending = "" }
    local function layer(i, x, skip)
      return nn.unit("layer" .. i .. arg.ending, function()
        local y = nn.linear("up", nn.layernorm("ln", x), i == 4 and 24 or 16, { bias = i ~= 5 })
        if i == 6 then y = nn.tanh(y) else y = nn.gelu(y) end
        y = nn.linear("down", y, 8, { init = { "normal", i == 7 and 0.5 or 0.02 } })
        if i % 2 == 1 then y = nn.relu(nn.scale(y, 2)) end
        if i == 12 then y = nn.linear("down2", y, 8) end
        return x + nn.scale(y, i == 8 and 0.25 or 0.5) + (i == 9 and x or skip)
      end)
    end
    return prun.plan {
      mesh = prun.mesh { dp = 1 }, steps = 1, data = prun.data.random { inputs = 8, outputs = 8, batch = 2 },
      strategy = { prun.ddp { axis = "dp" } }, optimizer = prun.sgd { lr = 0.1 },
      model = function(batch)
        local first = nn.unit("first" .. arg.ending, function() return nn.linear("fc", batch.x, 8) end)
        local x = first
        for i = 0, 15 do
          x = layer(i, x, i > 13 and x or first)
          if i == 10 then x = nn.relu(x) end
        end
        x = nn.again("layer2" .. arg.ending, function() return nn.linear("more", x, 8) end)
        for i = 0, 2 do
          x = nn.unit("tied" .. i .. arg.ending, function()
            return nn.linear("fc", x, 8, { weight = nn.parameter("w", { 8, 8 }, { "normal", 0.1 }) })
          end)
        end
        return prun.losses.mse(x, batch.y)
      end,
    })lua");
  const auto record = [&](const std::string& ending) {
    ScriptOptions given = options(path);
    given.settings["ending"] = ending;
    return run_script(given).plan_cbor;
  };
  const std::string listed = record("x"), followed = record("");
  EXPECT_LT(followed.size(), listed.size() * 3 / 4);
  const Graph a = read_plan(listed).graph, b = read_plan(followed).graph;
  const auto without_ending = [](std::string name) {
    const size_t dot = name.find('.');
    if (dot != std::string::npos && dot > 0 && name[dot - 1] == 'x') name.erase(dot - 1, 1);
    return name;
  };
  ASSERT_EQ(a.values.size(), b.values.size());
  for (const ValueId id : a.values.ids()) {
    const Value &left = a.values[id], &right = b.values[id];
    EXPECT_EQ(without_ending(left.name), right.name);
    EXPECT_EQ(left.type.shape, right.type.shape) << right.name;
    EXPECT_EQ(left.kind, right.kind) << right.name;
    EXPECT_EQ(left.unit, right.unit) << right.name;
    EXPECT_EQ(left.init.kind, right.init.kind) << right.name;
    EXPECT_EQ(left.init.scale, right.init.scale) << right.name;
    EXPECT_EQ(left.site, right.site) << right.name;
  }
  ASSERT_EQ(a.nodes.size(), b.nodes.size());
  for (size_t i = 0; i < a.nodes.size(); ++i) {
    EXPECT_EQ(a.nodes[i].op, b.nodes[i].op) << i;
    EXPECT_EQ(a.nodes[i].inputs, b.nodes[i].inputs) << i;
    EXPECT_EQ(a.nodes[i].outputs, b.nodes[i].outputs) << i;
    EXPECT_EQ(a.nodes[i].attrs, b.nodes[i].attrs) << i;
    EXPECT_EQ(a.nodes[i].call, b.nodes[i].call) << i;
    EXPECT_EQ(a.nodes[i].site, b.nodes[i].site) << i;
  }
  for (const UnitId id : a.units.ids()) EXPECT_EQ(a.units[id].parameters, b.units[id].parameters) << b.units[id].name;
  EXPECT_EQ(a.loss, b.loss);
}

// Runs in a process of its own because the filter cannot be removed.
TEST(SystemCalls, OnlyReadingIsLeft) {
#ifndef PRUN_SECCOMP
  GTEST_SKIP() << "built without libseccomp";
#endif
  pid_t child = fork();
  if (child == 0) {
    forbid_system_calls();
    int failures = 0;
    if (open("/dev/null", O_RDONLY | O_CLOEXEC) < 0) failures |= 1;
    if (open("/tmp/prun_script_test", O_WRONLY | O_CREAT, 0600) >= 0 || errno != EPERM) failures |= 2;
    if (open("/dev/null", O_RDWR) >= 0 || errno != EPERM) failures |= 4;
    if (socket(AF_UNIX, SOCK_STREAM, 0) >= 0 || errno != EPERM) failures |= 8;
    if (fork() >= 0 || errno != EPERM) failures |= 16;
    if (unlink("/tmp/prun_script_test") == 0 || errno != EPERM) failures |= 32;
    _exit(failures);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace prun
