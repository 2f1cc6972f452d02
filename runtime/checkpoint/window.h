// Elements of weights in the order that a file wants them: as they are stored, or turned around in a window of some
// MiB.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "checkpoint/weights.h"

namespace prun::checkpoint {

// A box of one tensor; `order`: dims of the tensor, outermost first, in the order of the file.
class Window {
 public:
  Window(const Weights& weights, std::string name, Shape offset, Shape shape, std::vector<int> order, Dtype dtype);
  // Elements first, .. of the box in the file's order. Fastest where `first` only grows.
  void read(std::byte* to, int64_t first, int64_t count);

 private:
  void fill(int64_t row);
  void read_straight(std::byte* to, int64_t first, int64_t count) const;

  const Weights& weights_;
  std::string name_;
  Shape offset_, shape_;
  std::vector<int> order_;
  Dtype dtype_;
  bool straight_ = true;            // the files have the elements in this order, too
  int64_t rows_ = 1, row_ = 1;      // of the box; elements of one
  int64_t begin_ = 0, filled_ = 0;  // rows in the buffer
  std::vector<std::byte> buffer_;
};

}  // namespace prun::checkpoint
