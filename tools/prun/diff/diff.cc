// prun diff A [B]: compares two plans, or one plan with two settings. It compares memory by role, bytes by collective
// and by line of Lua, the order of ops and their waits, and the step at unit costs or as predicted on a cluster with
// the causes of the difference. It starts no rank.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "diff/plan_facts.h"
#include "diff/prediction.h"
#include "help.h"
#include "job/build.h"
#include "job_options.h"
#include "predict/predict.h"
#include "script/script.h"
#include "sim_options.h"

namespace prun {
namespace {

using Json = nlohmann::ordered_json;

struct DiffSide {
  Job job;
  PlanFacts facts;
  std::optional<PredictedStep> step;  // used with a cluster
  draw::Timeline timeline;
};

DiffSide diff_side_of(JobSpec job, const std::string& plan, const std::map<std::string, std::string>& settings,
                      const std::optional<simulate::Cluster>& cluster, const std::string& which) {
  job.plan = plan;
  for (const auto& [key, value] : settings) job.settings[key] = value;
  std::string name = plan;
  for (const auto& [key, value] : job.settings) name += fmt::format(", {}={}", key, value);
  DiffSide side;
  print_again();  // each side may be the same plan
  side.job = written_out(build_job(job, job.ranks()));
  side.facts = facts_of(side.job, name);
  if (cluster) side.step = predict_step(side.job, *cluster);
  side.timeline = timeline_of_plan(side.job, side.step ? &*side.step : nullptr, which, name);
  return side;
}

std::string change_text(double from, double to) {
  if (from == to) return "";
  const std::string sign = to > from ? "+" : "-";
  return sign + human_bytes(std::llround(std::abs(to - from)));
}

void print_row(const std::string& what, const std::string& first, const std::string& second,
               const std::string& change) {
  fmt::print("{:<54} {:>11} {:>11}{}\n", what, first, second, change.empty() ? "" : fmt::format(" {:>11}", change));
}

void print_bytes(const std::string& what, double from, double to) {
  print_row(what, human_bytes(std::llround(from)), human_bytes(std::llround(to)), change_text(from, to));
}

template <class Map>
double sum_of(const Map& map) {
  double sum = 0;
  for (const auto& [key, value] : map) sum += static_cast<double>(value);
  return sum;
}

// Visits each key of either map, with its values in both; with `changes` only keys whose values differ.
template <class Map, class Use>
void each(const Map& first, const Map& second, bool changes, Use use) {
  std::set<std::string> keys;
  for (const Map* map : {&first, &second})
    for (const auto& [key, value] : *map) keys.insert(key);
  const auto value = [](const Map& map, const std::string& key) {
    const auto found = map.find(key);
    return found == map.end() ? 0.0 : static_cast<double>(found->second);
  };
  for (const std::string& key : keys)
    if (!changes || value(first, key) != value(second, key)) use(key, value(first, key), value(second, key));
}

void print_order(const PlanFacts& first, const PlanFacts& second) {
  fmt::print("\norder of ops, rank 0\n");
  for (const OrderDiff& diff : order_diffs(first, second)) {
    if (diff.same()) {
      fmt::print("  {}: the same {} in the same order\n", diff.stream,
                 counted(std::ssize(first.streams.at(diff.stream).ops), "op"));
      continue;
    }
    std::vector<std::string> parts;
    const auto part = [&](int count, const char* what) {
      if (count > 0) parts.push_back(fmt::format("{} {}", count, what));
    };
    part(diff.only_first, "only in the first");
    part(diff.only_second, "only in the second");
    part(diff.moved, "elsewhere in the order");
    part(diff.other_waits, "wait for other ops");
    fmt::print("  {}: {}\n", diff.stream, join(parts, ", "));
    for (const std::string& example : diff.examples) fmt::print("    {}\n", printable(example));
  }
}

void print_facts(const PlanFacts& a, const PlanFacts& b) {
  fmt::print("first   {} ({}, {})\nsecond  {} ({}, {})\n\n", a.name, counted(a.ranks, "rank"), a.mesh, b.name,
             counted(b.ranks, "rank"), b.mesh);
  print_row("", "first", "second", "");
  const auto percent = [](double part) { return fmt::format("{:.0f} %", 100 * part); };
  print_row("a step at unit costs, in forwards", fmt::format("{:.2f}", a.step), fmt::format("{:.2f}", b.step),
            a.step == b.step ? "" : fmt::format("{:+.0f} %", 100 * (b.step / a.step - 1)));
  print_row("  compute busy", percent(a.busy), percent(b.busy), "");
  print_row("  communication exposed", percent(a.exposed), percent(b.exposed), "");
  print_bytes("memory of the rank with the most", static_cast<double>(a.arena_bytes),
              static_cast<double>(b.arena_bytes));
  each(a.roles, b.roles, false, [](const std::string& role, double x, double y) { print_bytes("  " + role, x, y); });
  print_bytes("sent by a rank in a step", sum_of(a.sent), sum_of(b.sent));
  each(a.sent, b.sent, false, [](const std::string& what, double x, double y) { print_bytes("  " + what, x, y); });
  bool heading = false;
  each(a.sent_by_line, b.sent_by_line, true, [&](const std::string& line, double x, double y) {
    if (!std::exchange(heading, true)) fmt::print("why: by the lines that ask for it\n");
    print_bytes("  " + line, x, y);
  });
}

Json facts_json(const PlanFacts& facts) {
  return {{"plan", facts.name},       {"ranks", facts.ranks},     {"mesh", facts.mesh},
          {"classes", facts.classes}, {"ops", facts.ops},         {"arena_bytes", facts.arena_bytes},
          {"roles", facts.roles},     {"sent_bytes", facts.sent}, {"sent_bytes_by_line", facts.sent_by_line},
          {"step", facts.step},       {"busy", facts.busy},       {"exposed", facts.exposed}};
}

Json order_json(const PlanFacts& first, const PlanFacts& second) {
  Json list = Json::array();
  for (const OrderDiff& diff : order_diffs(first, second))
    list.push_back({{"stream", diff.stream},
                    {"only_first", diff.only_first},
                    {"only_second", diff.only_second},
                    {"moved", diff.moved},
                    {"other_waits", diff.other_waits},
                    {"examples", diff.examples}});
  return list;
}

void print_all(const std::optional<simulate::Cluster>& cluster, const DiffSide& first, const DiffSide& second) {
  print_facts(first.facts, second.facts);
  if (cluster)
    print_prediction(*cluster, *first.step, *second.step);
  else
    fmt::print("no predicted time: --cluster FILE says where, or `prun calibrate` measures this machine\n");
  print_order(first.facts, second.facts);
  draw::Drawing drawing;
  drawing.timelines = {first.timeline, second.timeline};
  drawing.one_axis = true;
  fmt::print("\n{}", draw::text_of(drawing, terminal_columns()));
}

void print_json(const std::optional<simulate::Cluster>& cluster, const DiffSide& first, const DiffSide& second) {
  Json all = {{"first", facts_json(first.facts)},
              {"second", facts_json(second.facts)},
              {"order", order_json(first.facts, second.facts)},
              {"predicted", nullptr}};
  if (cluster) all["predicted"] = prediction_json(*cluster, *first.step, *second.step);
  fmt::print("{}\n", all.dump(-1, ' ', false, Json::error_handler_t::replace));
}

class Diff final : public Command {
 public:
  void declare(OptionTable& table) override;
  void settle() override;
  int run() override;
  JobSpec* job() override { return &job_; }

