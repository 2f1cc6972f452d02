// Item 1, the core's part: loading and rejecting plugins, and the error texts.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "comm/transport/job_state.h"
#include "comm/transport/plugin.h"
#include "tests/conformance/suite.h"

namespace prun::testing {
namespace {
namespace fs = std::filesystem;

const std::string kBad = std::string(PRUN_TEST_PLUGINS) + "/bad";

// Returns the error of loading this test plugin, or "" if it is accepted.
std::string refusal(const std::string& name, Exit want = Exit::transport) {
  try {
    load_named(name, {kBad});
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), want) << error.what();
    std::string text = error.message();
    if (text.rfind(kBad + "/", 0) == 0) text.erase(0, kBad.size() + 1);
    return text;
  }
}

class TemporaryDir {
 public:
  TemporaryDir() {
    char pattern[] = "/tmp/prun_conformance_XXXXXX";
    path = mkdtemp(pattern);
  }
  ~TemporaryDir() { fs::remove_all(path); }
  std::string path;
};

TEST(Load, RefusesWithASentenceForEachReason) {
  EXPECT_EQ(refusal("future"),
            "future.so: written for transport ABI 2, this prun has 1: use a newer prun or an older plugin");
  EXPECT_EQ(refusal("past"),
            "past.so: written for transport ABI 0, which this prun (1) no longer has: rebuild the plugin");
  EXPECT_EQ(refusal("tiny"), "tiny.so: its table of 8 bytes is too short to be one");
  EXPECT_EQ(refusal("missing"), "missing.so: the mandatory function 'batch' is missing");
  EXPECT_EQ(refusal("bits"), "bits.so: needs features that this prun does not have (bits 0x4)");
  EXPECT_EQ(refusal("nameless"), "nameless.so: it has no name or no version");
  EXPECT_EQ(refusal("null"), "null.so: it cannot work with this prun (its log line says why)");
  EXPECT_EQ(refusal("no_symbol"), "no_symbol.so: no prun transport: it has no symbol prun_transport_v1");
}

TEST(Load, RefusesWhatIsNoSharedObject) {
  TemporaryDir dir;
  std::ofstream(dir.path + "/text.so") << "not a shared object";
  try {
    load_named("text", {dir.path});
    FAIL() << "loaded a text file";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::transport);
    EXPECT_EQ(error.message().find(dir.path + "/text.so: cannot be loaded: "), 0u) << error.what();
  }
}

TEST(Load, TakesShorterAndLongerTables) {
  EXPECT_EQ(refusal("longer"), "");
  EXPECT_EQ(refusal("shorter"), "");
  prun_transport table = load_named("shorter", {kBad}).table;
  EXPECT_EQ(table.wait_fd, nullptr);
  EXPECT_EQ(table.ext, nullptr);
}

TEST(Load, UnknownNameListsWhatIsThere) {
  EXPECT_EQ(refusal("missin", Exit::usage),
            "unknown transport 'missin' (did you mean 'missing'?); found: bits, future, longer, missing, nameless, "
            "no_symbol, null, "
            "past, shorter, tiny");
  try {
    load_named("shm", {"/nonexistent"});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "unknown transport 'shm': there is no plugin in /nonexistent");
  }
}

TEST(Load, RefusesADirectoryThatEverybodyCanWriteTo) {
  TemporaryDir dir;
  chmod(dir.path.c_str(), 0777);
  try {
    find_plugins({dir.path});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_EQ(error.message(),
              dir.path + ": all users may write to it, so prun loads no plugin from there (chmod o-w)");
  }
}

TEST(Load, RefusesADirectoryInOneThatOthersCanWriteTo) {
  TemporaryDir dir;
  const std::string inside = dir.path + "/inside";
  mkdir(inside.c_str(), 0755);
  const auto message = [&] {
    try {
      find_plugins({inside});
    } catch (const Error& error) {
      return std::string(error.message());
    }
    return std::string();
  };
  chmod(dir.path.c_str(), 0777);
  EXPECT_EQ(message(),
            inside + ": all users may write to " + dir.path + ", so prun loads no plugin from there (chmod o-w)");
  chmod(dir.path.c_str(), 01777);
  EXPECT_EQ(message(), "") << "sticky, as /tmp";
  chmod(dir.path.c_str(), 0775);
  if (geteuid() != 0) return;  // only root can change owners
  ASSERT_EQ(chown(dir.path.c_str(), 0, 100), 0);
  EXPECT_EQ(message(),
            inside + ": group 100 may write to " + dir.path + ", so prun loads no plugin from there (chmod g-w)");
  ASSERT_EQ(chown(inside.c_str(), 65534, 0), 0);
  EXPECT_EQ(message(), inside + ": it belongs to user 65534, so prun loads no plugin from there");
}

