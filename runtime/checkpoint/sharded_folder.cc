#include "checkpoint/sharded_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"

namespace prun::checkpoint {
namespace {

std::vector<std::string> safetensors_of(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

bool is_sharded_folder(const std::string& path) { return !safetensors_of(path).empty(); }

Weights open_sharded_folder(const std::string& folder) {
  Weights weights;
  weights.folder = folder;
  weights.origin = "a folder of sharded safetensors";
  for (const std::string& path : safetensors_of(folder)) {
    const SafetensorsFile file(path);
    for (const auto& [name, data] : file.tensors()) {
      if (name.starts_with(kOptimizerPrefix)) continue;
      const auto place = file.offsets().find(name);
      if (place == file.offsets().end() || place->second.size() != data.shape.size())
        throw Error(Exit::checkpoint_invalid,
                    fmt::format("{}: it does not say where {} lies in its tensor (DCP_SHARDING_INFO)", path, name));
      Weight& weight = weights.tensors[name];
      weight.dtype = stored_dtype(path, name, data);
      weight.shape.resize(data.shape.size());
      std::vector<int> order;
      for (size_t d = 0; d < data.shape.size(); ++d) {
        weight.shape[d] = std::max(weight.shape[d], place->second[d] + data.shape[d]);
        order.push_back(d);
      }
      weight.pieces.push_back({file.data(), data.at, weight.dtype, place->second, data.shape, order});
    }
  }
  for (const auto& [name, weight] : weights.tensors) {
    int64_t held = 0;
    for (const WeightPiece& piece : weight.pieces) held += element_count(piece.shape);
    if (held != element_count(weight.shape))
      throw Error(Exit::checkpoint_invalid, fmt::format("{}: the pieces of {} hold {} of its {} elements", folder, name,
                                                        held, element_count(weight.shape)));
  }
  return weights;
}

}  // namespace prun::checkpoint
