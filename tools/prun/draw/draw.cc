// prun draw WHAT ..: draws a plan, a trace, rows of metrics or runs, as a page, a picture or text.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "draw/drawing.h"
#include "draw/timeline.h"
#include "help.h"
#include "job_options.h"
#include "watch/output_file.h"

namespace prun {
namespace draw {

nlohmann::ordered_json summary_of(const Drawing& drawing) {
  nlohmann::ordered_json timelines = nlohmann::ordered_json::array(), curves = nlohmann::ordered_json::array();
  for (const Timeline& timeline : drawing.timelines) {
    const Figures figures = figures_of(timeline);
    nlohmann::ordered_json critical;
    for (size_t k = 0; k < figures.critical.size(); ++k)
      if (figures.critical[k] > 0)
        critical[std::string(k < kind_texts().size() ? kind_texts()[k].id : "waiting")] = figures.critical[k];
    nlohmann::ordered_json one = {{"name", timeline.name},
                                  {"source", timeline.source},
                                  {"lanes", timeline.lanes.size()},
                                  {"boxes", timeline.boxes.size()},
                                  {"arrows", timeline.arrows.size()},
                                  {"steps", figures.steps},
                                  {"step_ns", figures.step_ns},
                                  {"unit_ns", timeline.unit_ns},
                                  {"busy", figures.busy},
                                  {"communicating", figures.communicating},
                                  {"exposed", figures.exposed},
                                  {"peak_bytes", figures.peak_bytes},
                                  {"critical_ns", critical}};
    timelines.push_back(std::move(one));
  }
  for (const Curve& curve : drawing.curves)
    curves.push_back({{"name", curve.name}, {"steps", curve.step.size()}, {"loss", curve.loss.back()}});
  return {{"timelines", timelines}, {"curves", curves}, {"notes", drawing.notes}};
}

void write_drawing(const Drawing& drawing, const std::string& out) {
  const std::string text = out.ends_with(".html") ? page_of(drawing) : picture_of(drawing);
  OutputFile file(out, "drawing");
  file.begin();
  file.write(text);
  file.flush();
  if (const std::string failure = file.failure(); !failure.empty())
    throw usage_error(fmt::format("cannot write the drawing to {}: {}", out, failure));
}

}  // namespace draw

namespace {

class Draw final : public Command {
 public:
  void declare(OptionTable& table) override;
  void settle() override;
  int run() override;
  JobSpec* job() override { return &options_.job; }

 private:
  DrawOptions options_;
};

void Draw::declare(OptionTable& table) {
  declare_plan(table, options_.job);
  option::device(table, options_.job);
  table.group("drawing");
  declare_draw(table, options_);
}

void Draw::settle() {
  options_.operands = line_.operands;
  refuse_settings(options_.operands, "--set");
  options_.json = line_.json;
  check_ranks(options_.job);
  check_draw_options(options_);
}

int Draw::run() {
  const draw::Drawing drawing = draw::read_inputs(options_);
  const std::string& out = options_.out;
  if (!out.empty()) {
    if (out.ends_with(".svg") && drawing.timelines.empty())
      throw usage_error(
          fmt::format("a picture shows a timeline, and there is none; curves are drawn by --out NAME.html{}",
                      drawing.notes.empty() ? "" : ". " + join(drawing.notes, " ")));
    draw::write_drawing(drawing, out);
  }
  if (options_.json) {
    fmt::print("{}\n", draw::summary_of(drawing).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else if (out.empty()) {
    fmt::print("{}", draw::text_of(drawing, terminal_columns()));
  }
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_draw() { return std::make_unique<Draw>(); }

}  // namespace prun
