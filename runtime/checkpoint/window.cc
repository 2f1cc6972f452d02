
#include <algorithm>
#include <cstring>
#include <utility>

#include "checkpoint/weights.h"

namespace prun::checkpoint {
namespace {
constexpr int64_t kWindowBytes = int64_t{32} << 20;  // large enough to read columns of a large matrix in long runs
}

Window::Window(const Weights& weights, std::string name, Shape offset, Shape shape, std::vector<int> order, Dtype dtype)
    : weights_(weights),
      name_(std::move(name)),
      offset_(std::move(offset)),
      shape_(std::move(shape)),
      order_(std::move(order)),
      dtype_(dtype) {
  straight_ = std::is_sorted(order_.begin(), order_.end());
  for (const WeightPiece& piece : weights_.tensors.at(name_).pieces)
    straight_ = straight_ && std::is_sorted(piece.order.begin(), piece.order.end());
  if (order_.empty()) return;
  rows_ = shape_[order_[0]];
  row_ = element_count(shape_) / std::max<int64_t>(1, rows_);
}

void Window::fill(int64_t row) {
  const int64_t size = dtype_bytes(dtype_);
  begin_ = row;
  filled_ = std::min(rows_ - row, std::max<int64_t>(1, kWindowBytes / (row_ * size)));
  buffer_.resize(filled_ * row_ * size);
  Box box{offset_, shape_, 0, Shape(shape_.size(), 1)};
  if (!order_.empty()) {
    box.offset[order_[0]] += row;
    box.shape[order_[0]] = filled_;
  }
  int64_t stride = 1;
  for (size_t t = order_.size(); t-- > 0; stride *= box.shape[order_[t]]) box.strides[order_[t]] = stride;
  weights_.read(name_, box, dtype_, buffer_.data());
}

void Window::read_straight(std::byte* to, int64_t first, int64_t count) const {
  Shape strides(shape_.size(), 1);
  for (size_t d = shape_.size(); d-- > 1;) strides[d - 1] = strides[d] * shape_[d];
  for (Box& box : boxes_of_run(shape_, first, first + count)) {
    box.first = -first;
    for (size_t d = 0; d < shape_.size(); ++d) {
      box.first += box.offset[d] * strides[d];
      box.offset[d] += offset_[d];
    }
    box.strides = strides;
    weights_.read(name_, box, dtype_, to);
  }
}

void Window::read(std::byte* to, int64_t first, int64_t count) {
  if (straight_) return read_straight(to, first, count);
  const int64_t size = dtype_bytes(dtype_);
  while (count > 0) {
    const int64_t row = first / row_;
    if (row < begin_ || row >= begin_ + filled_) fill(row);
    const int64_t within = first - begin_ * row_, n = std::min(count, filled_ * row_ - within);
    std::memcpy(to, buffer_.data() + within * size, n * size);
    to += n * size;
    first += n;
    count -= n;
  }
}

}  // namespace prun::checkpoint
