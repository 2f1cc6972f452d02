// prun_conform, started by `prun conform`: the suite for any plugin, one line per item, status 0 if all claimed items
// hold. Separate from prun, so that only this program needs GoogleTest.
//
//     prun_conform --transport=NAME --plugin-dir=DIR ... [--options=key=value,...] [--json] [ITEM[:CASE] ...]
//
// Each item is a child process, so a plugin that crashes while loading affects only that item.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/text.h"
#include "comm/transport/plugin.h"
#include "tests/conformance/items.h"
#include "tests/conformance/suite.h"

namespace prun::testing {
namespace {

// Items 1 to 12, as the tests number them, and later additions.
constexpr Item kItems[] = {
    {"load", "Open.*", "loads, opens, connects and closes; no descriptor, thread or memory is left"},
    {"messages", "PointToPoint.*-*SizesThatDiffer*",
     "every size and alignment, 4 GiB and more, to itself, lanes, 10,000 at a time"},
    {"collectives", "Ranks/Collectives.*:Broadcasts.*:*LongWaits*",
     "every kind, type, operation, root and count on 1 to 16 ranks; no minimum or maximum loses a NaN"},
    {"bitwise", "Ranks/Bitwise.*", "the same bits on all ranks, every time, and in rank order"},
    {"groups", "Groups.*-*Threads*", "overlapping, reversed, single, 64 at once, made and freed 10,000 times"},
    {"threads", "Groups.*Threads*", "several groups from several threads, in random legal orders"},
    {"faults", "*Killed*:Faults.*:Abort.*",
     "killed, stopped, late and absent ranks, abort: in time, with the rank's name"},
    {"misuse", "*Misuse*:*SizesThatDiffer*", "sizes, types and calls that differ are errors, never data"},
    {"environment", "Environment.*", "8 ranks on one core; few descriptors, little /dev/shm, no ptrace"},
    {"idle", "Idle.*:Delays.*", "ranks that wait use no core; calls that come late change nothing"},
    {"queue", "Queue.*", "work stays in the order of its queue"},
    {"guards", "Guards.*", "nothing beside the buffers, and no input, is written"},
    {"one-sided", "OneSided.*:Puts.*", "put, get and signals, by the plugins that have them"},
    {"secret", "Secret.*", "a rank with another secret than the job's is not connected"},
};
constexpr unsigned kItemSeconds = 600;

// Returns the GoogleTest filter of a case such as "LanesPassEachOther" in any suite. Throws usage_error.
std::string filter_of_case(const std::string& name) {
  std::vector<std::string> known;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s)
    for (int t = 0; t < all.GetTestSuite(s)->total_test_count(); ++t) {
      const std::string full = all.GetTestSuite(s)->GetTestInfo(t)->name();
      if (known.empty() || known.back() != full.substr(0, full.find('/')))
        known.push_back(full.substr(0, full.find('/')));
    }
  if (std::find(known.begin(), known.end(), name) == known.end())
    throw usage_error(fmt::format("prun conform: there is no case '{}'{}", name, did_you_mean(name, known)));
  return fmt::format("*.{0}:*.{0}/*", name);
}

int conform_transport(const std::vector<std::string>& words, bool json) {
  const PluginFile file = find_named(suite().transport, suite().plugin_dirs);
  std::vector<std::string> chosen;
  std::map<std::string, std::string> filters;  // of items with only some cases chosen
  for (const std::string& word : words) {
    const auto [item, name] = split_case(word);
    chosen.push_back(item);
    if (!name.empty()) filters[item] += (filters[item].empty() ? "" : ":") + filter_of_case(name);
  }
  check_items(chosen, kItems, "prun conform");
  check_items(file.not_claimed, kItems, file.path + "'s manifest");
  return conform({file.name, file.path, file.not_claimed, json}, kItems, chosen, [&](const Item& item) {
    const auto filter = filters.find(item.name);
    return run_cases(filter != filters.end() ? filter->second : item.filter, kItemSeconds,
                     chosen.empty() || json ? Show::nothing : Show::all);
  });
}

}  // namespace
}  // namespace prun::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  prun::testing::Suite& suite = prun::testing::suite();
  suite.job_id = "conform" + std::to_string(getpid());
  std::vector<std::string> items;
  bool json = false;
  for (int i = 1; i < argc; ++i) {
    std::string_view arg = argv[i];
    auto value_of = [&](std::string_view option) {
      return arg.substr(0, option.size()) == option ? std::optional(std::string(arg.substr(option.size())))
                                                    : std::nullopt;
    };
    if (auto transport = value_of("--transport="))
      suite.transport = *transport;
    else if (auto dir = value_of("--plugin-dir="))
      suite.plugin_dirs.push_back(*dir);
    else if (auto options = value_of("--options="))
      suite.transport_options = *options;
    else if (arg == "--json")
      json = true;
    else
      items.emplace_back(arg);
  }
  try {
    return prun::testing::conform_transport(items, json);
  } catch (const prun::Error& error) {
    fmt::print(stderr, "prun: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
