#include "checkpoint/hf/folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf/architecture.h"
#include "checkpoint/safetensors.h"

namespace prun::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kIndex = "model.safetensors.index.json";

Json read_json(const std::string& path) {
  Json json = Json::parse(read_file(path), nullptr, false);
  if (!json.is_object()) throw invalid(path, "this is not a JSON object");
  return json;
}

// Returns the names of the weight files, each once.
std::set<std::string> files_of(const std::string& folder) {
  if (fs::exists(fs::path(folder) / kIndex)) {
    const std::string path = folder + "/" + kIndex;
    const Json index = read_json(path);
    std::set<std::string> files;
    if (!index.contains("weight_map") || !index.at("weight_map").is_object()) throw invalid(path, "no 'weight_map'");
    for (const auto& [name, file] : index.at("weight_map").items()) {
      if (!file.is_string() || file.get<std::string>().find('/') != std::string::npos)
        throw invalid(path, fmt::format("the file of {} is {}", name, file.dump()));
      files.insert(file.get<std::string>());
    }
    return files;
  }
  if (fs::exists(fs::path(folder) / "model.safetensors")) return {"model.safetensors"};
  for (const char* pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
    if (fs::exists(fs::path(folder) / pickle))
      throw invalid(folder,
                    "its weights are a pickle (pytorch_model.bin), which prun does not read; transformers turns "
                    "it into safetensors: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder)");
  throw invalid(folder, "a config.json without weights: neither model.safetensors nor model.safetensors.index.json");
}

struct Stored {
  std::shared_ptr<const DataFile> file;
  SafetensorsFile::Tensor tensor;
};

std::map<std::string, Stored> stored_tensors(const std::string& folder) {
  std::map<std::string, Stored> all;
  for (const std::string& name : files_of(folder)) {
    const SafetensorsFile file(folder + "/" + name);
    for (const auto& [tensor, place] : file.tensors()) all[tensor] = {file.data(), place};
  }
  return all;
}

// All tensors in the files must belong to the model; a remaining one indicates another architecture.
void refuse_unknown(const std::string& folder, const HfArchitecture& architecture,
                    const std::map<std::string, Stored>& left, bool tied) {
  for (const auto& [name, stored] : left) {
    bool known = tied && name == "lm_head.weight";
    for (const std::string& end : architecture.ignored) known = known || name.ends_with(end);
    if (!known)
      throw invalid(folder, fmt::format("it has a tensor {}, which {} as config.json has it does not", name,
                                        architecture.theirs));
  }
}

}  // namespace

bool is_hf_folder(const std::string& path) { return fs::exists(fs::path(path) / "config.json"); }

Weights open_hf_folder(const std::string& folder) {
  const std::string path = folder + "/config.json";
  const Json config = read_json(path);
  if (config.contains("quantization_config")) throw invalid(path, "its weights are quantized, which prun has not");
  const HfArchitecture& architecture = hf_architecture_of(config, path);
  Weights weights;
  weights.folder = folder;
  weights.origin = fmt::format("a Hugging Face folder ({})", architecture.theirs);
  try {
    weights.model = architecture.model(config);
  } catch (const Error& error) {
    throw invalid(path, error.message());
  }
  const Attrs settled = architecture.settled(weights.model.arguments);
  std::map<std::string, Stored> stored = stored_tensors(folder);
  for (const HfTensor& tensor : architecture.tensors(settled)) {
    auto found = stored.find(tensor.theirs);
    if (found == stored.end() && tensor.theirs.starts_with(architecture.prefix))
      found = stored.find(tensor.theirs.substr(architecture.prefix.size()));
    if (found == stored.end())
      throw invalid(folder, fmt::format("there is no tensor {}, which {} as config.json has it needs", tensor.theirs,
                                        architecture.theirs));
    const auto& [file, data] = found->second;
    Shape shape;
    for (const int d : tensor.order) shape.push_back(tensor.shape[d]);
    if (data.shape != shape)
      throw invalid(file->path(), fmt::format("{} is {}, and by config.json it should be {}", tensor.theirs,
                                              shape_text(data.shape), shape_text(shape)));
    const Dtype dtype = stored_dtype(file->path(), tensor.theirs, data);
    Weight& weight = weights.tensors[tensor.ours];
    weight.dtype = dtype;
    weight.shape = tensor.whole;
    weight.pieces.push_back({file, data.at, dtype, tensor.offset, tensor.shape, tensor.order});
    stored.erase(found);
  }
  refuse_unknown(folder, architecture, std::move(stored), settled.integer("tied") != 0);
  return weights;
}

}  // namespace prun::checkpoint
