// The page: HTML, CSS and JavaScript from the folder page, with the drawing as embedded JSON. Columns of boxes are
// delta-encoded, which keeps 100,000 boxes at a few megabytes.
#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "draw/drawing.h"
#include "draw/timeline.h"

namespace prun::draw {

// The files of the folder page, embedded by CMake.
extern const char *const kPageHtml, *const kPageCss, *const kPageDataJs, *const kPageViewJs, *const kPageCurvesJs,
                                                                                                 *const kPageJs;

namespace {

using Json = nlohmann::ordered_json;

std::string quoted_text(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Writes a column as "name":[1,2,3].
template <class List, class Value>
void column(std::string& out, const char* name, const List& list, Value value) {
  fmt::format_to(std::back_inserter(out), "\"{}\":[", name);
  bool first = true;
  for (const auto& one : list) {
    fmt::format_to(std::back_inserter(out), "{}{}", first ? "" : ",", value(one));
    first = false;
  }
  out += "]";
}

// Writes a column run-length encoded, as value, count, value, count.
template <class Value>
void runs(std::string& out, const char* name, const std::vector<Box>& list, Value value) {
  std::vector<int> pairs;
  for (const Box& box : list) {
    if (pairs.empty() || pairs[pairs.size() - 2] != value(box)) pairs.insert(pairs.end(), {value(box), 0});
    ++pairs.back();
  }
  out += ",";
  column(out, name, pairs, [](int number) { return number; });
}

void boxes(std::string& out, const Timeline& timeline) {
  int64_t last = 0;
  out += "\"boxes\":{";
  column(out, "begin", timeline.boxes, [&](const Box& box) { return box.begin - std::exchange(last, box.begin); });
  const auto put = [&](const char* name, auto value) {
    out += ",";
    column(out, name, timeline.boxes, value);
  };
  put("ready", [](const Box& box) { return box.begin - box.ready; });
  put("arrived", [](const Box& box) { return box.arrived - box.begin; });
  put("end", [](const Box& box) { return box.end - box.begin; });
  put("kind", [](const Box& box) { return static_cast<int>(box.kind); });
  put("name", [](const Box& box) { return box.name; });
  put("site", [](const Box& box) { return box.site; });
  put("bytes", [](const Box& box) { return box.bytes; });
  runs(out, "unit", timeline.boxes, [](const Box& box) { return box.unit; });
  runs(out, "phase", timeline.boxes, [](const Box& box) { return box.phase; });
  runs(out, "group", timeline.boxes, [](const Box& box) { return box.group; });
  runs(out, "micro", timeline.boxes, [](const Box& box) { return box.microbatch; });
  runs(out, "step", timeline.boxes, [](const Box& box) { return box.step; });
  out += "}";
}

std::string timeline_json(const Timeline& timeline) {
  std::string out = fmt::format("{{\"name\":{},\"source\":{},\"unit_ns\":{},\"end\":{},", quoted_text(timeline.name),
                                quoted_text(timeline.source), timeline.unit_ns, timeline.end());
  std::vector<int> first(timeline.lanes.size(), static_cast<int>(timeline.boxes.size()));
  for (size_t i = timeline.boxes.size(); i-- > 0;)
    first[static_cast<size_t>(timeline.boxes[i].lane)] = static_cast<int>(i);
  for (size_t l = first.size(); l-- > 1;) first[l - 1] = std::min(first[l - 1], first[l]);  // a lane without boxes
  size_t l = 0;
  column(out, "lanes", timeline.lanes, [&](const Lane& lane) {
    return fmt::format("{{\"rank\":{},\"stream\":{},\"name\":{},\"who\":{},\"first\":{}}}", lane.rank, lane.stream,
                       quoted_text(lane.name), quoted_text(lane.who), first[l++]);
  });
  out += ",";
  column(out, "texts", timeline.texts.list(), quoted_text);
  out += ",";
  boxes(out, timeline);
  out += ",";
  column(out, "arrows", timeline.arrows,
         [](const Arrow& arrow) { return fmt::format("{},{},{}", arrow.from, arrow.to, arrow.between_ranks ? 1 : 0); });
  out += ",";
  column(out, "groups", timeline.groups, [](const Group& group) {
    return fmt::format("[{},{},{},{},{}]", group.first, group.count, static_cast<int>(group.kind),
                       quoted_text(group.label), group.chunk);
  });
  out += ",";
  column(out, "critical", timeline.critical, [](int box) { return box; });
  out += ",";
  column(out, "memory", timeline.memory, [](const MemoryStrip& strip) {
    return Json({{"rank", strip.rank},
                 {"roles", strip.roles},
                 {"times", strip.times},
                 {"bytes", strip.bytes},
                 {"peak", strip.peak}})
        .dump();
  });
  return out + "}";
}

std::string curve_json(const Curve& curve) {
  std::string out = fmt::format("{{\"name\":{},", quoted_text(curve.name));
  const auto number = [](double value) { return std::isfinite(value) ? fmt::format("{}", value) : "null"; };
  column(out, "step", curve.step, number);
  out += ",";
  column(out, "loss", curve.loss, number);
  out += ",";
  column(out, "rate", curve.rate, number);
  out += ",";
  column(out, "eval_step", curve.eval_step, number);
  out += ",";
  column(out, "eval_loss", curve.eval_loss, number);
  return out + "}";
}

// Returns by timeline its name, and pairs of a value and its meaning.
Json figures_json(const Drawing& drawing) {
  Json all = Json::array();
  for (const Timeline& timeline : drawing.timelines) {
    const Figures figures = figures_of(timeline);
    const auto percent = [](double part) { return fmt::format("{:.0f} %", 100 * part); };
    Json list = Json::array();
    const bool whole = figures.step_ns > 0;
    list.push_back({time_text(timeline, whole ? figures.step_ns : figures.covered_ns), whole ? "a step" : "the last"});
    list.push_back({percent(figures.busy), "compute busy"});
    list.push_back({percent(figures.communicating), "communicating"});
    list.push_back({percent(figures.exposed), whole ? "of the step exposed" : "of it exposed"});
    if (figures.peak_bytes > 0) list.push_back({human_bytes(figures.peak_bytes), "peak memory"});
    list.push_back({critical_text(figures), "critical path"});
    all.push_back({{"name", timeline.name}, {"list", std::move(list)}});
  }
  return all;
}

std::string data_of(const Drawing& drawing) {
  std::string subtitle;
  for (const Timeline& timeline : drawing.timelines)
    subtitle += fmt::format("{}{}: {}, {}", subtitle.empty() ? "" : "; ", timeline.name,
                            timeline.mesh.empty() ? counted(timeline.ranks(), "rank") : timeline.mesh,
                            counted(figures_of(timeline).steps, "step"));
  std::string out =
      fmt::format("{{\"title\":{},\"subtitle\":{},\"notes\":{},\"figures\":{},", quoted_text(drawing.title),
                  quoted_text(subtitle), Json(drawing.notes).dump(), figures_json(drawing).dump());
  column(out, "timelines", drawing.timelines, timeline_json);
  out += ",";
  column(out, "curves", drawing.curves, curve_json);
  return out + "}";
}

// Escapes text of a plan that would end the enclosing script element.
std::string in_script(std::string text) {
  for (size_t at = 0; (at = text.find("</", at)) != std::string::npos; at += 3) text.replace(at, 2, "<\\/");
  for (size_t at = 0; (at = text.find("<!--", at)) != std::string::npos; at += 7) text.replace(at, 4, "\\u003c!--");
  return text;
}

std::string in_html(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(1, c);
  return out;
}

}  // namespace

std::string page_of(const Drawing& drawing) {
  std::string page = kPageHtml;
  const auto put = [&](const std::string& name, const std::string& text) {
    page.replace(page.find(name), name.size(), text);
  };
  put("{{title}}", in_html(drawing.title));
  put("{{style}}", kPageCss);
  put("{{script}}", fmt::format("{}{}{}{}", kPageDataJs, kPageViewJs, kPageCurvesJs, kPageJs));
  put("{{data}}", in_script(data_of(drawing)));
  return page;
}

}  // namespace prun::draw
