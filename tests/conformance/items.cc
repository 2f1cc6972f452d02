// Cases run in place, by a fork that continues in RUN_ALL_TESTS; a crash is a status of waitpid.
#include "tests/conformance/items.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"

namespace prun::testing {
namespace {

constexpr int kFailed = 1, kNothingRan = 77;

// Joins the lines of a text and shortens it; the end is kept, because the cause often comes last.
std::string one_line(const std::string& text) {
  std::string line;
  for (char c : text) {
    bool space = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (!space)
      line += c;
    else if (!line.empty() && line.back() != ' ')
      line += ' ';
  }
  constexpr size_t kBegin = 120, kEnd = 180;
  if (line.size() <= kBegin + kEnd) return line;
  return line.substr(0, kBegin) + " ... " + line.substr(line.size() - kEnd);
}

// Returns the first rank's report that does not merely repeat another one, and the number of further ones.
std::string first_report(const std::string& reports) {
  std::vector<std::string> own, all;
  for (size_t at = 0, end; at < reports.size(); at = end + 2) {
    end = std::min(reports.find("\\n", at), reports.size());
    std::string line = reports.substr(at, end - at);
    if (line.empty()) continue;
    const bool told = line.find(": Aborted: ") != std::string::npos || line.ends_with(": aborted");
    if (!told) own.push_back(line);
    all.push_back(line);
  }
  if (own.empty()) own = all;
  return own.empty() ? reports : own.size() == 1 ? own[0] : fmt::format("{}; and {} more", own[0], own.size() - 1);
}

// Returns the reported text or exception without GoogleTest's decoration.
std::string reason_of(std::string summary) {
  constexpr std::string_view kWord = "Failed\n", kTrace = "Google Test trace:\n";
  if (summary.starts_with(kWord)) summary.erase(0, kWord.size());
  if (const size_t trace = summary.find(kTrace); trace != std::string::npos && trace > 0) {  // "file:line: text"
    const size_t text = summary.find(": ", trace + kTrace.size());
    if (text != std::string::npos) summary.replace(trace - 1, text + 2 - trace + 1, "; ");
  }
  constexpr std::string_view kThrown = "exception with description \"";
  if (const size_t thrown = summary.find(kThrown); thrown != std::string::npos)
    return one_line(summary.substr(thrown + kThrown.size(), summary.rfind("\" thrown") - thrown - kThrown.size()));
  constexpr std::string_view kBefore = "Which is: \"";
  size_t begin = summary.find(kBefore);
  if (begin == std::string::npos) return one_line(summary);
  begin += kBefore.size();
  std::string text = summary.substr(begin, summary.find("\"\n", begin) - begin);
  return one_line(first_report(text));
}

// Reports the first failure to the parent, or the skipped cases and the reason.
class FirstFailure : public ::testing::EmptyTestEventListener {
 public:
  explicit FirstFailure(int fd) : fd_(fd) {}
  // Stored here, because GoogleTest holds its lock while it reports a result, so querying the test there would
  // deadlock.
  void OnTestStart(const ::testing::TestInfo& test) override {
    test_ = fmt::format("{}.{}", test.test_suite_name(), test.name());
  }
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.skipped()) not_tried_ += fmt::format("; not tried: {}", one_line(result.message()));
    if (!result.failed() || told_) return;
    told_ = true;
    tell(fmt::format("{}\n{}", test_, reason_of(result.summary())));
  }
  void OnTestProgramEnd(const ::testing::UnitTest&) override {
    if (!told_) tell(not_tried_);
  }

 private:
  void tell(const std::string& text) const {
    if (write(fd_, text.data(), text.size()) < 0) return;  // the exit status suffices
  }

  int fd_;
  std::string test_, not_tried_;
  bool told_ = false;
};

