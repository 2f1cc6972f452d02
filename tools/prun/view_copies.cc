#include "view_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "base/text.h"
#include "ir/repeat.h"

namespace prun {
namespace {

constexpr size_t kMostLines = 8;

struct Copies {
  std::string site, kind, reason;
  int64_t bytes = 0;  // written in a step by the rank that writes the most
};

std::vector<Copies> copies_in(const Job& job) {
  std::map<std::tuple<std::string, std::string, std::string>, int64_t> most;
  for (const Program& program : job.classes) {
    std::map<std::tuple<std::string, std::string, std::string>, int64_t> bytes;
    const Body& step = program.step();
    const WrittenOut places(step);
    for (const StreamId stream : step.streams.ids())
      for (int i = 0; i < std::ssize(step.streams[stream].ops); ++i) {
        const Op& op = step.streams[stream].ops[static_cast<size_t>(i)];
        if (!op.attrs.has("copies")) continue;
        bytes[{op.site.text(), std::string(op.def->name), op.attrs.text("copies")}] +=
            program.tensors[op.writes[0]].bytes() * places.runs(stream, i);
      }
    for (const auto& [key, of_class] : bytes) most[key] = std::max(most[key], of_class);
  }
  std::vector<Copies> list;
  for (const auto& [key, bytes] : most) list.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), bytes});
  std::stable_sort(list.begin(), list.end(), [](const Copies& a, const Copies& b) { return a.bytes > b.bytes; });
  return list;
}

}  // namespace

std::string view_copies(const Job& job) {
  const std::vector<Copies> list = copies_in(job);
  if (list.empty()) return "";
  int64_t all = 0;
  for (const Copies& one : list) all += one.bytes;
  std::string text = fmt::format("\nviews copy {} a step and rank\n", human_bytes(all));
  for (size_t i = 0; i < std::min(list.size(), kMostLines); ++i)
    text += fmt::format("  {:>10}  {:<7} at {}: {}\n", human_bytes(list[i].bytes), list[i].kind, list[i].site,
                        list[i].reason);
  if (list.size() > kMostLines) text += fmt::format("  and {} more (--json lists all)\n", list.size() - kMostLines);
  return text;
}

nlohmann::json view_copies_json(const Job& job) {
  nlohmann::json all = nlohmann::json::array();
  for (const Copies& one : copies_in(job))
    all.push_back({{"site", one.site}, {"op", one.kind}, {"reason", one.reason}, {"bytes_per_step", one.bytes}});
  return all;
}

}  // namespace prun
