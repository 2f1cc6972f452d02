#include "draw/settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "definer.h"
#include "options.h"
#include "watch/step_window.h"

namespace prun {

void define_draw_options(Definer& define, DrawSettings& settings) {
  define.text(kDraw, "--out", "FILE", settings.out, "NAME.html: a page; NAME.svg: a picture for documents");
  define.text(kDiff, "--out", "NAME.html", settings.out, "draw both steps on a page, below each other");
  define.flag(kDraw, "--text", settings.text, "draw in the terminal (what it does without --out, too)");
  define.text(kDraw, "--title", "TEXT", settings.title, "what stands above it");
  define.text(kDraw, "--program", "FILE", settings.program,
              "of `prun dump --json`: the program of the traces, for memory (a plan among the operands is one, too)");
  define.parsed(
      kDraw, "--steps", "A:B",
      [&settings](const std::string& text) {
        const StepWindow window = parse_step_window(text, "--steps");
        settings.first_step = static_cast<int>(window.first);
        settings.last_step = static_cast<int>(std::min<int64_t>(window.last, INT_MAX));
      },
      "of traces these steps alone, as the screen counts them");
}

void check_draw_options(const Options& options) {
  const DrawSettings& settings = options.draw;
  if (options.operands.empty())
    throw usage_error(
        "draw what? A plan, a trace of --trace, rows of --metrics or the folder of a run, for example: "
        "prun draw plans/zero3.lua --nproc 2 --out zero3.html");
  const auto is_plan = [](const std::string& operand) { return operand.ends_with(".lua"); };
  if (!options.sim.cluster.empty() && std::none_of(options.operands.begin(), options.operands.end(), is_plan))
    throw usage_error("--cluster says where a plan is simulated, and none is named");
  if (settings.out.empty()) return;
  if (settings.text) throw usage_error("--text draws in the terminal: not with --out");
  if (!settings.out.ends_with(".html") && !settings.out.ends_with(".svg"))
    throw usage_error(fmt::format("--out wants a name that ends with .html or .svg, not '{}'", settings.out));
}

}  // namespace prun
