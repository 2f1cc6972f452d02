// prun_conform_device, started by `prun conform` for devices: the suite for any device, one line per item, status 0 if
// all items hold.
//
//     prun_conform_device --device=NAME [--index=N] [--options=key=value,...] [--seconds=N] [--json] [ITEM[:CASE] ...]
//
// Each case is a child process that loads and opens the device itself, because a driver's state does not survive a
// fork, and so that cases cannot affect each other.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "tests/conformance/device/suite.h"
#include "tests/conformance/items.h"

namespace prun::testing {
namespace {

// `filter` lists the suites, separated by commas.
constexpr Item kItems[] = {
    {"load", "Load", "loads, says what it is and what is there; opens and closes, and nothing is left"},
    {"memory", "Memory", "aligned, apart, given back; too much is an error; pinned memory is the host's"},
    {"copies", "Copies", "between any two places, of every size and offset, exactly these bytes, in their turn"},
    {"streams", "Streams", "work runs in order, and nobody waits who enqueues it"},
    {"events", "Events", "wait for all before them, for nothing later, and order streams among each other"},
    {"host-calls", "HostCalls", "come once each, in their place in the stream"},
    {"capture", "Capture", "is run when it is launched, as often, with its edges and what is in memory then"},
    {"ops", "Ops", "every op that it has, in every type, as the reference device computes it in f64"},
    {"bits", "Bits", "the same bits in every run, and captured those of eager"},
    {"ranks", "Ranks", "several processes share a device; every device works; two are open at once"},
    {"threads", "Threads", "each call from any thread; tests and questions from others meanwhile"},
    {"errors", "Errors", "are said in words, and leave the device usable"},
};

struct Settings {
  std::vector<std::string> items, cases;  // a case of the item at the same index, or ""
  bool json = false;
  bool verbose() const { return !items.empty() && !json; }
};

struct Known {
  std::string filter, shown, name;  // "Each/Ops.Agrees/linear", "Ops.Agrees/linear", "linear"
};

std::vector<Known> cases_of(const Item& item) {
  std::vector<Known> known;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& tests = *all.GetTestSuite(s);
    const std::string full = tests.name(), bare = full.substr(full.find('/') + 1);
    if (bare != item.filter) continue;
    for (int t = 0; t < tests.total_test_count(); ++t) {
      const std::string test = tests.GetTestInfo(t)->name();
      known.push_back({full + "." + test, bare + "." + test, test.substr(test.find('/') + 1)});
    }
  }
  return known;
}

// Returns text such as "1 case not tried: it captures nothing"; for missing ops, their names.
std::string left_out(const std::vector<std::string>& skipped, const Item& item) {
  if (skipped.empty()) return "";
  const bool ops = std::string_view(item.name) == "ops";
  return (ops ? "; it has no " : "; not tried: ") + join(skipped, ", ");
}

bool is_chosen(const Known& known, const Item& item, const Settings& settings) {
  bool named = false;
  for (size_t i = 0; i < settings.items.size(); ++i) {
    if (settings.items[i] != item.name || settings.cases[i].empty()) continue;
    named = true;
    if (known.name == settings.cases[i]) return true;
  }
  return !named;
}

Outcome run_item(const Item& item, const Settings& settings) {
  std::vector<std::string> failed, skipped;
  std::string first;
  bool any = false;
  for (const Known& known : cases_of(item)) {
    if (!is_chosen(known, item, settings)) continue;
    Outcome outcome =
        run_cases(known.filter, device_suite().seconds, settings.verbose() ? Show::plugin : Show::nothing);
    if (!outcome.holds) {
      outcome.text = known.shown + ": " + outcome.text;
      if (failed.empty()) first = outcome.text;
      failed.push_back(known.shown);
    } else if (!outcome.claimed) {
      const std::string why =
          outcome.text.substr(std::min(outcome.text.size(), std::string_view("; not tried: ").size()));
      if (std::find(skipped.begin(), skipped.end(), why) == skipped.end()) skipped.push_back(why);
    }
    any = any || outcome.claimed;
    if (settings.verbose())
      fmt::print("   {:<11} {}\n",
                 !outcome.holds    ? "FAILED"
                 : outcome.claimed ? "ok"
                                   : "not claimed",
                 !outcome.holds ? outcome.text : known.shown);
    if (outcome.late) return {false, true, first + "; the cases after it were not tried"};
  }
  if (failed.empty()) return {true, any, left_out(skipped, item)};
  if (failed.size() == 1) return {false, true, first};
  failed.erase(failed.begin());
  return {false, true, fmt::format("{}; and {} more: {}", first, failed.size(), join(failed, ", "))};
}

void check_cases(const Settings& settings) {
  check_items(settings.items, kItems, "prun conform");
  for (size_t i = 0; i < settings.items.size(); ++i) {
    if (settings.cases[i].empty()) continue;
    const Item& item = *std::find_if(std::begin(kItems), std::end(kItems),
                                     [&](const Item& known) { return settings.items[i] == known.name; });
    std::vector<std::string> names;
    for (const Known& known : cases_of(item)) names.push_back(known.name);
    if (std::find(names.begin(), names.end(), settings.cases[i]) == names.end())
      throw usage_error(fmt::format("prun conform: the item {} has no case '{}'{}", item.name, settings.cases[i],
                                    did_you_mean(settings.cases[i], names)));
  }
}

std::string path_of(const std::string& name) {
  for (const DevicePluginFile& file : find_device_plugins())
    if (file.name == name) return file.path;
  return name;
}

int conform_device(const Settings& settings) {
  check_cases(settings);
  const std::string& name = device_suite().name;
  return conform({name, path_of(name), {}, settings.json}, kItems, settings.items,
                 [&](const Item& item) { return run_item(item, settings); });
}

}  // namespace
}  // namespace prun::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  prun::testing::Settings settings;
  prun::testing::DeviceSuite& suite = prun::testing::device_suite();
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const auto value_of = [&](std::string_view option) {
      return arg.starts_with(option) ? std::optional(std::string(arg.substr(option.size()))) : std::nullopt;
    };
    if (const auto device = value_of("--device="))
      suite.name = *device;
    else if (const auto index = value_of("--index="))
      suite.index = std::atoi(index->c_str());
    else if (const auto options = value_of("--options="))
      suite.options = *options;
    else if (const auto seconds = value_of("--seconds="))
      suite.seconds = static_cast<unsigned>(std::atoi(seconds->c_str()));
    else if (arg == "--json")
      settings.json = true;
    else {
      const auto [item, name] = prun::testing::split_case(std::string(arg));
      settings.items.push_back(item);
      settings.cases.push_back(name);
    }
  }
  try {
    return prun::testing::conform_device(settings);
  } catch (const prun::Error& error) {
    fmt::print(stderr, "prun: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
