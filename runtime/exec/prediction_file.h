// The file of a prediction: an array [samples, ...] in numpy's format (NEP 1, version 1.0), which the launcher creates
// at its full size and ranks fill in.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "device/device.h"
#include "ir/program.h"

namespace prun {

// The row that a prediction stores for each sample; bf16 is stored as f32, because numpy lacks it.
struct PredictedRows {
  Dtype dtype = Dtype::f32;
  Shape shape;  // without samples
  int64_t bytes() const { return element_count(shape) * dtype_bytes(dtype); }
  int64_t columns() const { return shape.empty() ? 1 : shape.back(); }
};

PredictedRows predicted_rows(const Program& program, const Op& write_rows);
// Returns the file's first bytes, a multiple of 64.
std::string npy_header(const PredictedRows& rows, int64_t samples);
// run() throws usage_error if the file at `path` cannot be written.
std::unique_ptr<Kernel> make_write_rows(const RankMemory& memory, const Op& op, const std::string& path);

}  // namespace prun
