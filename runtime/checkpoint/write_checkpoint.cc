#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <utility>

#include "checkpoint/convert.h"
#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/window.h"

namespace prun::checkpoint {
namespace {

// The part of a tensor that a rank writes: rows of the first dim, as ranks of a run divide it, or of the longest where
// that one is too short for all of them.
Box share_of(const Shape& shape, int64_t rank, int64_t ranks) {
  Box box{Shape(shape.size(), 0), shape, 0, {}};
  if (shape.empty()) {
    if (rank > 0) box.shape = {0};
    return box;
  }
  size_t d = 0;
  if (shape[0] < ranks) d = static_cast<size_t>(std::max_element(shape.begin(), shape.end()) - shape.begin());
  box.offset[d] = shape[d] * rank / ranks;
  box.shape[d] = shape[d] * (rank + 1) / ranks - box.offset[d];
  return box;
}

}  // namespace

void write_checkpoint(const Weights& weights, Index index, const std::string& out, const std::string& dtype,
                      const Advance& advance) {
  const auto stored = [&](const Weight& weight) { return dtype.empty() ? weight.dtype : *parse_dtype(dtype); };
  int64_t total = 0, done = 0;
  for (const auto& [name, weight] : weights.tensors) total += element_count(weight.shape) * dtype_bytes(stored(weight));
  const std::string staging = staging_folder(out, index.step, fmt::format("{}", getpid()));
  make_folder(staging);
  const std::map<std::string, SavedTensor> before = std::exchange(index.tensors, {});
  for (int64_t rank = 0; rank < index.ranks; ++rank) {
    const std::string file = fmt::format("rank_{:05}_0.safetensors", rank);
    std::vector<PieceToWrite> pieces;
    for (const auto& [name, weight] : weights.tensors) {
      const Box box = share_of(weight.shape, rank, index.ranks);
      if (box.elements() == 0) continue;
      const Dtype of = stored(weight);
      std::vector<int> order(box.shape.size());
      std::iota(order.begin(), order.end(), 0);
      const auto window = std::make_shared<Window>(weights, name, box.offset, box.shape, order, of);
      pieces.push_back({name, of, box.shape, box.offset, [=, &done, &advance](std::byte* to, int64_t first, int64_t n) {
                          window->read(to, first, n);
                          advance(done += n * dtype_bytes(of), total);
                        }});
    }
    const std::vector<std::string> sums = write_safetensors(staging + "/" + file, pieces, [] { return false; });
    for (size_t i = 0; i < pieces.size(); ++i) {
      SavedTensor& saved = index.tensors[pieces[i].name];
      saved.dtype = safetensors_dtype(pieces[i].dtype);
      saved.shape = weights.tensors.at(pieces[i].name).shape;
      if (const auto of = before.find(pieces[i].name); of != before.end()) saved.drift = of->second.drift;
      saved.pieces.push_back({file, pieces[i].offset, pieces[i].shape, sums[i]});
    }
  }
  write_file(staging + "/index.json", index_text(index));
  commit(out, staging, index.step, 0);
}

}  // namespace prun::checkpoint
