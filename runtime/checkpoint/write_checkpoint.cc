#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include "base/cores.h"
#include "checkpoint/convert.h"
#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/window.h"

namespace prun::checkpoint {
namespace {

// `dtype` "": as it is.
Dtype stored_as(const Weight& weight, const std::string& dtype) {
  return dtype.empty() ? weight.dtype : *parse_dtype(dtype);
}

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

// What one rank's file has of each tensor that it shares.
struct ShareFile {
  std::string name;
  std::vector<PieceToWrite> pieces;
  std::vector<std::string> sums;
};

ShareFile file_of(const Weights& weights, int64_t rank, int64_t ranks, const std::string& dtype,
                  const std::function<void(int64_t)>& wrote) {
  ShareFile file{fmt::format("rank_{:05}_0.safetensors", rank), {}, {}};
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

// Several files at a time: each has one thread that sums, which the disk would wait for.
void write_files(std::vector<ShareFile>& files, const std::string& staging) {
  constexpr size_t kMost = 4;  // bounds the memory
  std::atomic<size_t> next = 0;
  std::atomic<bool> over = false;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto work = [&] {
    for (size_t i = 0; (i = next++) < files.size() && !over;) {
      try {
        files[i].sums = write_safetensors(staging + "/" + files[i].name, files[i].pieces, [&] { return over.load(); });
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (failure == nullptr) failure = std::current_exception();
        over = true;
      }
    }
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min({files.size(), kMost, static_cast<size_t>(usable_cores())}); ++i)
    others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  if (failure != nullptr) std::rethrow_exception(failure);
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
  const std::string staging = staging_folder(out, index.step, fmt::format("{}", getpid()));
  make_folder(staging);
  std::vector<ShareFile> files;
  for (int64_t rank = 0; rank < index.ranks; ++rank) files.push_back(file_of(weights, rank, index.ranks, dtype, wrote));
  write_files(files, staging);
  const std::map<std::string, SavedTensor> before = std::exchange(index.tensors, {});
  for (const ShareFile& file : files)
    for (size_t i = 0; i < file.pieces.size(); ++i) {
      const PieceToWrite& piece = file.pieces[i];
      SavedTensor& saved = index.tensors[piece.name];
      saved.dtype = safetensors_dtype(piece.dtype);
      saved.shape = weights.tensors.at(piece.name).shape;
      if (const auto of = before.find(piece.name); of != before.end()) saved.drift = of->second.drift;
      saved.pieces.push_back({file.name, piece.offset, piece.shape, file.sums[i]});
    }
  write_file(staging + "/index.json", index_text(index));
  commit(out, staging, index.step, 0);
}

}  // namespace prun::checkpoint