[[noreturn]] void be_cases(const std::string& filter, unsigned seconds, Show show, int fd) {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  alarm(seconds);
  ::testing::GTEST_FLAG(filter) = filter;
  ::testing::TestEventListeners& listeners = ::testing::UnitTest::GetInstance()->listeners();
  listeners.Append(new FirstFailure(fd));
  if (show != Show::all) delete listeners.Release(listeners.default_result_printer());
  if (show == Show::nothing) {
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

void print_json(const Item& item, const Outcome& outcome, std::string result) {
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  nlohmann::ordered_json row;
  row["item"] = item.name;
  row["result"] = result;
  row["text"] = outcome.text;
  row["case"] = outcome.name;
  fmt::print("{}\n", row.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

bool has(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

Outcome run_cases(const std::string& filter, unsigned seconds, Show show) {
  int ends[2];
  PRUN_CHECK(pipe2(ends, O_CLOEXEC) == 0, "no pipe");
  std::fflush(nullptr);
  pid_t child = fork();
  PRUN_CHECK(child >= 0, "fork failed");
  if (child == 0) be_cases(filter, seconds, show, ends[1]);
  close(ends[1]);
  std::string why;
  char buffer[512];
  // A rank that outlives its item may hold the pipe; the item's text is complete once the item has ended.
  int status = 0;
  waitpid(child, &status, 0);
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) why.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  std::string name;
  if (const size_t line = why.find('\n'); line != std::string::npos) {
    name = why.substr(0, line);
    why.erase(0, line + 1);
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {true, true, why};
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNothingRan) return {true, false, why};
  const bool late = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
  if (late)
    why = fmt::format("not finished after {} s", seconds);
  else if (WIFSIGNALED(status))
    why = fmt::format("crashed with signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  else if (why.empty())
    why = fmt::format("ended with exit code {}", WEXITSTATUS(status));
  return {false, true, why, late, name};
}

std::pair<std::string, std::string> split_case(const std::string& word) {
  const size_t colon = std::min(word.find(':'), word.size());
  return {word.substr(0, colon), word.substr(std::min(word.size(), colon + 1))};
}

void check_items(const std::vector<std::string>& names, std::span<const Item> items, const std::string& where) {
  std::vector<std::string> known;
  for (const Item& item : items) known.emplace_back(item.name);
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw usage_error(fmt::format("{}: there is no item '{}'{}; the items are {}", where, name,
                                    did_you_mean(name, known), join(known, ", ")));
  }
}

int conform(const Subject& subject, std::span<const Item> items, const std::vector<std::string>& chosen,
            const std::function<Outcome(const Item&)>& run) {
  int failed = 0, held = 0;
  bool loads = true;
  if (!subject.json) fmt::print("{}\n", subject.path);
  for (const Item& item : items) {
    if (!chosen.empty() && !has(chosen, item.name)) continue;
    std::fflush(stdout);
    Outcome outcome;
    outcome.claimed = false;
    if (!loads)
      outcome = {false, true, "not tried: it does not load"};
    else if (!has(subject.not_claimed, item.name))
      outcome = run(item);
    if (outcome.holds) outcome.text = outcome.claimed ? item.holds + outcome.text : "";
    loads = loads && (&item != &items.front() || outcome.holds);
    failed += outcome.holds ? 0 : 1;
    held += outcome.holds && outcome.claimed ? 1 : 0;
    const char* word = !outcome.holds    ? (loads || &item == &items.front() ? "FAILED" : "not tried")
                       : outcome.claimed ? "ok"
                                         : "not claimed";
    if (subject.json)
      print_json(item, outcome, word);
    else
      fmt::print("{:>2} {:<12} {:<7}{}{}\n", &item - items.data() + 1, item.name, outcome.holds ? word : "FAILED",
                 outcome.text.empty() ? "" : " ",
                 outcome.name.empty() ? outcome.text : fmt::format("{} ({})", outcome.text, outcome.name));
    std::fflush(stdout);
  }
  if (subject.json) return failed == 0 ? 0 : 1;
  fmt::print("{}: {} of its items hold, {} {}\n", subject.name, held, failed, failed == 1 ? "fails" : "fail");
  return failed == 0 ? 0 : 1;
}

}  // namespace prun::testing
