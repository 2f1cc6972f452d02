#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>
#include <vector>

#include "draw/picture_parts.h"

namespace prun::draw {
namespace {

constexpr std::array<BoxKind, 4> kLayers = {BoxKind::other, BoxKind::gather, BoxKind::forward, BoxKind::message};

size_t layer_of(const std::string& role) {
  if (role == "param" || role == "grad" || role == "optimizer") return 0;
  if (role == "gathered") return 1;
  return role == "activation" ? 2 : 3;
}

using Layers = std::array<int64_t, kLayers.size()>;

// Returns for each column the moment with the most bytes.
std::vector<Layers> columns_of_memory(const MemoryStrip& strip, int columns, int64_t end) {
  std::vector<Layers> list(static_cast<size_t>(columns), Layers{});
  std::vector<int64_t> sums(static_cast<size_t>(columns), -1);
  const auto column = [&](int64_t time) {
    return std::clamp(static_cast<int>(static_cast<double>(time) / static_cast<double>(end) * columns), 0, columns - 1);
  };
  for (size_t i = 0; i < strip.times.size(); ++i) {
    Layers layers{};
    int64_t sum = 0;
    for (size_t r = 0; r < strip.roles.size(); ++r) {
      layers[layer_of(strip.roles[r])] += strip.bytes[r][i];
      sum += strip.bytes[r][i];
    }
    const int last = column(i + 1 < strip.times.size() ? strip.times[i + 1] : end);
    for (int c = column(strip.times[i]); c <= last; ++c) {
      if (sum <= sums[static_cast<size_t>(c)]) continue;
      sums[static_cast<size_t>(c)] = sum;
      list[static_cast<size_t>(c)] = layers;
    }
  }
  return list;
}

// Returns the path along one edge of a layer, "H10V4H12V5", in either direction.
std::string edge_of(const std::vector<double>& heights, const PictureArea& area, bool forwards) {
  std::string path;
  const int count = static_cast<int>(heights.size());
  for (int k = 0; k < count; ++k) {
    const int c = forwards ? k : count - 1 - k;
    const int next = forwards ? c + 1 : c - 1;
    if (next >= 0 && next < count &&
        number(heights[static_cast<size_t>(next)]) == number(heights[static_cast<size_t>(c)]))
      continue;
    const double x = area.left + (forwards ? c + 1 : c) * area.width / count;
    fmt::format_to(std::back_inserter(path), "V{}H{}", number(heights[static_cast<size_t>(c)]), number(x));
  }
  return path;
}

}  // namespace

std::string number(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

std::string memory_paths(const MemoryStrip& strip, const PictureArea& area, int64_t most, int64_t end) {
  const std::vector<Layers> columns = columns_of_memory(strip, static_cast<int>(area.width), std::max<int64_t>(1, end));
  std::vector<double> under(columns.size(), area.top + area.height);
  std::string out;
  for (size_t layer = 0; layer < kLayers.size(); ++layer) {
    std::vector<double> over = under;
    for (size_t c = 0; c < columns.size(); ++c)
      over[c] -= static_cast<double>(columns[c][layer]) / static_cast<double>(most) * (area.height - 3);
    if (over != under)
      fmt::format_to(std::back_inserter(out), "<path class=\"{} memory\" d=\"M{} {}{}{}Z\"/>\n",
                     kind_texts()[static_cast<size_t>(kLayers[layer])].id, number(area.left), number(under.front()),
                     edge_of(over, area, true), edge_of(under, area, false));
    under = std::move(over);
  }
  return out;
}

}  // namespace prun::draw
