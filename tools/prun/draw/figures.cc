#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/text.h"
#include "draw/timeline.h"

namespace prun::draw {
namespace {

using Spans = std::vector<std::pair<int64_t, int64_t>>;

bool is_communication(BoxKind kind) {
  return kind == BoxKind::gather || kind == BoxKind::gradient || kind == BoxKind::activation ||
         kind == BoxKind::message;
}

// Returns the spans sorted, with touching ones merged.
Spans joined(Spans spans) {
  std::sort(spans.begin(), spans.end());
  Spans all;
  for (const auto& span : spans) {
    if (!all.empty() && span.first <= all.back().second) {
      all.back().second = std::max(all.back().second, span.second);
    } else {
      all.push_back(span);
    }
  }
  return all;
}

int64_t length(const Spans& spans) {
  int64_t sum = 0;
  for (const auto& [begin, end] : spans) sum += end - begin;
  return sum;
}

int64_t common(const Spans& a, const Spans& b) {
  int64_t sum = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += std::max<int64_t>(0, std::min(a[i].second, b[j].second) - std::max(a[i].first, b[j].first));
    a[i].second < b[j].second ? ++i : ++j;
  }
  return sum;
}

}  // namespace

Figures figures_of(const Timeline& timeline) {
  Figures figures;
  std::set<int> steps;
  std::map<int, std::pair<Spans, Spans>> by_rank;  // computing, communicating
  const int64_t from = timeline.whole_from;
  for (const Box& box : timeline.boxes) {
    steps.insert(box.step);
    if (box.end <= from) continue;
    const Lane& lane = timeline.lanes[static_cast<size_t>(box.lane)];
    auto& [computing, communicating] = by_rank[lane.rank];
    if (is_communication(box.kind)) {
      communicating.emplace_back(std::max(box.begin, from), box.end);
    } else if (lane.stream == 0) {
      computing.emplace_back(std::max(box.arrived, from), box.end);
    }
  }
  figures.steps = static_cast<int>(steps.size());
  figures.covered_ns = std::max<int64_t>(1, timeline.end() - from);
  if (from == 0) figures.step_ns = figures.covered_ns / std::max(1, figures.steps);
  for (auto& [rank, spans] : by_rank) {
    const Spans computing = joined(spans.first), communicating = joined(spans.second);
    const double whole = static_cast<double>(figures.covered_ns) * static_cast<double>(by_rank.size());
    figures.busy += static_cast<double>(length(computing)) / whole;
    figures.communicating += static_cast<double>(length(communicating)) / whole;
    figures.exposed += static_cast<double>(length(communicating) - common(computing, communicating)) / whole;
  }
  figures.critical = critical_shares(timeline);
  for (const MemoryStrip& strip : timeline.memory) figures.peak_bytes = std::max(figures.peak_bytes, strip.peak);
  return figures;
}

std::string time_text(const Timeline& timeline, int64_t ns) {
  if (timeline.unit_ns > 0) return fmt::format("{:.3g} F", static_cast<double>(ns) / timeline.unit_ns);
  if (ns < 1'000'000) return fmt::format("{:.3g} µs", static_cast<double>(ns) / 1e3);
  if (ns < 1'000'000'000) return fmt::format("{:.3g} ms", static_cast<double>(ns) / 1e6);
  return fmt::format("{:.3g} s", static_cast<double>(ns) / 1e9);
}

std::string covered_text(const Timeline& timeline, const Figures& figures) {
  if (figures.step_ns > 0) return time_text(timeline, figures.step_ns) + " a step";
  return "the last " + time_text(timeline, figures.covered_ns);
}

std::string critical_text(const Figures& figures) {
  std::vector<std::pair<int64_t, std::string>> parts;
  int64_t sum = 0;
  for (size_t k = 0; k < figures.critical.size(); ++k) {
    sum += figures.critical[k];
    parts.emplace_back(figures.critical[k],
                       k < kind_texts().size() ? std::string(kind_texts()[k].name) : std::string("waiting"));
  }
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::string> words;
  for (const auto& [ns, name] : parts)
    if (words.size() < 3 && ns * 100 >= sum && sum > 0)
      words.push_back(fmt::format("{:.0f} % {}", 100.0 * static_cast<double>(ns) / static_cast<double>(sum), name));
  return join(words, ", ");
}

}  // namespace prun::draw
