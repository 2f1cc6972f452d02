#include "checkpoint/reader.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/box_copy.h"
#include "ir/state.h"

namespace prun::checkpoint {

Reader::Reader(const std::string& folder) : folder_(folder), index_(read_index(folder)) {}

void Reader::require_fit(const Job& job) const {
  const auto refuse = [&](const std::string& what) {
    throw Error(Exit::checkpoint_invalid, fmt::format("the checkpoint {} does not fit this plan: {}", folder_, what));
  };
  size_t wanted = 0;
  std::map<std::string, bool> seen;
  for (const Program& program : job.classes)
    for (const StateTensor& state : program.state) {
      wanted += seen.emplace(state.name, true).second ? 1 : 0;
      const auto found = index_.tensors.find(state.name);
      if (found == index_.tensors.end())
        refuse(fmt::format("it has no {} (it was written by {})", state.name, index_.plan));
      const SavedTensor& saved = found->second;
      const std::string_view dtype = safetensors_dtype(program.tensors[state.tensor].dtype);
      if (saved.shape != state.shape || saved.dtype != dtype)
        refuse(fmt::format("{} is {}{} there and {}{} here", state.name, saved.dtype, shape_text(saved.shape), dtype,
                           shape_text(state.shape)));
    }
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
  if (tensor == nullptr || tensor->shape != piece.shape || tensor->dtype != dtype)
    throw Error(Exit::checkpoint_invalid,
                fmt::format("{}: it holds no {} {}{}, as the index says", path, name, dtype, shape_text(piece.shape)));
  return *tensor;
}

void Reader::verify() {
  for (const auto& [name, tensor] : index_.tensors)
    for (const SavedPiece& piece : tensor.pieces) {
      const SafetensorsFile::Tensor& data = data_of(name, piece, tensor.dtype);
      Sha256 sum;
      sum.add(data.data, static_cast<size_t>(data.bytes));
      if (sum.hex() != piece.sha256)
        throw Error(Exit::checkpoint_invalid,
                    fmt::format("{}/{}: the data of {} is damaged: its SHA-256 is not the one that was written",
                                folder_, piece.file, name));
    }
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
