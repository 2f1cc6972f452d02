#include "diff/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/text.h"

namespace prun {
namespace {

using simulate::PartKind;
using simulate::StepPart;
using Json = nlohmann::ordered_json;

constexpr size_t kShownCauses = 8;         // the other causes share one line
constexpr double kShownCauseShare = 1e-3;  // fraction of the step; smaller causes have no line of their own
constexpr double kRounding = 1e-9;         // fraction of the step; smaller differences are rounding
constexpr double kShownSeconds = 5e-8;     // smaller differences are printed as 0.0 us

struct KindName {
  PartKind kind;
  const char *id, *name, *of_cause;
};
constexpr std::array<KindName, 5> kKinds = {{
    {PartKind::compute, "compute", "compute", ""},
    {PartKind::slowed, "slowed", "compute that transfers slow down", "compute beside transfers"},
    {PartKind::exposed, "exposed_communication", "exposed communication", "exposed "},
    {PartKind::copy, "copies", "copies from and to the host", ""},
    {PartKind::waiting, "bubble", "bubble: waiting for other ranks", "waiting for "},
}};
const KindName& names_of(PartKind kind) { return kKinds[static_cast<size_t>(kind)]; }

std::string what_of(const StepPart& part) {
  if (part.kind == PartKind::slowed) return "";
  if (part.kind == PartKind::compute) return part.site.empty() ? part.op : fmt::format("{}, {}", part.op, part.site);
  if (part.kind == PartKind::copy) return part.op;
  return part.op.empty() ? "the end of the step" : fmt::format("{} over {}", part.op, part.axis);
}

double sum_of(const PredictedStep& step, PartKind kind) {
  double sum = 0;
  for (const auto& [part, seconds] : step.parts)
    if (part.kind == kind) sum += seconds;
  return sum;
}

// Lines of an op that only one of the plans has.
struct Unmatched {
  StepCause cause;
  std::set<std::string> first, second;  // lines
};

std::string lines_text(const std::set<std::string>& lines) {
  return join(std::vector<std::string>(lines.begin(), lines.end()), " ");
}

std::string change_text(double seconds) { return (seconds < 0 ? "-" : "+") + human_seconds(std::abs(seconds)); }

void print_row(const std::string& what, double first, double second) {
  fmt::print("{:<54} {:>11} {:>11}{}\n", what, human_seconds(first), human_seconds(second),
             std::abs(second - first) < kShownSeconds ? "" : fmt::format(" {:>11}", change_text(second - first)));
}

std::string cause_text(const StepCause& cause) { return names_of(cause.kind).of_cause + cause.what; }

void print_causes(const PredictedStep& first, const PredictedStep& second) {
  const std::vector<StepCause> causes = causes_of(first, second);
  const double difference = second.simulation.step_s - first.simulation.step_s;
  if (causes.empty()) {
    fmt::print("no op takes longer in one of them\n");
    return;
  }
  fmt::print("why the second is {} {}\n", human_seconds(std::abs(difference)), difference < 0 ? "shorter" : "longer");
  const double least = kShownCauseShare * std::max(first.simulation.step_s, second.simulation.step_s);
  double first_s = 0, second_s = 0;
  int64_t smaller = 0;
  for (size_t i = 0; i < causes.size(); ++i) {
    if (i < kShownCauses && std::abs(causes[i].difference()) >= least) {
      print_row("  " + cause_text(causes[i]), causes[i].first_s, causes[i].second_s);
    } else {
      first_s += causes[i].first_s, second_s += causes[i].second_s, ++smaller;
    }
  }
  if (smaller > 0)
    print_row(fmt::format("  and {} (--json lists all)", counted(smaller, "smaller cause")), first_s, second_s);
}

Json step_json(const PredictedStep& step) {
  Json json = {{"step_s", step.simulation.step_s}, {"fits", simulate::too_large(step.simulation).empty()}};
  for (const KindName& kind : kKinds) json[std::string(kind.id) + "_s"] = sum_of(step, kind.kind);
  return json;
}

}  // namespace

PredictedStep predict_step(const Job& job, const simulate::Cluster& cluster) {
  PredictedStep step;
  step.simulation = simulate::simulate(job, cluster, {.keep_spans = true});
  step.parts = simulate::step_parts(job, cluster, step.simulation);
  return step;
}

std::vector<StepCause> causes_of(const PredictedStep& first, const PredictedStep& second) {
  std::vector<StepCause> causes;
  std::map<std::string, Unmatched> unmatched;  // lines by op
  const auto add = [&](const StepPart& part, double a, double b, bool in_first, bool in_second) {
    if (part.kind != PartKind::compute || (in_first && in_second)) {
      causes.push_back({part.kind, what_of(part), a, b});
      return;
    }
    Unmatched& of = unmatched[part.op];
    of.cause.first_s += a, of.cause.second_s += b;
    (in_first ? of.first : of.second).insert(part.site);
  };
  for (const auto& [part, seconds] : first.parts) {
    const auto there = second.parts.find(part);
    const bool both = there != second.parts.end();
    add(part, seconds, both ? there->second : 0, true, both);
  }
  for (const auto& [part, seconds] : second.parts)
    if (!first.parts.contains(part)) add(part, 0, seconds, false, true);
  for (auto& [op, of] : unmatched) {
    of.cause.what = fmt::format("{}, {}", op, lines_text(of.first.empty() ? of.second : of.first));
    if (!of.first.empty() && !of.second.empty()) of.cause.what += fmt::format(" and {}", lines_text(of.second));
    causes.push_back(of.cause);
  }
  const double least = kRounding * std::max(first.simulation.step_s, second.simulation.step_s);
  std::erase_if(causes, [&](const StepCause& cause) { return std::abs(cause.difference()) <= least; });
  std::sort(causes.begin(), causes.end(), [](const StepCause& a, const StepCause& b) {
    return std::tuple(-std::abs(a.difference()), a.what) < std::tuple(-std::abs(b.difference()), b.what);
  });
  return causes;
}

std::string difference_text(const PredictedStep& first, const PredictedStep& second) {
  const double difference = second.simulation.step_s - first.simulation.step_s;
  const double least = kShownCauseShare * std::max(first.simulation.step_s, second.simulation.step_s);
  std::vector<std::string> words;
  for (const StepCause& cause : causes_of(first, second))
    if (words.size() < kShownCauses && std::abs(cause.difference()) >= least)
      words.push_back(fmt::format("{} {}", cause_text(cause), change_text(cause.difference())));
  return fmt::format("{} {}{}", human_seconds(std::abs(difference)), difference < 0 ? "shorter" : "longer",
                     words.empty() ? "" : ": " + join(words, ", "));
}

void print_prediction(const simulate::Cluster& cluster, const PredictedStep& first, const PredictedStep& second) {
  fmt::print("\n");
  const double a = first.simulation.step_s, b = second.simulation.step_s;
  print_row(fmt::format("a step on {}", cluster.name.empty() ? cluster.path : cluster.name), a, b);
  for (const KindName& kind : kKinds) {
    const double x = sum_of(first, kind.kind), y = sum_of(second, kind.kind);
    if (std::max(x, y) >= kShownSeconds) print_row(fmt::format("  {}", kind.name), x, y);
  }
  for (const PredictedStep* step : {&first, &second})
    if (const std::string why = simulate::too_large(step->simulation); !why.empty())
      fmt::print("  the {} does not fit: {}\n", step == &first ? "first" : "second", why);
  print_causes(first, second);
}

Json prediction_json(const simulate::Cluster& cluster, const PredictedStep& first, const PredictedStep& second) {
  Json causes = Json::array();
  for (const StepCause& cause : causes_of(first, second))
    causes.push_back({{"kind", names_of(cause.kind).id},
                      {"what", cause_text(cause)},
                      {"first_s", cause.first_s},
                      {"second_s", cause.second_s},
                      {"difference_s", cause.difference()}});
  return {{"cluster", cluster.name.empty() ? cluster.path : cluster.name},
          {"first", step_json(first)},
          {"second", step_json(second)},
          {"difference_s", second.simulation.step_s - first.simulation.step_s},
          {"causes", causes}};
}

}  // namespace prun
