// eos_token_id is a number or a list of them.
#include "job/weights.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <variant>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/base.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf/peft_folder.h"
#include "checkpoint/linear_weights.h"
#include "checkpoint/reader.h"
#include "checkpoint/weights.h"
#include "job/adapters.h"

namespace prun {

void require_fit(checkpoint::Weights weights, const Job& job) {
  std::set<std::string> linear;  // each stage of a pipeline has its own
  for (const Program& program : job.classes) linear.merge(checkpoint::linear_weights(program));
  checkpoint::take_linear_weights(weights, linear);
  const auto refuse = [&](const std::string& what) {
    throw Error(Exit::checkpoint_invalid,
                fmt::format("the weights in {} do not fit this plan: {}", weights.folder, what));
  };
  std::map<std::string, Shape> wanted;
  for (const Program& program : job.classes)
    for (const StateTensor& state : program.state) wanted[state.name] = state.shape;
  if (const std::string differs = checkpoint::differing_tensor(weights, wanted); !differs.empty()) refuse(differs);
  if (const std::string differs = checkpoint::differing_model(weights.model, job.classes.front().model);
      !differs.empty())
    refuse(differs);
}

void take_folder(JobSpec& spec) {
  GenerationSettings& settings = spec.generation;
  if (!spec.settings.empty()) throw usage_error(fmt::format("{} has no arguments: --set goes with a plan", spec.plan));
  const ModelDescription model = checkpoint::open_weights(spec.plan).model;
  if (model.name.empty())
    throw usage_error(
        fmt::format("the weights in {} are of a model that its plan wrote itself: prun generate PLAN "
                    "--checkpoint {}",
                    spec.plan, spec.plan));
  std::string arguments;
  for (const auto& [name, value] : model.arguments.values()) {
    const auto text = [](const auto& held) -> std::string {
      using Held = std::decay_t<decltype(held)>;
      if constexpr (std::is_arithmetic_v<Held> || std::is_same_v<Held, std::string>) return fmt::format("{}", held);
      return "";
    };
    arguments += fmt::format("{}={} ", name, std::visit(text, value));
  }
  settings.checkpoint = spec.plan;
  spec.plan = spec.lua_dir + "/prun/described_model.lua";
  spec.settings = {{"model", model.name}, {"arguments", arguments}};
}

std::vector<int32_t> ends_of_folder(const std::string& folder) {
  for (const char* name : {"/generation_config.json", "/config.json"}) {
    if (!std::filesystem::exists(folder + name)) continue;
    const nlohmann::json config = nlohmann::json::parse(checkpoint::read_file(folder + name), nullptr, false);
    const nlohmann::json ends = config.is_object() ? config.value("eos_token_id", nlohmann::json()) : nlohmann::json();
    std::vector<int32_t> ids;
    for (const nlohmann::json& id : ends.is_array() ? ends : nlohmann::json::array({ends}))
      if (id.is_number_integer()) ids.push_back(id.get<int32_t>());
    if (!ids.empty()) return ids;
  }
  return {};
}

namespace {

using checkpoint::Weights;

std::map<std::string, Shape> parameters_of(const Plan& plan) {
  std::map<std::string, Shape> shapes;
  for (const Value& value : plan.graph.values)
    if (value.kind == ValueKind::parameter && !is_adapter(value.name)) shapes[value.name] = value.type.shape;
  return shapes;
}

// Returns the names of one side that the other lacks, at most eight of them.
template <class Side, class Other>
std::vector<std::string> names_beyond(const Side& side, const Other& other) {
  std::vector<std::string> names;
  for (const auto& [name, of] : side)
    if (!other.contains(name)) names.push_back(name);
  return names;
}

std::string some_of(std::vector<std::string> names) {
  constexpr size_t kMost = 8;
  const size_t more = names.size() > kMost ? names.size() - kMost : 0;
  names.resize(names.size() - more);
  return join(names, ", ") + (more > 0 ? fmt::format(" and {} more", more) : "");
}

// Lists the parameters that do not come from the weights, and the weights that the plan does not read.
void remark_partial(const Weights& weights, const std::map<std::string, Shape>& parameters, const Site& site) {
  const std::vector<std::string> missing = names_beyond(parameters, weights.tensors),
                                 unread = names_beyond(weights.tensors, parameters);
  if (missing.size() == parameters.size())
    throw Error(Exit::checkpoint_invalid,
                fmt::format("the weights of {} have no parameter of this plan: they have {}, it has {}", weights.folder,
                            some_of(unread), some_of(missing)));
  const auto print = [&](const std::string& what) { fmt::print(stderr, "prun: {}: {}\n", site.text(), what); };
  if (!missing.empty())
    print(fmt::format("{} of {} parameters are not in {}, so they get initial values: {}", missing.size(),
                      parameters.size(), weights.folder, some_of(missing)));
  if (!unread.empty())
    print(fmt::format("{} in {} {} not read, because the plan has no such parameter: {}",
                      counted(std::ssize(unread), "tensor"), weights.folder, unread.size() == 1 ? "is" : "are",
                      some_of(unread)));
}

// Opens the weights that a plan begins with, without adapters.
Weights open_initial_weights(const Plan& plan) {
  const std::string& path = plan.initial_weights->path;
  if (!plan.adapters.any() || !checkpoint::is_peft_folder(path)) return checkpoint::open_initial(path, plan.adapters);
  checkpoint::PeftWeights peft = checkpoint::open_peft_folder(path, plan.adapters.base);
  require_peft_fits(plan, peft);
  std::erase_if(peft.weights.tensors, [](const auto& tensor) { return is_adapter(tensor.first); });
  return std::move(peft.weights);
}

}  // namespace

void require_weights_fit(const Plan& plan, bool trains, bool resumes) {
  if (!plan.initial_weights) return;
  try {
    Weights weights = open_initial_weights(plan);
    checkpoint::take_linear_weights(weights, checkpoint::linear_weights(plan.graph));
    const bool partial = plan.initial_weights->partial;
    const std::map<std::string, Shape> parameters = parameters_of(plan);
    ModelDescription there = weights.model;
    if (const Attrs& ours = plan.model.arguments; partial && ours.has("layers"))
      there.arguments.set("layers", ours.integer("layers"));  // the weights may lack layers
    std::string problem = checkpoint::differing_model(there, plan.model);
    if (problem.empty()) problem = checkpoint::differing_tensor(weights, parameters, partial);
    if (!problem.empty()) {
      if (!weights.model.name.empty())
        problem += fmt::format("; there it is {}", checkpoint::model_text(weights.model));
      throw Error(Exit::checkpoint_invalid, fmt::format("the weights of {}, {}, do not fit this plan: {}",
                                                        weights.folder, weights.origin, problem));
    }
    if (plan.adapters.any()) require_whole_base(plan, names_beyond(parameters, weights.tensors));
    if (partial && !resumes) remark_partial(weights, parameters, plan.initial_weights->site);
    if (trains && !resumes && weights.checkpoint) checkpoint::Reader(weights.folder).verify();
  } catch (const Error& error) {
    throw Error(error.code(), error.message(), plan.initial_weights->site);
  }
}

}  // namespace prun
