// Item 1 as far as it is the plugin's: it loads, refuses options that it does not know, and leaves nothing behind.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/conformance/suite.h"

namespace prun::testing {
namespace {

int entries_of(const char* folder) {
  std::error_code none;
  return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder, none), {}));
}
struct Held {
  int descriptors, threads;
};
Held held() { return {entries_of("/proc/self/fd"), entries_of("/proc/self/task")}; }

TEST(Open, SaysWhatItIs) {
  std::vector<PluginInfo> infos = list_plugins(suite().plugin_dirs);
  auto info = std::find_if(infos.begin(), infos.end(), [](const PluginInfo& i) { return i.name == suite().transport; });
  ASSERT_NE(info, infos.end());
  EXPECT_EQ(info->error, "");
  EXPECT_NE(info->version, "");
  EXPECT_NE(info->summary, "");
}

TEST(Open, OpeningAndClosingLeavesNothing) {
  LocalJob job;
  job.timeout_s = 300;
  auto reports = run_ranks(job, [](LocalBootstrap& bootstrap) -> std::string {
    WorldOptions options = suite().options(bootstrap);
    options.ranks = options.local_ranks = 2;  // opened, never connected
    World::open(options, bootstrap);
    Held before = held();
    for (int i = 0; i < (suite().whole ? 1000 : 200); ++i) World::open(options, bootstrap)->allocate(4096);
    Held after = held();
    if (after.descriptors != before.descriptors)
      return fmt::format("{} descriptors became {}", before.descriptors, after.descriptors);
    if (after.threads != before.threads) return fmt::format("{} threads became {}", before.threads, after.threads);
    return "";
  });
  EXPECT_EQ(failures(reports), "");
}

TEST(Open, UnknownOptionIsAUsageError) {
  LocalJob job;
  job.ranks = 2;
  auto reports = run_ranks(job, [](LocalBootstrap& bootstrap) -> std::string {
    WorldOptions options = suite().options(bootstrap);
    options.transport_options = "no_such_option=1";
    try {
      World::open(options, bootstrap);
    } catch (const Error& error) {
      bool named = std::string(error.what()).find("no_such_option") != std::string::npos;
      return error.code() == Exit::usage && named ? "" : error.what();
    }
    return "opened";
  });
  EXPECT_EQ(failures(reports), "");
}

}  // namespace
}  // namespace prun::testing
