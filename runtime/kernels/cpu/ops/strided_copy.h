// A copy between two strided layouts: y[Σ i·ys] = x[Σ i·xs]. permute, slice, pad, concat and expand are such copies.
//
// The plan merges adjacent dims and drops those of size 1, so that most copies become runs of memcpy; a transposition
// runs in tiles, because one of its sides is never contiguous.
#pragma once
#include <cstdint>
#include <vector>

namespace prun::cpu {

struct StridedDim {
  int64_t size, from, to;  // strides in elements
};

class StridedCopy {
 public:
  // `dims`: outermost first; element sizes of 2, 4 or 8 bytes.
  StridedCopy(const std::vector<StridedDim>& dims, int64_t element_bytes);
  void run(int threads, const std::byte* from, std::byte* to) const;

 private:
  template <class T>
  void copy(int threads, const T* from, T* to) const;

  std::vector<StridedDim> outer_;  // all dims but those below
  StridedDim rows_{1, 0, 0};       // transposition: contiguous in x
  StridedDim run_{1, 1, 1};        // the innermost dim of y
  int64_t element_bytes_;
};

}  // namespace prun::cpu
