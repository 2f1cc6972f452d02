// prun_conform, what `prun conform` starts: the suite for anybody's plugin, one line an item, status 0 if all that the
// plugin claims holds. Apart from prun, so that only this program needs GoogleTest.
//
//     prun_conform --transport=NAME --plugin-dir=DIR ... [--options=key=value,...] [ITEM ...]
//
// Surprising fact: each item is a child process. A plugin that crashes while it is loaded costs that item, no more.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstring>
#include <optional>

#include "base/text.h"
#include "comm/plugin.h"
#include "tests/conformance/suite.h"

namespace prun::testing {
namespace {

struct Item {
  const char* name;
  const char* filter;  // its cases, as GoogleTest selects them
  const char* holds;   // what is known then
};
// TRANSPORTS' twelve, in its order, and what is optional.
constexpr Item kItems[] = {
    {"load", "Open.*", "loads, opens and closes; no descriptor or thread is left"},
    {"messages", "PointToPoint.*-*SizesThatDiffer*",
     "every size and alignment, 2 GiB and more, to itself, lanes, 10,000 at a time"},
    {"collectives", "Ranks/Collectives.*", "every kind, type, operation, root and count on 1 to 16 ranks"},
    {"bitwise", "Ranks/Bitwise.*", "the same bits on all ranks, every time, and in rank order"},
    {"groups", "Groups.*-*Threads*", "overlapping, reversed, single, 64 at once, made and freed 10,000 times"},
    {"threads", "Groups.*Threads*", "several groups from several threads, in random legal orders"},
    {"faults", "*Killed*:Faults.*", "killed, stopped, late and absent ranks, abort: in time, with the rank's name"},
    {"misuse", "*Misuse*:*SizesThatDiffer*", "sizes, types and calls that differ are errors, never data"},
    {"environment", "Environment.*", "8 ranks on one core; few descriptors, little /dev/shm, no ptrace"},
    {"idle", "Idle.*:Delays.*", "ranks that wait use no core; calls that come late change nothing"},
    {"queue", "Queue.*", "work stays in the order of its queue"},
    {"guards", "Guards.*", "nothing beside the buffers, and no input, is written"},
    {"one-sided", "OneSided.*:Puts.*", "put, get and signals, by the plugins that have them"},
};
constexpr unsigned kItemSeconds = 600;
constexpr int kFailed = 1, kNothingRan = 77;

// "a \n  b" -> "a b", not longer than a line or two.
std::string one_line(const std::string& text) {
  std::string line;
  for (char c : text) {
    bool space = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (!space)
      line += c;
    else if (!line.empty() && line.back() != ' ')
      line += ' ';
  }
  constexpr size_t kMost = 300;
  return line.size() > kMost ? line.substr(0, kMost) + " ..." : line;
}

// What the ranks reported, without GoogleTest's words around it.
std::string reason_of(const std::string& summary) {
  constexpr std::string_view kBefore = "Which is: \"";
  size_t begin = summary.find(kBefore);
  if (begin == std::string::npos) return one_line(summary);
  begin += kBefore.size();
  std::string text = summary.substr(begin, summary.find("\"\n", begin) - begin);
  for (size_t at = 0; (at = text.find("\\n", at)) != std::string::npos;) text.replace(at, 2, " ");
  return one_line(text);
}

// Tells the parent of the first failure, or of what was not tried, and why.
class FirstFailure : public ::testing::EmptyTestEventListener {
 public:
  explicit FirstFailure(int fd) : fd_(fd) {}
  // Kept here: GoogleTest holds its lock while it tells of a result, and asking it for the test would wait for ever.
  void OnTestStart(const ::testing::TestInfo& test) override {
    test_ = fmt::format("{}.{}", test.test_suite_name(), test.name());
  }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.skipped()) not_tried_ += fmt::format("; not tried: {}", one_line(result.message()));
    if (!result.failed() || told_) return;
    told_ = true;
    tell(fmt::format("{}: {}", test_, reason_of(result.summary())));
  }
  void OnTestProgramEnd(const ::testing::UnitTest&) override {
    if (!told_) tell(not_tried_);
  }

