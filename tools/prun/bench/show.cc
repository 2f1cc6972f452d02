// The output has nccl-tests' columns and closing lines, because scripts parse them. prun's additions are comment lines.
#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/text.h"
#include "bench/rows.h"
#include "standard_streams.h"

namespace prun {
namespace {

using ReportJson = nlohmann::json;

std::string text_of(const ReportJson& value) {
  return value.is_string() ? value.get<std::string>() : value.is_null() ? "-" : value.dump();
}

// Formats a time with about four significant digits.
std::string time_text(double us) {
  return us < 10 ? fmt::format("{:.3f}", us) : us < 1000 ? fmt::format("{:.2f}", us) : fmt::format("{:.0f}", us);
}

std::string figures(const ReportJson& row) {
  if (row.is_null()) return fmt::format("{:>10} {:>8} {:>8} {:>6}", "-", "-", "-", "N/A");
  return fmt::format("{:>10} {:>8.2f} {:>8.2f} {:>6}", time_text(row["time_us"]), row["algbw_gbs"].get<double>(),
                     row["busbw_gbs"].get<double>(), row["wrong"].is_null() ? "N/A" : text_of(row["wrong"]));
}

std::string side_text(const ReportJson& side) {
  const std::string options = side.value("transport_options", "");
  return text_of(side["transport"]) + (options.empty() ? "" : ":" + options);
}

// Returns the headings of the columns' two halves: the two sides, by distinct names, or the placements.
std::vector<std::string> halves_of(const ReportJson& row) {
  const std::string place = row["place"] == "in" ? "in-place" : "out-of-place";
  if (row.contains("in_place")) return {place, "in-place"};
  if (!row.contains("vs")) return {place};
  const std::string first = side_text(row), second = side_text(row["vs"]);
  if (first == second) return {first + " (1)", second + " (2)"};
  return {first, second};
}

std::string without_end(const std::string& line) { return line.substr(0, line.find_last_not_of(' ') + 1) + "\n"; }

std::string heading_of(const ReportJson& row) {
  if (row.contains("core_percent")) return "\n# idle: share of a core that a waiting rank uses\n";
  const std::vector<std::string> halves = halves_of(row);
  const bool versus = row.contains("vs");
  const int ranks = row["ranks"];
  std::string text = fmt::format("\n# {}, {} {} over {}", text_of(row["op"]), ranks, ranks == 1 ? "rank" : "ranks",
                                 versus ? join(halves, " and ") : text_of(row["transport"]));
  text += versus ? fmt::format(", {}\n", row["place"] == "in" ? "in place" : "out of place") : "\n";
  if (row.contains("plugin"))
    text += fmt::format("# {}: {}\n", versus ? halves[0] : side_text(row), text_of(row["plugin"]));
  if (versus && row["vs"].contains("plugin"))
    text += fmt::format("# {}: {}\n", halves[1], text_of(row["vs"]["plugin"]));
  std::string names = fmt::format("#{:>50}", ""),
              columns = fmt::format("#{:>12} {:>13} {:>7} {:>7} {:>7}", "size", "count", "type", "redop", "root"),
              units = fmt::format("#{:>12} {:>13} {:>7} {:>7} {:>7}", "(B)", "(elements)", "", "", "");
  for (const std::string& half : halves) {
    names += fmt::format(" {:^36}", half);
    columns += fmt::format(" {:>10} {:>8} {:>8} {:>6} ", "time", "algbw", "busbw", "#wrong");
    units += fmt::format(" {:>10} {:>8} {:>8} {:>6} ", "(us)", "(GB/s)", "(GB/s)", "");
  }
  return text + without_end(names) + without_end(columns + (versus ? " ratio" : "")) + without_end(units);
}

}  // namespace

void BenchTable::row(const std::string& json) {
  const ReportJson row = ReportJson::parse(json);
  for (const char* place : {"", "in_place", "vs"}) {
    const ReportJson& part = *place == '\0' ? row : row.contains(place) ? row[place] : ReportJson(nullptr);
    if (!part.is_object() || !part.contains("wrong")) continue;
    if (part["wrong"].is_number()) wrong_ += part["wrong"].get<int64_t>();
    if (part.contains("transport") && *place != '\0') continue;  // averages only the first side
    bus_sum_ += part["busbw_gbs"].get<double>();
    bus_count_++;
  }
  if (options_.json) {
    fmt::print("{}\n", json);
    flush_output();
    return;
  }
  const std::string heading = heading_of(row);
  if (heading != heading_) fmt::print("{}", heading);
  heading_ = heading;
  if (row.contains("core_percent")) {
    fmt::print("{:>13.2f} % of a core, {} ranks over {}\n", row["core_percent"].get<double>(), row["ranks"].get<int>(),
               text_of(row["transport"]));
  } else {
    fmt::print(" {:>12} {:>13} {:>7} {:>7} {:>7} {}", row["bytes"].get<int64_t>(), row["count"].get<int64_t>(),
               text_of(row["dtype"]), text_of(row["redop"]), row["root"].is_null() ? "-1" : text_of(row["root"]),
               figures(row));
    if (row.contains("in_place")) fmt::print("  {}", figures(row["in_place"]));
    if (row.contains("vs")) fmt::print("  {} {:>6.2f}", figures(row["vs"]), row["ratio"].get<double>());
    fmt::print("\n");
    if (options_.bench.explain && row.contains("why")) {
      fmt::print("#   {}: {}\n", text_of(row["algorithm"]), text_of(row["why"]));
      if (row.contains("vs")) fmt::print("#   {}: {}\n", text_of(row["vs"]["algorithm"]), text_of(row["vs"]["why"]));
    }
  }
  flush_output();
}

void BenchTable::finish() {
  if (options_.json || bus_count_ == 0) return;
  if (options_.bench.check) fmt::print("\n# Out of bounds values : {} {}\n", wrong_, wrong_ == 0 ? "OK" : "FAILED");
  fmt::print("# Avg bus bandwidth    : {:.4g}\n", bus_sum_ / bus_count_);
}

}  // namespace prun
