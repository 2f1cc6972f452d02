#include "watch/watch_spec.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"

namespace prun {

StepWindow parse_step_window(const std::string& text, const std::string& option) {
  const size_t colon = text.find(':');
  const std::string from = text.substr(0, colon), to = colon == std::string::npos ? from : text.substr(colon + 1);
  if (from.empty() && to.empty()) throw usage_error(option + " must be A:B, such as 100:110");
  StepWindow window;
  window.given = true;
  if (!from.empty()) window.first = whole_number(option + " A:B", from, 1) - 1;
  if (!to.empty()) window.last = whole_number(option + " A:B", to, 1) - 1;
  if (window.first > window.last) throw usage_error(fmt::format("{} {} ends before it begins", option, text));
  return window;
}

}  // namespace prun
