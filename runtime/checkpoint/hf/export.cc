#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf/architecture.h"
#include "checkpoint/hf/folder.h"
#include "checkpoint/safetensors.h"

namespace prun::checkpoint {
namespace {

const HfArchitecture& require_architecture(const Weights& weights) {
  std::vector<std::string> ours;
  for (const HfArchitecture& one : hf_architectures()) ours.push_back("prun.models." + one.ours);
  const std::string have = join(ours, ", ");
  if (weights.model.name.empty())
    throw Error(Exit::checkpoint_invalid,
                fmt::format("{} does not say which model it holds: its plan had a model of its own, or an older prun "
                            "wrote it; a Hugging Face form have {}",
                            weights.folder, have));
  const HfArchitecture* architecture = hf_architecture_for(weights.model.name);
  if (weights.model.name == "moe")
    throw Error(Exit::checkpoint_invalid,
                fmt::format("{} holds the GPT form of moe, which has no Hugging Face form; prun.models.mixtral has one",
                            weights.folder));
  if (architecture == nullptr)
    throw Error(Exit::checkpoint_invalid,
                fmt::format("{} holds the model '{}', which has no Hugging Face form; {} have one", weights.folder,
                            weights.model.name, have));
  return *architecture;
}

// A model that a plan defines itself may have the name of one of ours, so the shapes are checked.
void require_tensors(const Weights& weights, const HfArchitecture& architecture, const std::vector<HfTensor>& tensors) {
  for (const HfTensor& tensor : tensors) {
    const auto found = weights.tensors.find(tensor.ours);
    if (found != weights.tensors.end() && found->second.shape == tensor.whole) continue;
    throw Error(Exit::checkpoint_invalid,
                fmt::format("{}: as {} it should have {} {}, and it has {}", weights.folder, architecture.theirs,
                            tensor.ours, shape_text(tensor.whole),
                            found == weights.tensors.end() ? "none" : shape_text(found->second.shape)));
  }
}

// eos_token_id is one number, or a list.
nlohmann::ordered_json end_of(const HfExport& how) {
  if (how.ends.empty()) return nullptr;
  return how.ends.size() == 1 ? nlohmann::ordered_json(how.ends[0]) : nlohmann::ordered_json(how.ends);
}

// Returns PyTorch's name of the dtype.
const char* torch_name(Dtype dtype) {
  if (dtype == Dtype::f64) return "float64";
  if (dtype == Dtype::bf16) return "bfloat16";
  return dtype == Dtype::f16 ? "float16" : "float32";
}

nlohmann::ordered_json config_of(const HfArchitecture& architecture, const Weights& weights, const HfExport& how) {
  const Attrs& arguments = weights.model.arguments;
  const std::string dtype = torch_name(how.dtype.value_or(weights.tensors.begin()->second.dtype));
  nlohmann::ordered_json config = {{"architectures", {architecture.theirs}}, {"model_type", architecture.type}};
  config.update(architecture.config(arguments));
  config.update({{"vocab_size", arguments.integer("vocab")},
                 {"tie_word_embeddings", arguments.integer("tied") != 0},
                 {"bos_token_id", nullptr},
                 {"eos_token_id", end_of(how)},
                 {"use_cache", true},
                 {"torch_dtype", dtype}});
  return config;
}

Dtype dtype_of(const HfTensor& tensor, const Weights& weights, const HfExport& how) {
  return how.dtype.value_or(weights.tensors.at(tensor.ours).dtype);
}

int64_t bytes_of(const HfTensor& tensor, const Weights& weights, const HfExport& how) {
  return element_count(tensor.shape) * dtype_bytes(dtype_of(tensor, weights, how));
}

// Assigns tensors to files of at most how.file_bytes; a larger tensor has a file of its own.
std::vector<std::vector<HfTensor>> divide(const std::vector<HfTensor>& all, const Weights& weights,
                                          const HfExport& how) {
  std::vector<std::vector<HfTensor>> files(1);
  int64_t in_file = 0;
  for (const HfTensor& tensor : all) {
    const int64_t bytes = bytes_of(tensor, weights, how);
    if (in_file > 0 && in_file + bytes > how.file_bytes) {
      files.emplace_back();
      in_file = 0;
    }
    files.back().push_back(tensor);
    in_file += bytes;
  }
  return files;
}

void write_files(const Weights& weights, const std::vector<HfTensor>& tensors, const std::string& folder,
                 const HfExport& how, const Advance& advance) {
  int64_t total = 0, done = 0;
  for (const HfTensor& tensor : tensors) total += bytes_of(tensor, weights, how);
  const auto files = divide(tensors, weights, how);
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  for (size_t k = 0; k < files.size(); ++k) {
    const std::string name =
        files.size() == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", k + 1, files.size());
    std::vector<PieceToWrite> pieces;
    for (const HfTensor& tensor : files[k]) {
      const Dtype dtype = dtype_of(tensor, weights, how);
      Shape shape;
      for (const int d : tensor.order) shape.push_back(tensor.shape[d]);
      const auto window =
          std::make_shared<Window>(weights, tensor.ours, tensor.offset, tensor.shape, tensor.order, dtype);
      pieces.push_back({tensor.theirs, dtype, shape, {}, [=, &done, &advance](std::byte* to, int64_t first, int64_t n) {
                          window->read(to, first, n);
                          advance(done += n * dtype_bytes(dtype), total);
                        }});
      map[tensor.theirs] = name;
    }
    write_safetensors(
        folder + "/" + name, pieces, [] { return false; }, false);
  }
  if (files.size() == 1) return;
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  write_file(folder + "/model.safetensors.index.json", index.dump(2) + "\n");
}

// Creates the folder `out`, whole or not at all. `add`: writes its other files to the folder of its first argument.
void make_whole(const Weights& weights, const std::vector<HfTensor>& tensors, const std::string& out,
                const HfExport& how, const Advance& advance, const std::function<void(const std::string&)>& add) {
  if (std::filesystem::exists(out) && !std::filesystem::is_empty(out))
    throw usage_error(fmt::format("{} has files already: --out names a folder that is made", out));
  const std::string whole = out.substr(0, out.find_last_not_of('/') + 1);
  const std::string staging = fmt::format("{}.{}.tmp", whole, getpid());
  make_folder(staging);
  try {
    write_files(weights, tensors, staging, how, advance);
    add(staging);
    sync_folder(staging);
    if (std::rename(staging.c_str(), whole.c_str()) != 0) throw write_failed(out, errno);
  } catch (const Error&) {
    std::error_code ignored;
    std::filesystem::remove_all(staging, ignored);
    throw;
  }
}

// Models of prun have no other matrices than tables of embeddings and weights of linear layers.
bool is_linear(const Weights& weights, const std::string& name) {
  const Weight& weight = weights.tensors.at(name);
  return weight.linear || (weight.shape.size() == 2 && !weights.model.name.empty() && !name.starts_with("embed."));
}

}  // namespace

void export_torch(const Weights& weights, const std::string& out, const HfExport& how, const Advance& advance) {
  std::vector<HfTensor> tensors;
  bool linear = !weights.model.name.empty(), matrices = false;
  for (const auto& [name, weight] : weights.tensors) {
    matrices = matrices || weight.shape.size() == 2;
    linear = linear || weight.linear;
    tensors.push_back(is_linear(weights, name) ? hf_transposed(name, name, weight.shape[0], weight.shape[1])
                                               : hf_whole(name, name, weight.shape));
  }
  if (matrices && !linear)
    throw Error(Exit::checkpoint_invalid,
                fmt::format("{} does not record which weights belong to linear layers: an older prun wrote it; resume "
                            "it for a step to write a new one",
                            weights.folder));
  make_whole(weights, tensors, out, how, advance, [](const std::string&) {});
}

void export_hf(const Weights& weights, const std::string& out, const HfExport& how, const Advance& advance) {
  const HfArchitecture& architecture = require_architecture(weights);
  const std::vector<HfTensor> tensors = architecture.tensors(architecture.settled(weights.model.arguments));
  require_tensors(weights, architecture, tensors);
  make_whole(weights, tensors, out, how, advance, [&](const std::string& folder) {
    write_file(folder + "/config.json", config_of(architecture, weights, how).dump(2) + "\n");
    for (const auto& [name, text] : how.files) write_file(folder + "/" + name, text);
  });
}

}  // namespace prun::checkpoint
