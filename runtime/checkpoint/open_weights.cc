#include <fmt/format.h>

#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "checkpoint/data_file.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/sharded_folder.h"
#include "checkpoint/weights.h"

namespace prun::checkpoint {
namespace {

struct OpenFile {
  std::shared_ptr<DataFile> file;
  std::unique_ptr<SafetensorsFile> header;
};

Dtype dtype_of(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(Dtype::u8); ++i)
    if (safetensors_dtype(static_cast<Dtype>(i)) == name) return static_cast<Dtype>(i);
  throw Error(Exit::checkpoint_invalid, fmt::format("prun has no element type {}", name));
}

}  // namespace

Weights open_checkpoint(const std::string& folder, bool optimizer) {
  const Index index = read_index(folder);
  Weights weights;
  weights.model = index.model;
  weights.folder = folder;
  weights.checkpoint = true;
  weights.origin = "a checkpoint";
  std::map<std::string, OpenFile> files;
  for (const auto& [name, saved] : index.tensors) {
    if (!optimizer && name.starts_with(kOptimizerPrefix)) continue;
    Weight weight{dtype_of(saved.dtype), saved.shape, {}};
    std::vector<int> order(saved.shape.size());
    std::iota(order.begin(), order.end(), 0);
    for (const SavedPiece& piece : saved.pieces) {
      const std::string path = folder + "/" + piece.file;
      OpenFile& open = files[piece.file];
      if (open.file == nullptr) open = {std::make_shared<DataFile>(path), std::make_unique<SafetensorsFile>(path)};
      const SafetensorsFile::Tensor* data = open.header->find(name);
      if (data == nullptr || data->shape != piece.shape || data->dtype != saved.dtype ||
          data->bytes != element_count(piece.shape) * dtype_bytes(weight.dtype))
        throw Error(Exit::checkpoint_invalid, fmt::format("{}: it holds no {} {}{}, as the index says", path, name,
                                                          saved.dtype, shape_text(piece.shape)));
      weight.pieces.push_back({open.file, data->at, weight.dtype, piece.offset, piece.shape, order});
    }
    weights.tensors.emplace(name, std::move(weight));
  }
  return weights;
}

Weights open_weights(const std::string& path) {
  namespace fs = std::filesystem;
  if (!fs::exists(path))
    throw Error(Exit::checkpoint_invalid, fmt::format("there are no weights at {}: no such folder", path));
  if (is_hf_folder(path)) return open_hf_folder(path);
  if (!fs::exists(path + "/index.json") && is_sharded_folder(path)) return open_sharded_folder(path);
  if (!fs::exists(path + "/index.json") && whole_checkpoints(path).empty())
    throw Error(Exit::checkpoint_invalid,
                fmt::format("there are no weights in {}: no config.json of a Hugging Face folder, no index.json of a "
                            "checkpoint, no folder step_N that has one",
                            path));
  return open_checkpoint(resolve(path), false);
}

}  // namespace prun::checkpoint
