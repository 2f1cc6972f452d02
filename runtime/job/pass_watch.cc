#include "job/pass_watch.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace prun {

void PassWatch::add(const PassReport& report) {
  add_time(report.name, report.seconds);
  begin_ = std::chrono::steady_clock::now();
  if (report.name != after_) return;
  if (!text_.empty()) text_ += "\n";
  text_ += report.text();
}

void PassWatch::lap(const char* what) {
  const auto now = std::chrono::steady_clock::now();
  add_time(what, std::chrono::duration<double>(now - std::exchange(begin_, now)).count());
}

void PassWatch::add_time(std::string_view what, double seconds) {
  const auto known =
      std::find_if(seconds_.begin(), seconds_.end(), [&](const auto& each) { return each.first == what; });
  if (known != seconds_.end())
    known->second += seconds;
  else
    seconds_.emplace_back(what, seconds);
}

void PassWatch::print_times() const {
  for (const auto& [what, seconds] : seconds_) fmt::print(stderr, "{:<16} {:>10}\n", what, human_seconds(seconds));
}

void PassWatch::print_result(const std::string& plan) const {
  if (!after_.empty() && text_.empty())
    throw usage_error(fmt::format("--after {}: that pass does not run for {}", after_, plan));
  fmt::print("{}", text_);
}

void check_pass_name(const std::string& name) {
  std::vector<std::string> names;
  for (const std::string_view each : pass_names()) names.emplace_back(each);
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw usage_error(fmt::format("--after: there is no pass '{}'{}", name, did_you_mean(name, names)));
}

}  // namespace prun
