// Verifies a checkpoint before it is used: that its data are whole, and that it fits the plan. Its tensors are read as
// Weights (open_checkpoint).
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "checkpoint/index.h"
#include "ir/program.h"

namespace prun::checkpoint {

enum class Part : uint8_t { state, parameters };

class Reader {
 public:
  explicit Reader(const std::string& folder);  // throws checkpoint_invalid
  const Index& index() const { return index_; }
  const std::string& folder() const { return folder_; }

  // Throws checkpoint_invalid, with both sides, unless the checkpoint holds exactly the state of the job's programs.
  void require_fit(const Job& job) const;
  // Reads all pieces of the part and compares their SHA-256. Throws checkpoint_invalid, with file and tensor.
  void verify(Part part = Part::state, const std::function<void(int64_t bytes, int64_t of)>& advance = {}) const;

 private:
  std::string folder_;
  Index index_;
};

}  // namespace prun::checkpoint
