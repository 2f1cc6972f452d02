// The terminal form: a row per lane, a letter for the kind that fills most of a column, with colours on a terminal.
#include "base/text.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "draw/drawing.h"
#include "draw/picture_parts.h"
#include "draw/timeline.h"

namespace prun::draw {
namespace {

constexpr std::string_view kLetters = "FBWCGRAMO-";                                              // letters by kind
constexpr std::array<int, kBoxKinds> kColours = {32, 208, 179, 117, 36, 162, 45, 103, 98, 246};  // of 256

bool colours() { return isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr; }

// Returns the kind that fills most of each column, or -1 if none fills a quarter of it.
std::vector<int> columns_of(const Timeline& timeline, const PictureRow& row, int64_t end, int columns) {
  std::vector<std::array<double, kBoxKinds>> filled(static_cast<size_t>(columns));
  const double width = static_cast<double>(end) / columns;
  for (const Group& group : row.groups)
    for (int i = group.first; i < group.first + group.count; ++i) {
      const Box& box = timeline.boxes[static_cast<size_t>(i)];
      const int from = static_cast<int>(static_cast<double>(box.arrived) / width);
      for (int c = from; c < columns && c * width < static_cast<double>(box.end); ++c)
        filled[static_cast<size_t>(c)][static_cast<size_t>(box.kind)] +=
            std::min((c + 1) * width, static_cast<double>(box.end)) -
            std::max(c * width, static_cast<double>(box.arrived));
    }
  std::vector<int> kinds;
  kinds.reserve(filled.size());
  for (const auto& column : filled) {
    const auto most = std::max_element(column.begin(), column.end());
    kinds.push_back(*most * 4 >= width ? static_cast<int>(most - column.begin()) : -1);
  }
  return kinds;
}

std::string cell(int kind, bool coloured) {
  if (kind < 0) return coloured ? " " : ".";
  const char letter = kLetters[static_cast<size_t>(kind)];
  return coloured ? fmt::format("\x1b[48;5;{}m{}\x1b[0m", kColours[static_cast<size_t>(kind)], letter)
                  : std::string(1, letter);
}

// Renders one timeline; `end` is the end of the axis.
std::string timeline_text(const Timeline& timeline, int width, int64_t end) {
  const PictureRows rows = picture_rows(timeline);
  const Figures figures = figures_of(timeline);
  size_t who = 0, name = 0;
  for (const PictureRow& row : rows.rows) {
    who = std::max(who, row.who.size());
    name = std::max(name, row.name.size());
  }
  const int columns = std::max(20, width - static_cast<int>(who + name) - 4);
  std::string text = fmt::format("{} {}: {}, compute {:.0f} % busy", timeline.name, timeline.source,
                                 covered_text(timeline, figures), 100 * figures.busy);
  if (figures.communicating > 0)
    text += fmt::format(", communicating {:.0f} %, of it {:.0f} % exposed", 100 * figures.communicating,
                        100 * figures.exposed / figures.communicating);
  text += fmt::format("\ncritical path: {}\n", critical_text(figures));
  const bool coloured = colours();
  for (const PictureRow& row : rows.rows) {
    text += fmt::format("{:<{}}  {:<{}}  ", row.opens ? printable(row.who) : "", who, printable(row.name), name);
    for (const int kind : columns_of(timeline, row, std::max<int64_t>(1, end), columns)) text += cell(kind, coloured);
    text += "\n";
  }
  std::vector<std::string> legend;
  for (const BoxKind kind : kinds_of(rows))
    legend.push_back(cell(static_cast<int>(kind), coloured) + " " +
                     std::string(kind_texts()[static_cast<size_t>(kind)].name));
  return text + fmt::format("{}, {} idle\n", join(legend, ", "), coloured ? "blank" : ".");
}

std::string curve_text(const Curve& curve) {
  return fmt::format("{}: {}, loss {:.4f} to {:.4f}, {}\n", curve.name, counted(std::ssize(curve.step), "step"),
                     curve.loss.front(), curve.loss.back(), short_number(curve.rate.back(), "tokens/s"));
}

}  // namespace

std::string text_of(const Drawing& drawing, int columns) {
  std::string text;
  int64_t last = 0;
  for (const Timeline& timeline : drawing.timelines) last = std::max(last, timeline.end());
  for (const Timeline& timeline : drawing.timelines)
    text += (text.empty() ? "" : "\n") + timeline_text(timeline, columns, drawing.one_axis ? last : timeline.end());
  for (const Curve& curve : drawing.curves) text += curve_text(curve);
  for (const std::string& note : drawing.notes) text += note + "\n";
  return text;
}

}  // namespace prun::draw