TEST(Load, ListsPluginsWithWhatIsWrong) {
  std::vector<PluginInfo> infos = list_plugins({kBad, PRUN_TEST_PLUGINS});
  auto named = [&](const std::string& name) {
    return *std::find_if(infos.begin(), infos.end(), [&](const PluginInfo& i) { return i.name == name; });
  };
  EXPECT_EQ(named("missing").error, kBad + "/missing.so: the mandatory function 'batch' is missing");
  EXPECT_EQ(named("pipe").error, "");
  EXPECT_EQ(named("pipe").version, "1.0.0");
  EXPECT_EQ(named("pipe").capabilities, (std::vector<std::string>{"host", "local only"}));
}

// Only plugins whose manifest offers them are loaded, and the best of these wins.
TEST(Load, AutoLoadsOnlyWhatOffersItself) {
  TemporaryDir dir;
  fs::create_symlink(std::string(PRUN_TEST_PLUGINS) + "/pipe.so", dir.path + "/pipe.so");
  std::ofstream(dir.path + "/pipe.plugin") << "auto = 1\nlocal_only = 1\nmemory = host\n";
  for (const char* other : {"shorter", "longer", "missing"}) {
    fs::create_symlink(kBad + "/" + other + ".so", dir.path + "/" + other + ".so");
  }
  std::ofstream(dir.path + "/shorter.plugin") << "auto = 1\nmemory = cuda\n";
  std::ofstream(dir.path + "/longer.plugin") << "auto = 0\nmemory = host\n";
  LocalJob job;
  job.ranks = 2;
  auto reports = run_ranks(job, [&](LocalBootstrap& bootstrap) -> std::string {
    auto mapped = [](const std::string& name) {
      std::ifstream maps("/proc/self/maps");
      for (std::string line; std::getline(maps, line);) {
        if (line.size() > name.size() && line.compare(line.size() - name.size(), name.size(), name) == 0) return true;
      }
      return false;
    };
    bool before = mapped("/longer.so");  // by an earlier test of this process
    WorldOptions options = suite().options(bootstrap);
    options.transport = "auto";
    options.transport_options = "";
    options.plugin_dirs = {dir.path};
    auto world = World::open(options, bootstrap);
    world->connect();
    bootstrap.barrier();
    if (world->transport_name() != "pipe") return "chose " + world->transport_name();
    return !before && mapped("/longer.so") ? "loaded a plugin that nobody asked for" : "";
  });
  EXPECT_EQ(failures(reports), "");
}

TEST(Load, OneRankNeedsNoPlugin) {
  LocalJob job;
  auto reports = run_ranks(job, [](LocalBootstrap& bootstrap) -> std::string {
    WorldOptions options;
    auto world = World::open(options, bootstrap);
    auto* memory = static_cast<char*>(world->allocate(1 << 20));
    world->connect();
    CollCall call;
    float value = 3;
    call.kind = CollKind::all_reduce;
    call.redop = RedOp::avg;
    call.send = call.recv = &value;
    call.count = 1;
    world->communicator({0}, 0).run(call);
    if (memory[12345] != 0 || reinterpret_cast<uintptr_t>(memory) % 64 != 0) return "memory";
    return value == 3 && world->transport_name() == "none" ? "" : "wrong";
  });
  EXPECT_EQ(failures(reports), "");
}

// The join check: ranks with different options are detected before any message.
TEST(Load, DifferentOptionsAreFoundWhenJoining) {
  if (suite().transport != "pipe") GTEST_SKIP() << "which options exist is the plugin's business";
  LocalJob job;
  job.ranks = 3;
  auto reports = run_ranks(job, [](LocalBootstrap& bootstrap) -> std::string {
    WorldOptions options = suite().options(bootstrap);
    if (bootstrap.rank() == 1) options.transport_options = "quiet=1";
    auto world = World::open(options, bootstrap);
    try {
      world->connect();
    } catch (const Error& error) {
      bool right =
          error.message() ==
          "the value of the transport options is not the same on all ranks: '' on ranks 0, 2; 'quiet=1' on rank 1";
      return error.code() == Exit::join && right ? "" : error.what();
    }
    return "joined";
  });
  EXPECT_EQ(failures(reports), "");
}

}  // namespace
}  // namespace prun::testing
