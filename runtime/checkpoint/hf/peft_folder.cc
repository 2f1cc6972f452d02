#include "checkpoint/hf/peft_folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf/architecture.h"
#include "checkpoint/hf/config.h"
#include "checkpoint/hf/folder.h"
#include "checkpoint/hf/tensors.h"
#include "checkpoint/safetensors.h"

namespace prun::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kTensors = "adapter_model.safetensors";
constexpr const char* kPeftPrefix = "base_model.model.";
constexpr const char* kMerge = "; merge them with peft (merge_and_unload) and begin with the whole weights";

// Returns the configuration's adapters. Rejects the variants of LoRA that compute something else.
Adapters read_peft_config(const std::string& path) {
  const Json config = Json::parse(read_file(path), nullptr, false);
  if (!config.is_object()) throw invalid(path, "this is not a JSON object");
  const auto given = [&](const char* name) {
    const Json value = config.value(name, Json());
    return !(value.is_null() || value == Json(false) || value.empty() || value == Json("none"));
  };
  if (config.value("peft_type", Json()) != Json("LORA"))
    throw invalid(path,
                  fmt::format("peft_type is {}, and prun has LORA only", config.value("peft_type", Json()).dump()));
  for (const char* name : {"use_dora", "use_rslora", "lora_bias", "bias", "rank_pattern", "alpha_pattern",
                           "layer_replication", "trainable_token_indices", "target_parameters"})
    if (config.contains(name) && !config.at(name).is_number() && given(name))
      throw invalid(path, fmt::format("{} is {}, which prun.lora lacks{}", name, config.at(name).dump(), kMerge));
  Adapters adapters;
  const Json rank = config.value("r", Json()), alpha = config.value("lora_alpha", Json());
  if (!rank.is_number_integer() || rank.get<int64_t>() < 1 || !alpha.is_number())
    throw invalid(
        path, fmt::format("r is {} and lora_alpha {}; they are numbers from 1 and above 0", rank.dump(), alpha.dump()));
  adapters.rank = rank.get<int64_t>();
  adapters.alpha = alpha.get<double>();
  if (const Json base = config.value("base_model_name_or_path", Json()); base.is_string())
    adapters.base = base.get<std::string>();
  return adapters;
}

Description description_of_base(const Weights& base) {
  if (is_hf_folder(base.folder))
    return description_of(Json::parse(read_file(base.folder + "/config.json"), nullptr, false), base.folder);
  return is_described_folder(base.folder) ? description_of(Json::object(), base.folder) : description_to_export(base);
}

std::string layer_of_weight(const std::string& name) { return name.substr(0, name.rfind(".weight")); }

class PeftReader {
 public:
  PeftReader(const std::string& folder, PeftWeights& into)
      : folder_(folder), file_(folder + "/" + kTensors), into_(into), base_(into.weights) {
    for (const auto& [name, tensor] : file_.tensors()) {
      if (!name.starts_with(kPeftPrefix)) throw invalid(file_.data()->path(), "it has a tensor " + name);
      left_[name.substr(std::string(kPeftPrefix).size())] = tensor;
    }
  }