 private:
  JobSpec job_;
  SimSettings sim_;
  std::string out_;
  std::map<std::string, std::string> to_;
};

void Diff::declare(OptionTable& table) {
  declare_plan(table, job_);
  option::device(table, job_);
  table.group("comparison");
  table.parsed(
      "--to", "NAME=VALUE", [this](const std::string& text) { read_setting(to_, "--to", text); },
      "an argument that the second has; the same plan where one is named", true);
  declare_cluster(table, sim_);
  table.text("--out", "NAME.html", out_, "draw both steps on a page, below each other");
}

void Diff::settle() {
  const std::vector<std::string>& plans = line_.operands;
  refuse_settings(plans, "--to");
  if (plans.empty() || plans.size() > 2)
    throw usage_error(
        "prun diff takes two plans, or one and --to: prun diff plans/zero2.lua plans/zero3.lua --nproc 4, or "
        "prun diff plans/zero3.lua --nproc 4 --to prefetch=2");
  if (plans.size() == 1 && to_.empty())
    throw usage_error(fmt::format("{} needs another plan to compare with; name it, or add --to NAME=VALUE", plans[0]));
  for (const std::string& plan : plans)
    if (plan.ends_with(".json") || plan.ends_with(".jsonl"))
      throw usage_error(fmt::format(
          "prun diff compares plans, and {} is not a plan; `prun draw {} PLAN` shows a trace beside its plan", plan,
          plan));
  if (const std::string& out = out_; !out.empty() && !out.ends_with(".html"))
    throw usage_error(fmt::format("--out must end with .html, not '{}'", out));
  check_ranks(job_);
  settle_cluster(sim_, false, job_.ranks());  // prints a remark, so it comes after the errors
}

int Diff::run() {
  const std::vector<std::string>& plans = line_.operands;
  std::optional<simulate::Cluster> cluster;
  if (!sim_.cluster.empty()) {
    cluster = open_cluster(job_, sim_.cluster);
    simulate::place_ranks(*cluster, job_.ranks());  // throws before compiling if the cluster is too small
  }
  const DiffSide first = diff_side_of(job_, plans[0], {}, cluster, "first");
  const DiffSide second = diff_side_of(job_, plans.back(), to_, cluster, "second");
  line_.json ? print_json(cluster, first, second) : print_all(cluster, first, second);
  if (!out_.empty()) {
    draw::Drawing drawing = two_timelines({first.timeline, second.timeline}, first.job, second.job);
    drawing.title = fmt::format("{} and {}", first.facts.name, second.facts.name);
    if (cluster)
      drawing.notes.push_back(fmt::format("Why the second is {}.", difference_text(*first.step, *second.step)));
    draw::write_drawing(drawing, out_);
  }
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_diff() { return std::make_unique<Diff>(); }

}  // namespace prun
