#include "checkpoint/hf/peft.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"

namespace prun::checkpoint {
namespace {

constexpr const char* kWeight = ".weight";
constexpr const char* kPrefix = "base_model.model.";  // of names in peft's files

std::string without(const std::string& name, const std::string& end) {
  return name.ends_with(end) ? name.substr(0, name.size() - end.size()) : "";
}

// Returns the name of the module after the number of its layer: "attn.c_attn" of "transformer.h.0.attn.c_attn".
std::string in_layer(const std::string& module) {
  size_t begin = 0;
  for (size_t at = 0; at < module.size();) {
    const size_t end = std::min(module.find('.', at), module.size());
    const std::string part = module.substr(at, end - at);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string::npos) begin = end + 1;
    at = end + 1;
  }
  return begin < module.size() ? module.substr(begin) : module;
}

// Returns the shortest list that names the adapted modules and no other.
std::vector<std::string> targets(const std::set<std::string>& adapted, const std::set<std::string>& all) {
  std::set<std::string> ends;
  for (const std::string& module : adapted) ends.insert(in_layer(module));
  for (const std::string& module : all)
    if (ends.contains(in_layer(module)) && !adapted.contains(module)) return {adapted.begin(), adapted.end()};
  return {ends.begin(), ends.end()};
}

HfTensor transposed(const std::string& theirs, const std::string& ours, const Weight& weight, int64_t begin,
                    int64_t columns) {
  const Shape& whole = weight.shape;
  return {theirs, {columns, whole[0]}, {{ours, whole, {0, begin}, {whole[0], columns}, {1, 0}}}};
}

[[noreturn]] void refuse(const Weights& weights, const std::string& what) {
  throw Error(Exit::checkpoint_invalid, fmt::format("{}: {}; --merge exports whole weights", weights.folder, what));
}

// Adds the modules of theirs whose tensors are trained in full; peft trains a module whole or not at all.
void add_saved(const Weights& weights, const std::set<std::string>& trained, const std::vector<HfTensor>& theirs,
               PeftAdapters& peft) {
  std::map<std::string, std::vector<const HfTensor*>> modules;
  for (const HfTensor& tensor : theirs) modules[tensor.theirs.substr(0, tensor.theirs.rfind('.'))].push_back(&tensor);
  for (const auto& [module, tensors] : modules) {
    size_t parts = 0, in_full = 0;
    for (const HfTensor* tensor : tensors)
      for (const HfPart& part : tensor->parts) {
        ++parts;
        in_full += trained.count(part.ours);
      }
    if (in_full == 0) continue;
    if (in_full < parts) refuse(weights, fmt::format("only a part of {} is trained in full", module));
    peft.saved.push_back(module);
    for (const HfTensor* tensor : tensors) {
      peft.tensors.push_back(*tensor);
      peft.tensors.back().theirs = kPrefix + tensor->theirs;
    }
  }
}

}  // namespace

PeftAdapters peft_adapters(const Weights& weights, const std::set<std::string>& trained,
                           const std::vector<HfTensor>& theirs) {
  PeftAdapters peft;
  std::set<std::string> all, adapted, used;
  for (const HfTensor& tensor : theirs) {
    const std::string module = without(tensor.theirs, kWeight);
    if (module.empty()) continue;
    all.insert(module);
    const auto adapter_of = [&](const HfPart& part) { return without(part.ours, kWeight) + kAdapterA; };
    if (std::ranges::none_of(tensor.parts,
                             [&](const HfPart& one) { return weights.tensors.contains(adapter_of(one)); }))
      continue;
    if (tensor.parts.size() > 1)
      refuse(weights, fmt::format("{} consists of several layers with adapters of their own, which peft cannot express",
                                  tensor.theirs));
    const HfPart& part = tensor.parts.front();
    const std::string a = adapter_of(part), b = without(part.ours, kWeight) + kAdapterB;
    const Weight &first = weights.tensors.at(a), &second = weights.tensors.at(b);
    peft.tensors.push_back(transposed(kPrefix + module + ".lora_A.weight", a, first, 0, first.shape[1]));
    peft.tensors.push_back(
        transposed(kPrefix + module + ".lora_B.weight", b, second, part.offset.back(), part.shape.back()));
    peft.fan_in_fan_out = part.order.front() == 0;
    adapted.insert(module);
    used.insert({a, b});
  }
  for (const auto& [name, weight] : weights.tensors) {
    const bool part = name.ends_with(kAdapterA) || name.ends_with(kAdapterB);
    if (part && !used.contains(name)) refuse(weights, fmt::format("{} belongs to no layer of theirs", name));
  }
  peft.modules = targets(adapted, all);
  add_saved(weights, trained, theirs, peft);
  return peft;
}

nlohmann::ordered_json peft_config(const PeftAdapters& peft, const Adapters& adapters) {
  const auto number = [](double value) {
    const auto whole = static_cast<int64_t>(value);
    return static_cast<double>(whole) == value ? nlohmann::ordered_json(whole) : nlohmann::ordered_json(value);
  };
  nlohmann::ordered_json saved;  // null = none
  if (!peft.saved.empty()) saved = peft.saved;
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", adapters.base},
          {"r", adapters.rank},
          {"lora_alpha", number(adapters.alpha)},
          {"lora_dropout", adapters.dropout},
          {"target_modules", peft.modules},
          {"modules_to_save", saved},
          {"fan_in_fan_out", peft.fan_in_fan_out},
          {"bias", "none"},
          {"init_lora_weights", true},
          {"inference_mode", true}};
}

}  // namespace prun::checkpoint