 private:
  void tell(const std::string& text) const {
    if (write(fd_, text.data(), text.size()) < 0) return;  // the status tells enough
  }

  int fd_;
  std::string test_, not_tried_;
  bool told_ = false;
};

[[noreturn]] void be_item(const Item& item, bool verbose, int fd) {
  alarm(kItemSeconds);
  ::testing::GTEST_FLAG(filter) = item.filter;
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  listeners.Append(new FirstFailure(fd));
  if (!verbose) {  // neither the plugin's lines nor GoogleTest's, and no more than the first failure
    int nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, 1);
    dup2(nowhere, 2);
    ::testing::GTEST_FLAG(fail_fast) = true;
  }
  int status = RUN_ALL_TESTS() == 0 ? 0 : kFailed;
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  if (status == 0 && all.successful_test_count() == 0) status = kNothingRan;
  std::fflush(nullptr);
  _exit(status);
}

struct Outcome {
  bool holds, claimed;
  std::string text;
};

Outcome run_item(const Item& item, bool verbose) {
  int ends[2];
  PRUN_CHECK(pipe2(ends, O_CLOEXEC) == 0, "no pipe");
  std::fflush(nullptr);
  pid_t child = fork();
  PRUN_CHECK(child >= 0, "fork failed");
  if (child == 0) be_item(item, verbose, ends[1]);
  close(ends[1]);
  std::string why;
  char buffer[512];
  // A rank that outlives its item may hold the pipe: what the item had to say has come once it has ended.
  int status = 0;
  waitpid(child, &status, 0);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) why.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {true, true, item.holds + why};
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNothingRan) return {true, false, ""};
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
    why = fmt::format("not finished after {} s", kItemSeconds);
  else if (WIFSIGNALED(status))
    why = fmt::format("crashed with signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  return {false, true, why};
}

// Items that the command line or the manifest names; all names are checked.
void check_items(const std::vector<std::string>& names, const std::string& where) {
  std::vector<std::string> known;
  for (const Item& item : kItems) known.emplace_back(item.name);
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw usage_error(fmt::format("{}: there is no item '{}'{}; the items are {}", where, name,
                                    did_you_mean(name, known), join(known, ", ")));
  }
}

bool has(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

int conform(const std::vector<std::string>& chosen) {
  const PluginFile file = find_named(suite().transport, suite().plugin_dirs);
  check_items(chosen, "prun conform");
  check_items(file.not_claimed, file.path + "'s manifest");
  const int count = static_cast<int>(std::size(kItems));
  int failed = 0, held = 0;
  bool loads = true;
  fmt::print("{}\n", file.path);
  for (int i = 0; i < count; ++i) {
    const Item& item = kItems[i];
    if (!chosen.empty() && !has(chosen, item.name)) continue;
    Outcome outcome{true, false, ""};
    if (!loads)
      outcome = {false, true, "not tried: it does not load"};
    else if (!has(file.not_claimed, item.name))
      outcome = run_item(item, !chosen.empty());
    loads = loads && (i != 0 || outcome.holds);
    failed += outcome.holds ? 0 : 1;
    held += outcome.holds && outcome.claimed ? 1 : 0;
    const char* word = !outcome.holds ? "FAILED" : outcome.claimed ? "ok" : "not claimed";
    fmt::print("{:>2} {:<12} {:<7}{}{}\n", i + 1, item.name, word, outcome.text.empty() ? "" : " ", outcome.text);
    std::fflush(stdout);
  }
  fmt::print("{}: {} of its items hold, {} {}\n", file.name, held, failed, failed == 1 ? "fails" : "fail");
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace prun::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  prun::testing::Suite& suite = prun::testing::suite();
  suite.job_id = "conform" + std::to_string(getpid());
  std::vector<std::string> items;
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
    else
      items.emplace_back(arg);
  }
  try {
    return prun::testing::conform(items);
  } catch (const prun::Error& error) {
    fmt::print(stderr, "prun: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
