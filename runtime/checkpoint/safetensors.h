// safetensors files: a JSON header, then the tensors' data, one after another. Sharded files record the offset of each
// piece in its tensor, in the format of PyTorch's distributed checkpoints (DCP_SHARDING_INFO).
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ir/types.h"

namespace prun::checkpoint {

std::string_view safetensors_dtype(Dtype dtype);       // for example "F32"
Dtype dtype_of(const std::string& safetensors_dtype);  // throws checkpoint_invalid for one that prun lacks

// A piece to write. `fill(to, first, count)` writes elements of the piece in row-major order to `to`.
struct PieceToWrite {
  std::string name;
  Dtype dtype = Dtype::f32;
  Shape shape, offset;  // offset: in the logical tensor
  std::function<void(std::byte* to, int64_t first, int64_t count)> fill;
};

// Writes and syncs the file. `sharded`: records the offset of each piece in its tensor, and returns the SHA-256 of each
// piece's data. Throws checkpoint_write.
std::vector<std::string> write_safetensors(const std::string& path, const std::vector<PieceToWrite>& pieces,
                                           const std::function<bool()>& cancelled, bool sharded = true);

// A file for positioned reads from any thread, without being mapped.
class DataFile {
 public:
  explicit DataFile(const std::string& path);  // throws checkpoint_invalid
  ~DataFile();
  DataFile(const DataFile&) = delete;
  DataFile& operator=(const DataFile&) = delete;
  // Starts to read these bytes into the page cache, without waiting.
  void read_ahead(int64_t at, int64_t bytes) const;
  // Throws checkpoint_invalid if the file ends too early.
  void read(int64_t at, int64_t bytes, std::byte* to) const;
  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// A file for reading, with its header. Throws checkpoint_invalid for a file of another format or a truncated one.
class SafetensorsFile {
 public:
  struct Tensor {
    std::string dtype;
    Shape shape;
    int64_t at = 0, bytes = 0;  // location in the file
  };
  explicit SafetensorsFile(const std::string& path);
  const Tensor* find(const std::string& name) const;
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  // The offset of each piece of a sharded file in its tensor (DCP_SHARDING_INFO).
  const std::map<std::string, Shape>& offsets() const { return offsets_; }
  const std::shared_ptr<const DataFile>& data() const { return data_; }

 private:
  void read_offsets(const std::string& text);
  std::shared_ptr<const DataFile> data_;
  std::map<std::string, Tensor> tensors_;
  std::map<std::string, Shape> offsets_;
};

// Returns the dtype of a tensor that can be a weight. Throws checkpoint_invalid for another type, and if the data do
// not have the length that the shape requires.
Dtype stored_dtype(const std::string& path, const std::string& name, const SafetensorsFile::Tensor& tensor);

}  // namespace prun::checkpoint
