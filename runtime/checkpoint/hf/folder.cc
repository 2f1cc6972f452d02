#include "checkpoint/hf/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf/architecture.h"
#include "checkpoint/hf/config.h"
#include "checkpoint/hf/tensors.h"
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
    const SafetensorsFile file(fmt::format("{}/{}", folder, name));
    for (const auto& [tensor, place] : file.tensors()) all[tensor] = {file.data(), place};
  }
  return all;
}

// All tensors in the files must belong to the model; a remaining one indicates another architecture.
void refuse_unknown(const std::string& folder, const Description& description,
                    const std::map<std::string, Stored>& left) {
  for (const auto& left_over : left) {
    const std::string& name = left_over.first;
    if (std::ranges::none_of(description.ignore, [&](const std::string& end) { return name.ends_with(end); }))
      throw invalid(folder, fmt::format("it has a tensor {}, which {} does not", name, name_of(description)));
  }
}

// Adds the boxes of our tensors that a file's tensor holds.
void add_pieces(const HfTensor& tensor, const Stored& stored, Weights& weights) {
  const std::string& path = stored.file->path();
  if (stored.tensor.shape != tensor.shape)
    throw invalid(path, fmt::format("{} is {}, and by config.json it should be {}", tensor.theirs,
                                    shape_text(stored.tensor.shape), shape_text(tensor.shape)));
  const Dtype dtype = stored_dtype(path, tensor.theirs, stored.tensor);
  int64_t at = stored.tensor.at;
  for (const HfPart& part : tensor.parts) {
    Weight& weight = weights.tensors[part.ours];
    weight.dtype = dtype;
    weight.shape = part.whole;
    weight.pieces.push_back({stored.file, at, dtype, part.offset, part.shape, part.order});
    at += element_count(part.shape) * dtype_bytes(dtype);
  }
}

Weights open_described(const std::string& folder, const Description& description, const ModelDescription& model) {
  Weights weights;
  weights.folder = folder;
  weights.origin = description.architecture.empty()
                       ? "a folder with a description"
                       : fmt::format("a Hugging Face folder ({})", description.architecture);
  if (!model.name.empty()) weights.model = model;
  std::map<std::string, Stored> stored = stored_tensors(folder);
  const auto find = [&](const std::string& name) {
    const auto found = stored.find(name);
    return found == stored.end() && name.starts_with(description.prefix)
               ? stored.find(name.substr(description.prefix.size()))
               : found;
  };
  const ShapeOf shape_of = [&](const std::string& name) -> std::optional<Shape> {
    const auto found = find(name);
    return found == stored.end() ? std::nullopt : std::optional(found->second.tensor.shape);
  };
  for (const HfTensor& tensor : described_tensors(description, settled(description, model.arguments), {}, shape_of)) {
    const auto found = find(tensor.theirs);
    if (found == stored.end())
      throw invalid(folder, fmt::format("there is no tensor {}, which {} needs", tensor.theirs, name_of(description)));
    if (!tensor.copy) add_pieces(tensor, found->second, weights);
    stored.erase(found);
  }
  refuse_unknown(folder, description, stored);
  return weights;
}

}  // namespace

bool is_hf_folder(const std::string& path) { return fs::exists(fs::path(path) / "config.json"); }

bool is_described_folder(const std::string& path) { return fs::exists(fs::path(path) / kOwnDescription); }

Weights open_hf_folder(const std::string& folder) {
  const std::string path = folder + "/config.json";
  const Json config = read_json(path);
  if (config.contains("quantization_config")) throw invalid(path, "its weights are quantized, which prun has not");
  const Description description = description_of(config, folder);
  ModelDescription model;
  try {
    model = read_config(description, config);
  } catch (const Error& error) {
    if (error.site()) throw;
    throw invalid(path, error.message());
  }
  return open_described(folder, description, model);
}

Weights open_described_folder(const std::string& folder) {
  return open_described(folder, description_of(Json::object(), folder), {});
}

}  // namespace prun::checkpoint
