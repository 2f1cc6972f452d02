#include "draw/settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "watch/watch_spec.h"

namespace prun {

void declare_draw(OptionTable& table, DrawOptions& options) {
  table.text("--cluster", "FILE", options.cluster,
             "predict the plan's step on it, as prun sim does (default: unit costs)");
  table.text("--out", "FILE", options.out, "NAME.html: a page; NAME.svg: a picture for documents");
  table.flag("--text", options.text, "draw in the terminal, the default without --out");
  table.text("--title", "TEXT", options.title, "the title above the picture");
  table.parsed(
      "--steps", "A:B",
      [&options](const std::string& text) {
        const StepWindow window = parse_step_window(text, "--steps");
        options.first_step = static_cast<int>(window.first);
        options.last_step = static_cast<int>(std::min<int64_t>(window.last, INT_MAX));
      },
      "of traces these steps alone, as the screen counts them");
}

void check_draw_options(const DrawOptions& options) {
  if (options.operands.empty())
    throw usage_error(
        "prun draw needs a plan, a trace of --trace, rows of --metrics or the folder of a run, for example: "
        "prun draw plans/zero3.lua --nproc 2 --out zero3.html");
  const auto is_plan = [](const std::string& operand) { return operand.ends_with(".lua"); };
  if (!options.cluster.empty() && std::none_of(options.operands.begin(), options.operands.end(), is_plan))
    throw usage_error("--cluster needs a plan to simulate; name one");
  if (options.out.empty()) return;
  if (options.text) throw usage_error("--text draws in the terminal and cannot be combined with --out");
  if (!options.out.ends_with(".html") && !options.out.ends_with(".svg"))
    throw usage_error(fmt::format("--out must end with .html or .svg, not '{}'", options.out));
}

}  // namespace prun
