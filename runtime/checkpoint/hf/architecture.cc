#include "checkpoint/hf/architecture.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/hf/config.h"

namespace prun::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string& descriptions_folder() {
  static std::string folder;
  return folder;
}

std::vector<Description> read_all() {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(descriptions_folder(), error))
    if (entry.path().extension() == ".yaml") paths.push_back(entry.path().string());
  std::ranges::sort(paths);
  std::vector<Description> all;
  all.reserve(paths.size());
  for (const std::string& path : paths) all.push_back(read_description(path, descriptions_folder()));
  std::stable_partition(all.begin(), all.end(), [](const Description& one) { return one.like.empty(); });
  return all;
}

std::vector<std::string> their_names() {
  std::vector<std::string> names;
  for (const Description& one : known_descriptions()) names.push_back(one.architecture);
  std::ranges::sort(names);
  return names;
}

}  // namespace

void set_descriptions_folder(std::string folder) { descriptions_folder() = std::move(folder); }

const std::vector<Description>& known_descriptions() {
  static const std::vector<Description> all = read_all();
  return all;
}

bool is_known(const Description& description) {
  return fs::path(description.path).parent_path() == fs::path(descriptions_folder());
}

std::string name_of(const Description& description) {
  return is_known(description) ? description.architecture + " as config.json has it" : description.path;
}

Description description_of(const Json& config, const std::string& folder) {
  if (const std::string own = folder + "/" + kOwnDescription; fs::exists(own))
    return read_description(own, descriptions_folder());
  const std::string path = folder + "/config.json";
  const Json named = config.value("architectures", Json());
  const std::string name =
      named.is_array() && !named.empty() && named[0].is_string() ? named[0].get<std::string>() : "";
  const std::string type = hf_text(config, "model_type", "");
  // A bare model, such as LlamaModel, lacks only the head, so its model_type identifies it.
  for (const Description& one : known_descriptions())
    if (name.empty() ? one.model_type == type : one.architecture == name) return one;
  const std::vector<std::string> names = their_names();
  throw Error(Exit::checkpoint_invalid,
              fmt::format("{}: prun has no architecture {}{}; it has {}. You can describe it in {}/{} "
                          "(runtime/checkpoint/README.md)",
                          path,
                          !name.empty()   ? name
                          : !type.empty() ? "of model_type " + type
                                          : "without a name",
                          if_near(name, names), join(names, ", "), folder, kOwnDescription));
}

const Description* description_for(const std::string& model) {
  for (const Description& one : known_descriptions())
    if (one.model == model && one.like.empty()) return &one;
  return nullptr;
}

Description description_named(const std::string& name) {
  if (fs::is_directory(name) && fs::exists(name + "/" + kOwnDescription))
    return read_description(name + "/" + kOwnDescription, descriptions_folder());
  if (fs::is_regular_file(name)) return read_description(name, descriptions_folder());
  std::vector<std::string> names;
  for (const Description& one : known_descriptions()) {
    names.push_back(fs::path(one.path).stem().string());
    if (name == names.back() || name == one.architecture) return one;
  }
  std::ranges::sort(names);
  throw usage_error(fmt::format("--description: there is no file '{}', and no architecture of this name{}", name,
                                did_you_mean(name, names)));
}

const Description& description_to_export(const Weights& weights) {
  std::vector<std::string> ours;
  for (const Description& one : known_descriptions())
    if (const std::string name = "prun.models." + one.model; std::ranges::find(ours, name) == ours.end())
      ours.push_back(name);
  const std::string have = join(ours, ", ");
  const std::string own = "; --description FILE describes another one";
  if (weights.model.name.empty())
    throw Error(Exit::checkpoint_invalid,
                fmt::format("{} does not say which model it holds: its plan had a model of its own, or an older prun "
                            "wrote it; {} have a Hugging Face form; --format torch exports any model, with "
                            "--description WEIGHTS of prun.export under the module's names",
                            weights.folder, have));
  if (weights.model.name == "moe")
    throw Error(Exit::checkpoint_invalid,
                fmt::format("{} holds the GPT form of moe, which has no Hugging Face form; prun.models.mixtral has one",
                            weights.folder));
  std::string problems;
  for (const Description& one : known_descriptions()) {
    if (one.model != weights.model.name) continue;
    const std::string problem = unfit_argument(one, weights.model.arguments);
    if (problem.empty()) return one;
    problems += "\n  " + problem;
  }
  if (problems.empty())
    throw Error(Exit::checkpoint_invalid,
                fmt::format("{} holds the model '{}', which has no Hugging Face form; {} have one{}", weights.folder,
                            weights.model.name, have, own));
  throw Error(Exit::checkpoint_invalid, fmt::format("{} holds a prun.models.{} that no architecture has{}:{}",
                                                    weights.folder, weights.model.name, own, problems));
}

}  // namespace prun::checkpoint
