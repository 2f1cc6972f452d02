// Reads a checkpoint onto any mesh: a rank takes from each piece what it has in common with what the rank holds.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"
#include "ir/program.h"

namespace prun::checkpoint {

enum class Part : uint8_t { state, parameters };

class Reader {
 public:
  explicit Reader(const std::string& folder);  // throws checkpoint_invalid
  const Index& index() const { return index_; }
  const std::string& folder() const { return folder_; }

  // Throws checkpoint_invalid, with both sides, unless the checkpoint has what each of the programs keeps.
  void require_fit(const Job& job) const;
  // Reads all pieces of the part and compares their SHA-256, and says how far it is. Throws checkpoint_invalid, with
  // file and tensor.
  void verify(Part part = Part::state, const std::function<void(int64_t bytes, int64_t of)>& advance = {});
  // What `rank` holds of the state, into the tensor that it says; all of the tensor is written by `read` of all its
  // parts after it was zeroed.
  void read(const Program& program, const StateTensor& state, int rank, std::byte* tensor);
  // One box of a tensor, to where it says. Throws checkpoint_invalid where the pieces do not cover it.
  void read_box(const std::string& name, const Box& box, std::byte* tensor);

 private:
  const SafetensorsFile::Tensor& data_of(const std::string& name, const SavedPiece& piece, const std::string& dtype);

  std::string folder_;
  Index index_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
};

}  // namespace prun::checkpoint
