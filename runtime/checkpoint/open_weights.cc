#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>

#include "base/error.h"
#include "checkpoint/base.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf/folder.h"
#include "checkpoint/hf/peft_folder.h"
#include "checkpoint/history.h"
#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/weights.h"
#include "ir/ops.h"

namespace prun::checkpoint {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> safetensors_of(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Opens files of PyTorch. Distributed checkpoints record the offsets of their tensors (DCP_SHARDING_INFO) and have
// prun's layout, because prun or a plan's weights were saved so; other files hold whole tensors in PyTorch's layout.
Weights open_safetensors(const std::string& folder, const std::vector<std::string>& paths) {
  Weights weights;
  weights.folder = folder;
  weights.origin = "safetensors";
  for (const std::string& path : paths) {
    const SafetensorsFile file(path);
    const bool sharded = !file.offsets().empty();
    for (const auto& [name, data] : file.tensors()) {
      if (name.starts_with(kOptimizerPrefix)) continue;
      const auto place = file.offsets().find(name);
      if (sharded && (place == file.offsets().end() || place->second.size() != data.shape.size()))
        throw invalid(path, fmt::format("it does not say where {} lies in its tensor (DCP_SHARDING_INFO)", name));
      if (!sharded && weights.tensors.contains(name))
        throw invalid(path, fmt::format("{} is in another file, too, and neither says which part it has", name));
      const Shape offset = sharded ? place->second : Shape(data.shape.size(), 0);
      Weight& weight = weights.tensors[name];
      weight.of_torch = !sharded;
      weight.dtype = stored_dtype(path, name, data);
      weight.shape.resize(data.shape.size());
      std::vector<int> order;
      for (size_t d = 0; d < data.shape.size(); ++d) {
        weight.shape[d] = std::max(weight.shape[d], offset[d] + data.shape[d]);
        order.push_back(d);
      }
      weight.pieces.push_back({file.data(), data.at, weight.dtype, offset, data.shape, order});
    }
  }
  for (const auto& [name, weight] : weights.tensors) {
    int64_t held = 0;
    for (const WeightPiece& piece : weight.pieces) held += element_count(piece.shape);
    if (held != element_count(weight.shape))
      throw invalid(
          folder, fmt::format("the pieces of {} hold {} of its {} elements", name, held, element_count(weight.shape)));
  }
  return weights;
}

Error no_averages(const std::string& path, const char* what) {
  return {Exit::checkpoint_invalid,
          fmt::format("{} has no running averages of weights: it is {}; leave --ema out, or train with ema = 0.999 in "
                      "the optimizer",
                      path, what)};
}

}  // namespace

Weights open_checkpoint(const std::string& folder, Take take) {
  const Index index = read_index(folder);
  const bool optimizer = take == Take::state;
  const std::string average = std::string(kOptimizerPrefix) + std::string(ops::ema.name) + ".";
  Weights weights;
  weights.model = index.model;
  weights.folder = folder;
  weights.checkpoint = true;
  weights.origin = "a checkpoint";
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files;
  bool any_averages = false;
  for (const auto& [name, saved] : index.tensors) {
    const bool averages = take == Take::averages && name.starts_with(average);
    if (!optimizer && !averages && name.starts_with(kOptimizerPrefix)) continue;
    if (take == Take::averages && index.tensors.contains(average + name)) continue;
    Weight weight{dtype_of(saved.dtype), saved.shape, {}};
    const std::string of = averages ? name.substr(average.size()) : name;
    weight.linear = index.tensors.at(of).linear;
    if (!optimizer && !saved.drift.empty()) {
      weight.copies = saved.shape.front();
      weight.shape.erase(weight.shape.begin());
    }
    std::vector<int> order(saved.shape.size());
    std::iota(order.begin(), order.end(), 0);
    for (const SavedPiece& piece : saved.pieces) {
      const std::string path = folder + "/" + piece.file;
      std::unique_ptr<SafetensorsFile>& file = files[piece.file];
      if (file == nullptr) file = std::make_unique<SafetensorsFile>(path);
      const SafetensorsFile::Tensor* data = file->find(name);
      if (data == nullptr || data->shape != piece.shape || data->dtype != saved.dtype ||
          data->bytes != element_count(piece.shape) * dtype_bytes(weight.dtype))
        throw invalid(
            path, fmt::format("it holds no {} {}{}, as the index says", name, saved.dtype, shape_text(piece.shape)));
      weight.pieces.push_back({file->data(), data->at, weight.dtype, piece.offset, piece.shape, order});
    }
    weights.tensors.emplace(of, std::move(weight));
    any_averages = any_averages || averages;
  }
  if (take == Take::averages && !any_averages) throw no_averages(folder, "a checkpoint of an optimizer without ema");
  return weights;
}

Weights open_weights(const std::string& path, const std::string& base, bool verified, Take take) {
  if (!fs::exists(path))
    throw Error(Exit::checkpoint_invalid, fmt::format("there are no weights at {}: no such folder", path));
  const bool is_checkpoint =
      fs::is_directory(path) && (fs::exists(path + "/index.json") || !whole_checkpoints(path).empty());
  if (take == Take::averages && !is_checkpoint) throw no_averages(path, "no checkpoint of prun");
  if (fs::is_regular_file(path)) return open_safetensors(path, {path});
  if (is_peft_folder(path)) return open_merged_peft(path, base);
  if (is_hf_folder(path)) return open_hf_folder(path);
  const std::vector<std::string> files = safetensors_of(path);
  if (!fs::exists(path + "/index.json") && !files.empty()) {
    // Offsets mark files in prun's layout, such as the weights that prun.export writes beside their description.
    const bool of_torch = is_described_folder(path) && SafetensorsFile(files.front()).offsets().empty();
    return of_torch ? open_described_folder(path) : open_safetensors(path, files);
  }
  if (!is_checkpoint)
    throw Error(Exit::checkpoint_invalid,
                fmt::format("there are no weights in {}: no config.json of a Hugging Face folder, no index.json of a "
                            "checkpoint, no folder step_N that has one",
                            path));
  return open_merged(resolve(path), base, verified, take);
}

}  // namespace prun::checkpoint
