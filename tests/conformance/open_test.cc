// Item 1, the plugin's part: it loads, rejects unknown options, and leaves nothing behind.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/conformance/suite.h"

namespace prun::testing {
namespace {

TEST(Open, SaysWhatItIs) {
  std::vector<PluginInfo> infos = list_plugins(suite().plugin_dirs);
  auto info = std::find_if(infos.begin(), infos.end(), [](const PluginInfo& i) { return i.name == suite().transport; });
  ASSERT_NE(info, infos.end());
  EXPECT_EQ(info->error, "");
  EXPECT_NE(info->version, "");
  EXPECT_NE(info->summary, "");
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
    return "the plugin opened with an option that it does not have";
  });
  EXPECT_EQ(failures(reports), "");
}

}  // namespace
}  // namespace prun::testing
