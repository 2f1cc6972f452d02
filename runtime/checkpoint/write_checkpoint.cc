#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <utility>

#include "base/cores.h"
#include "checkpoint/folder.h"
#include "checkpoint/history.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/write_files.h"

namespace prun::checkpoint {
namespace {

constexpr int kMostFiles = 4;  // at a time: bounds the memory

// `dtype` "" = the stored dtype.
Dtype stored_as(const Weight& weight, const std::string& dtype) {
  return dtype.empty() ? weight.dtype : *parse_dtype(dtype);
}

// Returns the rows of dim 0 that a rank writes, divided as in a run; rows of the longest dim if dim 0 is shorter than
// `ranks`.
Box share_of(const Shape& shape, int64_t rank, int64_t ranks) {
  Box box{Shape(shape.size(), 0), shape, 0, {}};
  if (shape.empty()) {
    if (rank > 0) box.shape = {0};
    return box;
  }
  size_t d = 0;
  if (shape[0] < ranks) d = std::max_element(shape.begin(), shape.end()) - shape.begin();
  box.offset[d] = shape[d] * rank / ranks;
  box.shape[d] = shape[d] * (rank + 1) / ranks - box.offset[d];
  return box;
}

// Returns one rank's file: its share of each tensor.
FileToWrite file_of(const Weights& weights, int64_t rank, int64_t ranks, const std::string& dtype,
                    const std::function<void(int64_t)>& wrote) {
  FileToWrite file{fmt::format("rank_{:05}_0.safetensors", rank), {}};
  for (const auto& [name, weight] : weights.tensors) {
    const Box box = share_of(weight.shape, rank, ranks);
    if (box.elements() == 0) continue;
    const Dtype of = stored_as(weight, dtype);
    std::vector<int> order(box.shape.size());
    std::iota(order.begin(), order.end(), 0);
    const auto window = std::make_shared<Window>(weights, name, box.offset, box.shape, order, of);
    file.pieces.push_back({name, of, box.shape, box.offset, [=](std::byte* to, int64_t first, int64_t n) {
                             window->read(to, first, n);
                             wrote(n * dtype_bytes(of));
                           }});
  }
  return file;
}

}  // namespace

void write_checkpoint(const Weights& weights, Index index, const std::string& out, const std::string& dtype,
                      const Advance& advance) {
  int64_t total = 0, done = 0;
  std::mutex advancing;
  const auto wrote = [&](int64_t bytes) {
    const std::lock_guard lock(advancing);
    advance(done += bytes, total);
  };
  for (const auto& [name, weight] : weights.tensors)
    total += element_count(weight.shape) * dtype_bytes(stored_as(weight, dtype));
  const std::string to = checkpoint_name(index.position.step, index.lineage.branch);
  const std::string staging = staging_folder(out, to, fmt::format("{}", getpid()));
  make_folder(staging);
  std::vector<FileToWrite> files;
  for (int64_t rank = 0; rank < index.ranks; ++rank) files.push_back(file_of(weights, rank, index.ranks, dtype, wrote));
  const std::map<std::string, SavedTensor> before = std::exchange(index.tensors, {});
  write_files(
      staging, files, std::min(kMostFiles, usable_cores()), [] { return false; }, index.tensors);
  for (auto& [name, saved] : index.tensors) {
    saved.shape = weights.tensors.at(name).shape;
    if (const auto of = before.find(name); of != before.end()) saved.drift = of->second.drift;
    saved.linear = weights.tensors.at(name).linear;
  }
  write_file(staging + "/index.json", index_text(index));
  commit(out, staging, to, "");
}

}  // namespace prun::checkpoint
