#include "checkpoint/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/cores.h"
#include "base/error.h"
#include "base/text.h"
#include "checkpoint/box_copy.h"
#include "checkpoint/model_fit.h"
#include "checkpoint/sha256.h"
#include "ir/state.h"

namespace prun::checkpoint {

namespace {

bool is_in(Part part, const std::string& name) { return part == Part::state || !name.starts_with(kOptimizerPrefix); }

// Pages come in runs that a disk reads at its speed, not one by one as they are touched, and go when they are summed.
std::string sum_of(const SafetensorsFile::Tensor& tensor) {
  constexpr int64_t kRun = int64_t{8} << 20;
  Sha256 sum;
  for (int64_t at = 0; at < tensor.bytes; at += kRun) {
    const int64_t bytes = std::min(kRun, tensor.bytes - at);
    populate(tensor.data + at, bytes);
    sum.add(tensor.data + at, static_cast<size_t>(bytes));
    release(tensor.data + at, bytes);
  }
  return sum.hex();
}

}  // namespace

Reader::Reader(const std::string& folder) : folder_(folder), index_(read_index(folder)) {}

void Reader::require_fit(const Job& job) const {
  const auto refuse = [&](const std::string& what) {
    throw Error(Exit::checkpoint_invalid, fmt::format("the checkpoint {} does not fit this plan: {}", folder_, what));
  };
  const bool trained = std::any_of(index_.tensors.begin(), index_.tensors.end(),
                                   [](const auto& tensor) { return tensor.first.starts_with(kOptimizerPrefix); });
  size_t wanted = 0;
  std::map<std::string, bool> seen;
  for (const Program& program : job.classes)
    for (const StateTensor& state : program.state) {
      wanted += seen.emplace(state.name, true).second ? 1 : 0;
      const auto found = index_.tensors.find(state.name);
      if (!trained && state.name.starts_with(kOptimizerPrefix))
        refuse(
            fmt::format("it has no optimizer state: its weights begin a run anew with init = prun.init.from {{ "
                        "path = \"{}\" }}",
                        folder_));
      if (found == index_.tensors.end())
        refuse(fmt::format("it has no {} (it was written by {})", state.name, index_.plan));
      const SavedTensor& saved = found->second;
      const std::string_view dtype = safetensors_dtype(program.tensors[state.tensor].dtype);
      if (saved.shape != state.shape || saved.dtype != dtype)
        refuse(fmt::format("{} is {}{} there and {}{} here", state.name, saved.dtype, shape_text(saved.shape), dtype,
                           shape_text(state.shape)));
    }
  if (const std::string differs = differing_model(index_.model, job.classes.front().model); !differs.empty())
    refuse(differs);
  if (wanted == index_.tensors.size()) return;
  for (const auto& [name, tensor] : index_.tensors)
    if (!seen.contains(name)) refuse(fmt::format("it has {}, which this plan has not", name));
}

const SafetensorsFile::Tensor& Reader::data_of(const std::string& name, const SavedPiece& piece,
                                               const std::string& dtype) {
  const std::string path = folder_ + "/" + piece.file;
  std::unique_ptr<SafetensorsFile>& file = files_[piece.file];
  if (file == nullptr) file = std::make_unique<SafetensorsFile>(path);
  const SafetensorsFile::Tensor* tensor = file->find(name);
  if (tensor == nullptr || tensor->shape != piece.shape || tensor->dtype != dtype ||
      tensor->bytes != element_count(piece.shape) * dtype_bytes_of(dtype))
    throw Error(Exit::checkpoint_invalid,
                fmt::format("{}: it holds no {} {}{}, as the index says", path, name, dtype, shape_text(piece.shape)));
  return *tensor;
}

void Reader::verify(Part of, const std::function<void(int64_t, int64_t)>& advance) {
  struct Piece {
    const std::string* name;
    const SavedPiece* piece;
    const SafetensorsFile::Tensor* data;
  };
  std::vector<Piece> parts;
  int64_t done = 0, all = 0;
  std::mutex advancing;
  for (const auto& [name, tensor] : index_.tensors)
    for (const SavedPiece& piece : tensor.pieces)
      if (is_in(of, name)) parts.push_back({&name, &piece, &data_of(name, piece, tensor.dtype)});
  for (const Piece& part : parts) all += part.data->bytes;
  // In the order of the files, which is the order on the disk.
  std::sort(parts.begin(), parts.end(), [](const Piece& a, const Piece& b) {
    return std::pair(a.piece->file, a.data->data) < std::pair(b.piece->file, b.data->data);
  });
  std::atomic<size_t> next = 0, damaged = parts.size();
  const auto work = [&] {
    for (size_t i = 0; (i = next++) < parts.size();) {
      const bool whole = sum_of(*parts[i].data) == parts[i].piece->sha256;
      if (advance) {
        const std::lock_guard lock(advancing);
        advance(done += parts[i].data->bytes, all);
      }
      if (whole) continue;
      for (size_t first = damaged; i < first && !damaged.compare_exchange_weak(first, i);) continue;
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < usable_cores(); ++i) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  if (damaged == parts.size()) return;
  const Piece& part = parts[damaged];
  throw Error(Exit::checkpoint_invalid,
              fmt::format("{}/{}: the data of {} is damaged: its SHA-256 is not the one that was written", folder_,
                          part.piece->file, *part.name));
}

void Reader::read(const Program& program, const StateTensor& state, int rank, std::byte* to) {
  for (const Box& box : held_boxes(program, state, rank)) read_box(state.name, box, to);
}

void Reader::read_box(const std::string& name, const Box& box, std::byte* to) {
  const SavedTensor& saved = index_.tensors.at(name);
  const int64_t size = dtype_bytes_of(saved.dtype);
  int64_t read = 0;
  for (const SavedPiece& piece : saved.pieces)
    read += copy_common(piece.offset, piece.shape, data_of(name, piece, saved.dtype).data, box, size, to);
  if (read != box.elements())
    throw Error(Exit::checkpoint_invalid, fmt::format("{}: the pieces of {} hold {} of {} elements that are needed",
                                                      folder_, name, read, box.elements()));
}

}  // namespace prun::checkpoint
