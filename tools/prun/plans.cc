// prun plans: lists the plans that come with prun, in plans/ and plans/custom/ next to lua/. A file that returns no
// plan (a strategy required by a plan) is not listed.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "job/build.h"
#include "job_options.h"
#include "plan_paths.h"

namespace prun {
namespace {

namespace fs = std::filesystem;

struct ListedPlan {
  std::string name, path;  // "zero3", "plans/zero3.lua"
  ScriptResult about;
  std::string error;  // the reason why the file cannot be read
};

std::vector<ListedPlan> list_plans(const std::string& lua_dir) {
  std::vector<ListedPlan> plans;
  const fs::path root = fs::path(lua_dir).parent_path();
  for (const std::string& path : plan_paths(root)) {
    ListedPlan plan{fs::path(path).stem().string(), path, {}, ""};
    JobSpec job;
    job.lua_dir = lua_dir;
    job.plan = (root / path).string();
    try {
      plan.about = describe_plan(job);
    } catch (const Error& error) {
      plan.error = error.what();
    }
    if (plan.about.is_plan) plans.push_back(std::move(plan));
  }
  return plans;
}

// A default that is not a JSON number (inf) remains text.
nlohmann::json argument_json(const PlanArgument& argument) {
  const std::string& typed = argument.initial;
  nlohmann::json initial =
      nlohmann::json::parse(argument.kind == "numbers" ? "[" + typed + "]" : typed, nullptr, false);
  if (argument.kind == "text" || initial.is_discarded()) initial = typed;
  return {{"name", argument.name},
          {"kind", argument.kind},
          {"default", initial},
          {"help", argument.help},
          {"tune", argument.tune}};
}

nlohmann::json plan_as_json(const ListedPlan& plan) {
  nlohmann::json arguments = nlohmann::json::array();
  for (const PlanArgument& argument : plan.about.arguments) arguments.push_back(argument_json(argument));
  return {{"name", plan.name},
          {"path", plan.path},
          {"description", plan.about.description},
          {"arguments", arguments},
          {"error", plan.error}};
}

}  // namespace

std::vector<std::string> plan_paths(const fs::path& root) {
  std::vector<std::string> paths;
  for (const char* folder : {"plans", "plans/custom"}) {
    const size_t first = paths.size();
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(root / folder, error))
      if (entry.path().extension() == ".lua") paths.push_back((fs::path(folder) / entry.path().filename()).string());
    std::sort(paths.begin() + static_cast<std::ptrdiff_t>(first), paths.end());
  }
  return paths;
}

namespace {

class Plans final : public Command {
 public:
  void declare(OptionTable& /*table*/) override {}
  void take_operands(std::vector<std::string>& operands) override {
    refuse_operands("plans", operands, "it lists all");
  }
  int run() override;
  JobSpec* job() override { return &job_; }

 private:
  JobSpec job_;
};

int Plans::run() {
  const std::vector<ListedPlan> plans = list_plans(job_.lua_dir);
  if (line_.json) {
    nlohmann::json rows = nlohmann::json::array();
    for (const ListedPlan& plan : plans) rows.push_back(plan_as_json(plan));
    fmt::print("{}\n", nlohmann::json{{"plans", rows}}.dump());
    return 0;
  }
  size_t width = 0;
  for (const ListedPlan& plan : plans) width = std::max(width, plan.path.size());
  for (const ListedPlan& plan : plans)
    fmt::print("{:<{}}  {}\n", plan.path, width,
               plan.error.empty() ? plan.about.description : "cannot be read: " + plan.error);
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_plans() { return std::make_unique<Plans>(); }

}  // namespace prun
