// The picture for documents: SVG whose colours follow the reader's light or dark scheme.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>

#include "base/text.h"
#include "draw/drawing.h"
#include "draw/picture_parts.h"
#include "draw/timeline.h"

namespace prun::draw {
namespace {

constexpr double kWidth = 1000, kGutter = 150, kMargin = 16, kTop = 60;
constexpr double kComputeHeight = 34, kOtherHeight = 18, kMemoryHeight = 24, kGap = 4, kRankGap = 14;
constexpr double kLetter = 6.3;  // mean width of a letter at 11 px

constexpr const char* kStyle = R"(<style>
svg { font: 11px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
.paper { fill: #ffffff } .lane { fill: #f2f4f7 } .line { stroke: #dde1e7 }
.text { fill: #1c2330 } .soft { fill: #5d6675 }
.title { font-size: 15px; font-weight: 650 } .who { font-weight: 600; font-size: 12px }
.light { fill: #ffffff } .dark { fill: #10151d } .mid { text-anchor: middle } .end { text-anchor: end }
.forward { fill: #2f7cc0 } .backward { fill: #ee7733 } .weight { fill: #e8c35a } .recompute { fill: #8cc2ea }
.gather { fill: #009988 } .gradient { fill: #c22f6e } .activation { fill: #33b5e5 } .message { fill: #6f7d92 }
.optimizer { fill: #6b5bb5 } .other { fill: #a9b0bb } .chunk { fill: #ffffff; opacity: .36 }
.arrow { fill: none; stroke: #5d6675; stroke-width: .8; opacity: .45 }
.wait { fill: #ffffff; opacity: .62 } .memory { opacity: .62 }
@media (prefers-color-scheme: dark) {
.paper { fill: #12161d } .lane { fill: #1c232d } .line { stroke: #303845 }
.text { fill: #e8ecf2 } .soft { fill: #98a3b3 }
.forward { fill: #4d9be0 } .backward { fill: #f28a4e } .weight { fill: #ecd07c } .recompute { fill: #2f5f86 }
.gather { fill: #1db3a2 } .gradient { fill: #e05a93 } .activation { fill: #55c5ee } .message { fill: #8a97ab }
.optimizer { fill: #9385dc } .other { fill: #6a7383 } .light { fill: #10151d }
.arrow { stroke: #98a3b3 } .wait { fill: #12161d }
}
</style>
)";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : printable(text))
    out += c == '<' ? "&lt;" : c == '&' ? "&amp;" : c == '>' ? "&gt;" : c == '"' ? "&quot;" : std::string(1, c);
  return out;
}

class Picture {
 public:
  explicit Picture(const Drawing& drawing)
      : drawing_(drawing), timeline_(drawing.timelines.front()), rows_(picture_rows(timeline_)) {
    double y = kTop;
    for (size_t r = 0; r < rows_.rows.size(); ++r) {
      tops_.push_back(y);
      y += height(rows_.rows[r]) + kGap;
      if (!ends_rank(r)) continue;
      memory_tops_.push_back(y);
      if (strip_of(r) != nullptr) y += kMemoryHeight + kGap;
      if (r + 1 < rows_.rows.size()) y += kRankGap - kGap;
    }
    for (const MemoryStrip& strip : timeline_.memory) most_bytes_ = std::max(most_bytes_, strip.peak);
    bottom_ = y;
    end_ = static_cast<double>(std::max<int64_t>(1, timeline_.end()));
  }

  std::string draw() {
    const double axis = bottom_ + 8, legend = axis + 42, whole = legend + 14;
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\">\n<title>{}</title>\n",
        number(kWidth), number(whole), escaped(drawing_.title));
    out_ += kStyle;
    put("<rect class=\"paper\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n", number(kWidth), number(whole));
    put("<text class=\"title text\" x=\"{}\" y=\"28\">{}</text>\n", number(kMargin), escaped(drawing_.title));
    put("<text class=\"soft\" x=\"{}\" y=\"46\">{}</text>\n", number(kMargin), escaped(figures_text()));
    draw_axis(axis);
    size_t rank = 0;
    for (size_t r = 0; r < rows_.rows.size(); ++r) {
      draw_row(r);
      if (!ends_rank(r)) continue;
      if (const MemoryStrip* strip = strip_of(r)) draw_memory(*strip, memory_tops_[rank]);
      ++rank;
    }
    if (rows_.arrows) draw_arrows();
    draw_legend(legend);
    return out_ + "</svg>\n";
  }

 private:
  static double height(const PictureRow& row) { return row.computes ? kComputeHeight : kOtherHeight; }
  double x(int64_t ns) const { return kGutter + static_cast<double>(ns) / end_ * (kWidth - kGutter - kMargin); }

  template <class... Args>
  void put(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), text, std::forward<Args>(args)...);
  }

  std::string figures_text() const {
    const Figures figures = figures_of(timeline_);
    std::string text =
        fmt::format("{}: {}, compute {:.0f} % busy", timeline_.mesh.empty() ? timeline_.name : timeline_.mesh,
                    covered_text(timeline_, figures), 100 * figures.busy);
    if (figures.communicating > 0 && !rows_.arrows)
      text += fmt::format(", communicating {:.0f} %, of it {:.0f} % exposed", 100 * figures.communicating,
                          100 * figures.exposed / figures.communicating);
    return text;
  }

  bool ends_rank(size_t row) const { return row + 1 == rows_.rows.size() || rows_.rows[row + 1].opens; }
  const MemoryStrip* strip_of(size_t row) const {
    const int rank = timeline_.lanes[static_cast<size_t>(rows_.rows[row].lane)].rank;
    for (const MemoryStrip& strip : timeline_.memory)
      if (strip.rank == rank) return &strip;
    return nullptr;
  }

  void draw_memory(const MemoryStrip& strip, double y) {
    const double width = kWidth - kGutter - kMargin;
    put("<text class=\"soft end\" x=\"{}\" y=\"{}\">memory, {}</text>\n", number(kGutter - 10),
        number(y + kMemoryHeight / 2 + 4), human_bytes(strip.peak));
    put("<rect class=\"lane\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"3\"/>\n", number(kGutter), number(y),
        number(width), number(kMemoryHeight));
    out_ += memory_paths(strip, {kGutter, y, width, kMemoryHeight}, most_bytes_, timeline_.end());
  }

  void draw_axis(double y) {
    const double unit = timeline_.unit_ns > 0 ? timeline_.unit_ns : 1;
    const double rough = end_ / unit / 10, power = std::pow(10, std::floor(std::log10(rough)));
    double step = 10 * power;
    for (const double times : {5.0, 2.0, 1.0})
      if (times * power >= rough) step = times * power;
    for (int i = 0; i * step * unit <= end_; ++i) {
      const auto at = static_cast<int64_t>(std::llround(i * step * unit));
      put("<path class=\"line\" d=\"M{} {}V{}\"/>", number(x(at)), number(kTop - 4), number(y));
      const bool at_edge = x(at) > kWidth - kMargin - 20;
      put("<text class=\"soft {}\" x=\"{}\" y=\"{}\">{}</text>\n", at_edge ? "end" : "mid", number(x(at)),
          number(y + 13), i == 0 ? "0" : time_text(timeline_, at));
    }
  }

  void draw_row(size_t r) {
    const PictureRow& row = rows_.rows[r];
    const double y = tops_[r], middle = y + height(row) / 2 + 4;
    if (row.opens)
      put("<text class=\"who text\" x=\"{}\" y=\"{}\">{}</text>\n", number(kMargin), number(middle), escaped(row.who));
    if (!row.opens || static_cast<double>(row.who.size() + row.name.size()) * kLetter < kGutter - kMargin - 16)
      put("<text class=\"soft end\" x=\"{}\" y=\"{}\">{}</text>\n", number(kGutter - 10), number(middle),
          escaped(row.name));
    put("<rect class=\"lane\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"3\"/>\n", number(kGutter), number(y),
        number(kWidth - kGutter - kMargin), number(height(row)));
    for (const Group& group : row.groups) draw_group(row, group, y);
  }

  void draw_group(const PictureRow& row, const Group& group, double y) {
    const Box& first = timeline_.boxes[static_cast<size_t>(group.first)];
    const Box& last = timeline_.boxes[static_cast<size_t>(group.first + group.count - 1)];
    const double left = x(first.begin), width = x(last.end) - left, waits = x(first.arrived) - left;
    const double drawn = width > 2 ? width - 0.8 : std::max(0.5, width), tall = height(row);
    if (group.kind == BoxKind::other && width < 1.5) return;
    const std::string_view kind = kind_texts()[static_cast<size_t>(group.kind)].id;
    put("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"{}\"/>", kind, number(left), number(y),
        number(drawn), number(tall), drawn > 6 ? "2.5" : "0");
    if (group.chunk > 0)
      put("<rect class=\"chunk\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"2.5\"/>", number(left), number(y),
          number(drawn), number(tall));
    if (waits > 1)
      put("<rect class=\"wait\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>", number(left + 1), number(y + 1),
          number(std::min(waits, drawn - 2)), number(tall - 2));
    const double room = drawn - std::max(0.0, waits);
    const bool dark = group.kind == BoxKind::weight_gradient || group.kind == BoxKind::recompute ||
                      group.kind == BoxKind::activation || group.kind == BoxKind::backward || group.chunk > 0;
    if (room > kLetter * static_cast<double>(group.label.size()) + 4)
      put("<text class=\"mid {}\" x=\"{}\" y=\"{}\">{}</text>", dark ? "dark" : "light",
          number(left + std::max(0.0, waits) + room / 2), number(y + tall / 2 + 4), escaped(group.label));
    out_ += "\n";
  }

  // An arrow leads from the sender's row to the receiver's.
  void draw_arrows() {
    std::vector<double> middles(timeline_.lanes.size(), -1);
    for (size_t r = 0; r < rows_.rows.size(); ++r)
      for (size_t l = 0; l < timeline_.lanes.size(); ++l)
        if (rows_.rows[r].computes &&
            timeline_.lanes[l].rank == timeline_.lanes[static_cast<size_t>(rows_.rows[r].lane)].rank)
          middles[l] = tops_[r];
    for (const Arrow& arrow : timeline_.arrows) {
      const Box& from = timeline_.boxes[static_cast<size_t>(arrow.from)];
      const Box& to = timeline_.boxes[static_cast<size_t>(arrow.to)];
      if (!arrow.between_ranks || from.kind != BoxKind::message) continue;
      const double a = middles[static_cast<size_t>(from.lane)], b = middles[static_cast<size_t>(to.lane)];
      if (a < 0 || b < 0 || a == b) continue;
      put("<path class=\"arrow\" d=\"M{} {}L{} {}\"/>\n", number(x(from.begin)), number(a < b ? a + kComputeHeight : a),
          number(x(std::max(from.end, to.begin))), number(a < b ? b : b + kComputeHeight));
    }
  }

  void draw_legend(double y) {
    double at = kGutter;
    const auto item = [&](std::string_view kind, std::string_view name) {
      put("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" rx=\"2.5\"/>", kind, number(at),
          number(y - 10));
      put("<text class=\"text\" x=\"{}\" y=\"{}\">{}</text>\n", number(at + 18), number(y), name);
      at += 36 + kLetter * static_cast<double>(name.size());
    };
    for (const BoxKind kind : kinds_of(rows_))
      if (kind != BoxKind::other) {
        const KindText& text = kind_texts()[static_cast<size_t>(kind)];
        item(text.id, kind == BoxKind::backward && timeline_.splits_backward ? "backward (activations)" : text.name);
      }
    item("lane", "idle");
    if (std::any_of(timeline_.groups.begin(), timeline_.groups.end(),
                    [](const Group& group) { return group.chunk > 0; }))
      put("<text class=\"soft\" x=\"{}\" y=\"{}\">lighter: later stages of the rank</text>\n", number(at), number(y));
    if (timeline_.unit_ns > 0)
      put("<text class=\"soft end\" x=\"{}\" y=\"{}\">F: the forward of a microbatch</text>\n",
          number(kWidth - kMargin), number(28));
  }

  const Drawing& drawing_;
  const Timeline& timeline_;
  PictureRows rows_;
  std::vector<double> tops_;
  std::vector<double> memory_tops_;  // by rank
  int64_t most_bytes_ = 1;
  double bottom_ = 0, end_ = 1;
  std::string out_;
};

}  // namespace

std::string picture_of(const Drawing& drawing) { return Picture(drawing).draw(); }

}  // namespace prun::draw
