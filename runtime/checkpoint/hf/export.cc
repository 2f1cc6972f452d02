#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf/architecture.h"
#include "checkpoint/hf/config.h"
#include "checkpoint/hf/folder.h"
#include "checkpoint/hf/peft.h"
#include "checkpoint/hf/tensors.h"
#include "checkpoint/safetensors.h"

namespace prun::checkpoint {
namespace {

std::string title(const Description& description) {
  return is_known(description) ? description.architecture : description.path;
}

// Returns the description to export by. A given one must be able to express the checkpoint's model.
Description require_description(const Weights& weights, const HfExport& how) {
  if (how.description.empty()) return description_to_export(weights);
  Description description = description_named(how.description);
  const std::string& have = weights.model.name;
  if (description.model.empty() || have.empty()) return description;
  if (description.model != have)
    throw Error(Exit::checkpoint_invalid, fmt::format("{} describes prun.models.{}, and {} holds prun.models.{}",
                                                      description.path, description.model, weights.folder, have));
  if (const std::string problem = unfit_argument(description, weights.model.arguments); !problem.empty())
    throw Error(Exit::checkpoint_invalid,
                fmt::format("{} is no {}: {}", weights.folder, description.architecture, problem));
  return description;
}

std::vector<HfTensor> tensors_of(const Weights& weights, const Description& description, bool copies) {
  const ShapeOf shape_of = [&](const std::string& name) -> std::optional<Shape> {
    const auto found = weights.tensors.find(name);
    return found == weights.tensors.end() ? std::nullopt : std::optional(found->second.shape);
  };
  std::vector<HfTensor> tensors =
      described_tensors(description, settled(description, weights.model.arguments), shape_of, {});
  std::erase_if(tensors, [&](const HfTensor& one) { return one.copy && !copies; });
  return tensors;
}

// A model that a plan defines itself may have the name of one of ours, so the shapes are checked, and that each element
// of each tensor is written.
void require_tensors(const Weights& weights, const Description& description, const std::vector<HfTensor>& tensors) {
  std::map<std::string, int64_t> written;
  for (const HfTensor& tensor : tensors)
    for (const HfPart& part : tensor.parts) {
      const auto found = weights.tensors.find(part.ours);
      if (found != weights.tensors.end() && found->second.shape == part.whole) {
        if (!tensor.copy) written[part.ours] += element_count(part.shape);
        continue;
      }
      throw Error(Exit::checkpoint_invalid,
                  fmt::format("{}: as {} it should have {} {}, and it has {}", weights.folder, title(description),
                              part.ours, shape_text(part.whole),
                              found == weights.tensors.end() ? "none" : shape_text(found->second.shape)));
    }
  for (const auto& [name, weight] : weights.tensors)
    if (written[name] != element_count(weight.shape) && std::ranges::count(description.constants, name) == 0)
      throw Error(Exit::checkpoint_invalid, fmt::format("{}: {} of the {} elements of {} are in no tensor of {}",
                                                        weights.folder, element_count(weight.shape) - written[name],
                                                        element_count(weight.shape), name, title(description)));
  // An option that a description does not mention could change what the model computes.
  const std::string unknown = unknown_argument(description, weights.model.arguments);
  if (!unknown.empty() && !description.model.empty())
    throw Error(Exit::checkpoint_invalid, fmt::format("{}: {} does not mention the option '{}' of prun.models.{}",
                                                      weights.folder, description.path, unknown, description.model));
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

nlohmann::ordered_json config_of(const Description& description, const Weights& weights, const HfExport& how) {
  const std::string dtype = torch_name(how.dtype.value_or(weights.tensors.begin()->second.dtype));
  nlohmann::ordered_json config = {{"architectures", {description.architecture}},
                                   {"model_type", description.model_type}};
  config.update(written_config(description, weights.model.arguments));
  config.update(
      {{"bos_token_id", nullptr}, {"eos_token_id", end_of(how)}, {"use_cache", true}, {"torch_dtype", dtype}});
  return config;
}

Dtype dtype_of(const HfTensor& tensor, const Weights& weights, const HfExport& how) {
  return how.dtype.value_or(weights.tensors.at(tensor.parts.front().ours).dtype);
}

int64_t bytes_of(const HfTensor& tensor, const Weights& weights, const HfExport& how) {
  return element_count(tensor.shape) * dtype_bytes(dtype_of(tensor, weights, how));
}

// Reads the elements of a tensor of theirs, which are boxes of ours one after the other.
class Rows {
 public:
  Rows(const Weights& weights, const HfTensor& tensor, Dtype dtype) : size_(dtype_bytes(dtype)) {
    for (const HfPart& part : tensor.parts) {
      windows_.emplace_back(weights, part.ours, part.offset, part.shape, part.order, dtype);
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + element_count(part.shape));
    }
  }

  void read(std::byte* to, int64_t first, int64_t count) {
    while (count > 0) {
      const size_t k = std::ranges::upper_bound(ends_, first) - ends_.begin();
      const int64_t begin = k == 0 ? 0 : ends_[k - 1], n = std::min(count, ends_[k] - first);
      windows_[k].read(to, first - begin, n);
      to += n * size_;
      first += n;
      count -= n;
    }
  }

 private:
  int64_t size_;
  std::deque<Window> windows_;
  std::vector<int64_t> ends_;  // elements up to the end of each part
};

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
    const std::string name = files.size() == 1
                                 ? how.stem + ".safetensors"
                                 : fmt::format("{}-{:05}-of-{:05}.safetensors", how.stem, k + 1, files.size());
    std::vector<PieceToWrite> pieces;
    for (const HfTensor& tensor : files[k]) {
      const Dtype dtype = dtype_of(tensor, weights, how);
      const auto rows = std::make_shared<Rows>(weights, tensor, dtype);
      pieces.push_back(
          {tensor.theirs, dtype, tensor.shape, {}, [=, &done, &advance](std::byte* to, int64_t first, int64_t n) {
             rows->read(to, first, n);
             advance(done += n * dtype_bytes(dtype), total);
           }});
      map[tensor.theirs] = name;
    }
    write_safetensors(
        fmt::format("{}/{}", folder, name), pieces, [] { return false; }, false);
  }
  if (files.size() == 1) return;
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  write_file(fmt::format("{}/{}.safetensors.index.json", folder, how.stem), index.dump(2) + "\n");
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

namespace {

HfTensor renamed(const std::string& name, const Shape& shape, bool transposed) {
  HfTensor tensor{name, shape, {{name, shape, Shape(shape.size(), 0), shape, {}}}};
  std::vector<int>& order = tensor.parts.front().order;
  for (size_t d = 0; d < shape.size(); ++d) order.push_back(static_cast<int>(d));
  if (transposed) {
    std::swap(order[0], order[1]);
    std::swap(tensor.shape[0], tensor.shape[1]);
  }
  return tensor;
}

// Returns the tensors under prun's names.
std::vector<HfTensor> own_tensors(const Weights& weights) {
  std::vector<HfTensor> tensors;
  bool linear = !weights.model.name.empty(), matrices = false;
  for (const auto& [name, weight] : weights.tensors) {
    matrices = matrices || weight.shape.size() == 2;
    linear = linear || weight.linear;
    tensors.push_back(renamed(name, weight.shape, is_linear(weights, name)));
  }
  if (matrices && !linear)
    throw Error(Exit::checkpoint_invalid,
                fmt::format("{} does not record which weights belong to linear layers: an older prun wrote it; resume "
                            "it for a step to write a new one",
                            weights.folder));
  return tensors;
}

}  // namespace

void export_torch(const Weights& weights, const std::string& out, const HfExport& how, const Advance& advance) {
  if (how.description.empty())
    return make_whole(weights, own_tensors(weights), out, how, advance, [](const std::string&) {});
  const Description description = require_description(weights, how);
  const std::vector<HfTensor> tensors = tensors_of(weights, description, true);
  require_tensors(weights, description, tensors);
  make_whole(weights, tensors, out, how, advance, [&](const std::string& folder) {
    if (!is_known(description)) write_file(folder + "/" + kOwnDescription, read_file(description.path));
  });
}

void export_hf(const Weights& weights, const std::string& out, const HfExport& how, const Advance& advance) {
  const Description description = require_description(weights, how);
  if (description.architecture.empty() || description.model_type.empty())
    throw usage_error(fmt::format(
        "{}: a Hugging Face folder needs architecture and model_type; --format torch does not", description.path));
  const std::vector<HfTensor> tensors = tensors_of(weights, description, false);
  require_tensors(weights, description, tensors);
  make_whole(weights, tensors, out, how, advance, [&](const std::string& folder) {
    write_file(folder + "/config.json", config_of(description, weights, how).dump(2) + "\n");
    if (!is_known(description)) write_file(folder + "/" + kOwnDescription, read_file(description.path));
    for (const auto& [name, text] : how.files) write_file(fmt::format("{}/{}", folder, name), text);
  });
}

void export_peft(const Weights& weights, const Adapters& adapters, const std::string& out, const HfExport& how,
                 const Advance& advance) {
  const Description description = require_description(weights, how);
  std::set<std::string> trained;  // in full, besides adapters
  if (adapters.has_base())
    for (const auto& [name, weight] : open_checkpoint(weights.folder, Take::parameters).tensors)
      if (!name.ends_with(kAdapterA) && !name.ends_with(kAdapterB)) trained.insert(name);
  const PeftAdapters peft = peft_adapters(weights, trained, tensors_of(weights, description, false));
  HfExport files = how;
  files.stem = "adapter_model";
  make_whole(weights, peft.tensors, out, files, advance, [&](const std::string& folder) {
    write_file(folder + "/adapter_config.json", peft_config(peft, adapters).dump(2) + "\n");
  });
}

}  // namespace prun::checkpoint