  void run() {
    const Description description = description_of_base(base_);
    prefix_ = description.prefix;
    const Weights whole = base_;  // shapes of the base, while its tensors are replaced
    const ShapeOf shape_of = [&](const std::string& name) -> std::optional<Shape> {
      const auto found = whole.tensors.find(name);
      return found == whole.tensors.end() ? std::nullopt : std::optional(found->second.shape);
    };
    for (const HfTensor& tensor :
         described_tensors(description, settled(description, base_.model.arguments), shape_of, {}))
      if (!tensor.copy) add(tensor);
    for (const auto& unread : left_)
      throw invalid(file_.data()->path(), fmt::format("its tensor {}{} belongs to no layer of {}, {}", kPeftPrefix,
                                                      unread.first, whole.folder, whole.origin));
    for (const auto& [layer, columns] : covered_)
      if (const int64_t all = into_.weights.tensors.at(layer + kAdapterB).shape.back(); columns != all)
        refuse(
            fmt::format("they adapt {} of the {} outputs of {}, which is one layer here: its other parts have no "
                        "adapters",
                        columns, all, layer));
    for (const std::string& name : into_.trained) require_whole(name);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const { throw invalid(folder_, what + kMerge); }

  // Removes and returns a tensor of the file; nullopt: there is none.
  std::optional<SafetensorsFile::Tensor> take(const std::string& name) {
    auto found = left_.find(name);
    if (found == left_.end() && name.starts_with(prefix_)) found = left_.find(name.substr(prefix_.size()));
    if (found == left_.end()) return std::nullopt;
    const SafetensorsFile::Tensor tensor = found->second;
    left_.erase(found);
    return tensor;
  }

  WeightPiece piece(const std::string& name, const SafetensorsFile::Tensor& tensor, Shape offset, Shape shape) const {
    return {file_.data(),      tensor.at,        stored_dtype(file_.data()->path(), name, tensor),
            std::move(offset), std::move(shape), {1, 0}};
  }

  void add(const HfTensor& tensor) {
    if (const auto saved = take(tensor.theirs)) return add_saved(tensor, *saved);
    if (!tensor.theirs.ends_with(".weight")) return;
    const std::string module = layer_of_weight(tensor.theirs);
    const auto a = take(module + ".lora_A.weight"), b = take(module + ".lora_B.weight");
    if (!a && !b) return;
    if (!a || !b) refuse(fmt::format("{} has no {}", module, a ? "lora_B" : "lora_A"));
    if (tensor.parts.size() > 1 || tensor.parts.front().whole.size() != 2)
      refuse(fmt::format("{} consists of several layers here, each with an adapter of its own", module));
    add_adapter(module, tensor.parts.front(), *a, *b);
  }

  void add_adapter(const std::string& module, const HfPart& part, const SafetensorsFile::Tensor& a,
                   const SafetensorsFile::Tensor& b) {
    const std::string layer = layer_of_weight(part.ours);
    const int64_t rank = into_.adapters.rank, in = part.whole[0], out = part.shape.back();
    const auto require = [&](const SafetensorsFile::Tensor& tensor, const char* name, const Shape& shape) {
      if (tensor.shape != shape)
        throw invalid(file_.data()->path(), fmt::format("{}.{} is {}, and by {} and the base it should be {}", module,
                                                        name, shape_text(tensor.shape), kConfig, shape_text(shape)));
    };
    require(a, "lora_A", {rank, in});
    require(b, "lora_B", {out, rank});
    Weight &first = into_.weights.tensors[layer + kAdapterA], &second = into_.weights.tensors[layer + kAdapterB];
    if (first.pieces.empty()) {
      first.pieces.push_back(piece(module, a, {0, 0}, {in, rank}));
      first.shape = {in, rank};
      second.shape = {rank, part.whole.back()};
      first_of_[layer] = {module, a};
    } else if (const auto& [other, stored] = first_of_.at(layer); !equal(stored, a)) {
      refuse(fmt::format("{} and {} are parts of {} here, whose adapter has one A, and theirs differ", other, module,
                         layer));
    }
    second.pieces.push_back(piece(module, b, {0, part.offset.back()}, {rank, out}));
    first.dtype = first.pieces.front().dtype;
    second.dtype = second.pieces.front().dtype;
    covered_[layer] += out;
  }

  bool equal(const SafetensorsFile::Tensor& one, const SafetensorsFile::Tensor& other) const {
    if (one.dtype != other.dtype || one.bytes != other.bytes) return false;
    std::vector<std::byte> bytes(one.bytes), others(one.bytes);
    file_.data()->read(one.at, one.bytes, bytes.data());
    file_.data()->read(other.at, other.bytes, others.data());
    return bytes == others;
  }

  // Replaces boxes of the base's tensors by those of a module that was trained in full.
  void add_saved(const HfTensor& tensor, const SafetensorsFile::Tensor& saved) {
    if (saved.shape != tensor.shape)
      throw invalid(file_.data()->path(), fmt::format("{} is {}, and by the base it should be {}", tensor.theirs,
                                                      shape_text(saved.shape), shape_text(tensor.shape)));
    const Dtype dtype = stored_dtype(file_.data()->path(), tensor.theirs, saved);
    int64_t at = saved.at;
    for (const HfPart& part : tensor.parts) {
      Weight& weight = into_.weights.tensors[part.ours];
      if (seen_.insert(part.ours).second) {
        weight.pieces.clear();
        into_.trained.push_back(part.ours);
      }
      weight.dtype = dtype;
      weight.pieces.push_back({file_.data(), at, dtype, part.offset, part.shape, part.order});
      at += element_count(part.shape) * dtype_bytes(dtype);
    }
  }

  void require_whole(const std::string& name) const {
    const Weight& weight = into_.weights.tensors.at(name);
    int64_t held = 0;
    for (const WeightPiece& piece : weight.pieces) held += element_count(piece.shape);
    if (held != element_count(weight.shape)) refuse(fmt::format("they replace only a part of {}", name));
  }

  const std::string folder_;
  SafetensorsFile file_;
  PeftWeights& into_;
  const Weights& base_;
  std::string prefix_;
  std::map<std::string, SafetensorsFile::Tensor> left_;                              // by name without peft's prefix
  std::map<std::string, std::pair<std::string, SafetensorsFile::Tensor>> first_of_;  // by layer: module and its A
  std::map<std::string, int64_t> covered_;                                           // outputs by layer
  std::set<std::string> seen_;
};

}  // namespace

bool is_peft_folder(const std::string& path) { return fs::exists(fs::path(path) / kConfig); }

PeftWeights open_peft_folder(const std::string& folder, const std::string& base) {
  PeftWeights opened;
  opened.adapters = read_peft_config(folder + "/" + kConfig);
  if (!base.empty()) opened.adapters.base = base;
  const std::string& path = opened.adapters.base;
  if (path.empty() || !fs::exists(path) || is_peft_folder(path))
    throw invalid(folder, fmt::format("it holds the adapters of the base '{}', and there is no such folder of weights; "
                                      "--base DIR says where the base is",
                                      path));
  if (!fs::exists(folder + "/" + kTensors))
    throw invalid(folder, fmt::format("there is no {}; peft writes it (save_pretrained)", kTensors));
  opened.weights = open_weights(path);
  PeftReader(folder, opened).run();
  return opened;
}

}  // namespace prun::checkpoint
