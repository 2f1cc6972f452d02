#include "checkpoint/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"
#include "prun/sdk/float16.h"

namespace prun::checkpoint {
namespace {

constexpr int64_t kBlockBytes = int64_t{8} << 20;  // bytes that are read before they are scattered
constexpr int64_t kShortestRun = 4096;             // shortest contiguous run in bytes for a read of its own
constexpr int64_t kTile = 32;                      // rows and columns of a transposed tile, within the cache

// A box of a piece, in the order of the file's dims.
struct Region {
  Shape begin, count;  // within the piece
  int64_t to = 0;      // element of the destination
  Shape to_strides;
  int64_t elements() const { return element_count(count); }
};

Shape file_shape(const WeightPiece& piece) {
  Shape shape;
  for (const int d : piece.order) shape.push_back(piece.shape[d]);
  return shape;
}

// Returns the intersection of the box and the piece; without elements if it is empty.
Region common_region(const WeightPiece& piece, const Box& box) {
  Region region;
  region.to = box.first;
  Shape begin, count;
  for (size_t d = 0; d < box.shape.size(); ++d) {
    const int64_t from = std::max(box.offset[d], piece.offset[d]),
                  end = std::min(box.offset[d] + box.shape[d], piece.offset[d] + piece.shape[d]);
    if (from >= end) return {{0}, {0}, 0, {1}};
    begin.push_back(from - piece.offset[d]);
    count.push_back(end - from);
    region.to += (from - box.offset[d]) * box.strides[d];
  }
  for (const int d : piece.order) {
    region.begin.push_back(begin[d]);
    region.count.push_back(count[d]);
    region.to_strides.push_back(box.strides[d]);
  }
  return region;
}

// Runs of elements that are contiguous in the file, and the dims that a run spans: outer, ..., the last.
struct Runs {
  int64_t length = 1;
  size_t outer = 0;
};

// `in_place`: a run must also be contiguous, in the same order, in the destination.
Runs runs_of(const Shape& shape, const Region& region, bool in_place) {
  Runs runs{1, shape.size()};
  while (runs.outer > 0) {
    const size_t d = runs.outer - 1;
    if (in_place && region.count[d] > 1 && region.to_strides[d] != runs.length) break;
    runs.outer = d;
    runs.length *= region.count[d];
    if (region.count[d] != shape[d]) break;
  }
  return runs;
}

// Reads the region from the file, run by run, to the address that `place(run, element of the destination)` returns.
template <class Place>
void read_runs(const WeightPiece& piece, const Shape& shape, const Region& region, const Runs& runs,
               const Place& place) {
  const int64_t size = dtype_bytes(piece.dtype), count = region.elements() / runs.length;
  for (int64_t r = 0; r < count; ++r) {
    int64_t at = 0, to = region.to, stride = 1, row = r;
    for (size_t d = shape.size(); d-- > 0; stride *= shape[d]) {
      at += region.begin[d] * stride;
      if (d >= runs.outer) continue;
      at += row % region.count[d] * stride;
      to += row % region.count[d] * region.to_strides[d];
      row /= region.count[d];
    }
    piece.file->read(piece.at + at * size, runs.length * size, place(r, to));
  }
}

// Reads the region into a contiguous buffer.
void read_region(const WeightPiece& piece, const Region& region, std::byte* to) {
  const Shape shape = file_shape(piece);
  const Runs runs = runs_of(shape, region, false);
  read_runs(piece, shape, region, runs,
            [&](int64_t r, int64_t) { return to + r * runs.length * dtype_bytes(piece.dtype); });
}

// Reads directly to the destination if runs are contiguous there and long enough; otherwise returns false.
bool read_in_place(const WeightPiece& piece, const Region& region, std::byte* tensor) {
  const Shape shape = file_shape(piece);
  const Runs runs = runs_of(shape, region, true);
  const int64_t size = dtype_bytes(piece.dtype);
  if (runs.length * size < kShortestRun && runs.length < region.elements()) return false;
  read_runs(piece, shape, region, runs, [&](int64_t, int64_t to) { return tensor + to * size; });
  return true;
}

float widen_bf16(uint16_t bits) { return sdk::to_float(sdk::bf16{bits}); }
float widen_f16(uint16_t bits) { return std::bit_cast<float>(sdk::widen_f16<float>(uint32_t{bits})); }
uint16_t narrow_bf16(float x) { return sdk::to_bf16(x).bits; }
uint16_t narrow_f16(float x) {
  const uint32_t bits = sdk::round_to_f16<float>(std::bit_cast<uint32_t>(x));
  if ((bits & 0x7fffu) == 0x7c00u && std::isfinite(x))
    throw Error(Exit::checkpoint_invalid, fmt::format("{} is too large for f16, which ends at 65504", x));
  return static_cast<uint16_t>(bits);
}

// Scatters contiguous elements, `count` per dim, to the given strides.
template <class From, class To, class Convert>
void scatter(const From* from, const Shape& count, size_t dim, To* to, const Shape& strides, const Convert& convert) {
  const size_t left = count.size() - dim;
  if (left == 0) {
    *to = convert(*from);
  } else if (left == 1) {
    for (int64_t i = 0; i < count[dim]; ++i) to[i * strides[dim]] = convert(from[i]);
  } else if (left == 2) {
    const int64_t rows = count[dim], columns = count[dim + 1];
    for (int64_t r0 = 0; r0 < rows; r0 += kTile)
      for (int64_t c0 = 0; c0 < columns; c0 += kTile)
        for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r)
          for (int64_t c = c0; c < std::min(columns, c0 + kTile); ++c)
            to[r * strides[dim] + c * strides[dim + 1]] = convert(from[r * columns + c]);
  } else {
    const int64_t inner = element_count(Shape(count.begin() + static_cast<int64_t>(dim) + 1, count.end()));
    for (int64_t i = 0; i < count[dim]; ++i)
      scatter(from + i * inner, count, dim + 1, to + i * strides[dim], strides, convert);
  }
}

template <class From, class Convert>
void scatter_as(Dtype dtype, const std::byte* from, const Region& r, std::byte* to, const Convert& convert) {
  const From* source = reinterpret_cast<const From*>(from);
  const auto put = [&]<class To>(To* first, const auto& narrow) {
    scatter(source, r.count, 0, first + r.to, r.to_strides, [&](From x) { return narrow(convert(x)); });
  };
  if (dtype == Dtype::f64) return put(reinterpret_cast<double*>(to), [](auto x) { return static_cast<double>(x); });
  if (dtype == Dtype::f32) return put(reinterpret_cast<float*>(to), [](auto x) { return static_cast<float>(x); });
  uint16_t* half = reinterpret_cast<uint16_t*>(to);
  if (dtype == Dtype::bf16) return put(half, [](auto x) { return narrow_bf16(static_cast<float>(x)); });
  PRUN_CHECK(dtype == Dtype::f16, std::string(dtype_name(dtype)));
  put(half, [](auto x) { return narrow_f16(static_cast<float>(x)); });
}

void convert_region(Dtype from_dtype, const std::byte* from, const Region& r, Dtype dtype, std::byte* to) {
  switch (from_dtype) {
    case Dtype::f64:
      return scatter_as<double>(dtype, from, r, to, [](double x) { return x; });
    case Dtype::f32:
      return scatter_as<float>(dtype, from, r, to, [](float x) { return x; });
    case Dtype::bf16:
      return scatter_as<uint16_t>(dtype, from, r, to, widen_bf16);
    case Dtype::f16:
      return scatter_as<uint16_t>(dtype, from, r, to, widen_f16);
    default:
      PRUN_CHECK(false, fmt::format("weights of {}", dtype_name(from_dtype)));
  }
}

template <class T>
void move_as(const std::byte* from, const Region& r, std::byte* to) {
  scatter(reinterpret_cast<const T*>(from), r.count, 0, reinterpret_cast<T*>(to) + r.to, r.to_strides,
          [](T x) { return x; });
}

void move_region(int64_t size, const std::byte* from, const Region& r, std::byte* to) {
  if (size == 8) return move_as<uint64_t>(from, r, to);
  if (size == 4) return move_as<uint32_t>(from, r, to);
  if (size == 2) return move_as<uint16_t>(from, r, to);
  move_as<uint8_t>(from, r, to);
}

using Place = std::function<void(const WeightPiece&, const std::byte*, const Region&)>;

// Reads the region in parts that fit the buffer.
void read_in_parts(const WeightPiece& piece, const Region& region, std::vector<std::byte>& buffer, const Place& place) {
  const int64_t bytes = region.elements() * dtype_bytes(piece.dtype);
  if (bytes <= kBlockBytes) {
    buffer.resize(bytes);
    read_region(piece, region, buffer.data());
    return place(piece, buffer.data(), region);
  }
  size_t d = 0;
  while (region.count[d] == 1) ++d;
  const int64_t step = std::max<int64_t>(1, kBlockBytes / (bytes / region.count[d]));
  for (int64_t first = 0; first < region.count[d]; first += step) {
    Region part = region;
    part.begin[d] += first;
    part.count[d] = std::min(step, region.count[d] - first);
    part.to += first * region.to_strides[d];
    read_in_parts(piece, part, buffer, place);
  }
}

void read_stored(const std::string& folder, const std::string& name, const Weight& weight, const Box& box, Dtype dtype,
                 std::byte* tensor) {
  const Place place = [&](const WeightPiece& piece, const std::byte* from, const Region& r) {
    if (piece.dtype == dtype) return move_region(dtype_bytes(dtype), from, r, tensor);
    try {
      convert_region(piece.dtype, from, r, dtype, tensor);
    } catch (Error& error) {
      throw error.prefix(name);
    }
  };
  std::vector<std::byte> buffer;
  int64_t found = 0;
  for (const WeightPiece& piece : weight.pieces) {
    const Region region = common_region(piece, box);
    if (region.elements() == 0) continue;
    found += region.elements();
    if (piece.dtype != dtype || !read_in_place(piece, region, tensor)) read_in_parts(piece, region, buffer, place);
  }
  if (found != box.elements())
    throw invalid(folder,
                  fmt::format("the pieces of {} hold {} of {} elements that are needed", name, found, box.elements()));
}

// Sums in f64, so the mean of identical copies is bitwise identical to them.
template <class To>
void read_mean(const std::string& folder, const std::string& name, const Weight& weight, const Box& box, To* tensor) {
  Box copy{box.offset, box.shape, 0, Shape(box.shape.size() + 1, 1)};
  copy.offset.insert(copy.offset.begin(), 0);
  copy.shape.insert(copy.shape.begin(), 1);
  for (size_t d = copy.shape.size(); d-- > 1;) copy.strides[d - 1] = copy.strides[d] * copy.shape[d];
  std::vector<double> sum(box.elements()), one(sum.size());
  for (int64_t c = 0; c < weight.copies; ++c) {
    copy.offset[0] = c;
    read_stored(folder, name, weight, copy, Dtype::f64, reinterpret_cast<std::byte*>(one.data()));
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += one[i];
  }
  scatter(sum.data(), box.shape, 0, tensor + box.first, box.strides,
          [&](double x) { return static_cast<To>(x / static_cast<double>(weight.copies)); });
}

std::vector<double> read_f64(const Weights& weights, const std::string& name, const Shape& offset, const Shape& shape) {
  std::vector<double> values(element_count(shape));
  weights.read(name, {offset, shape, 0, {shape[1], 1}}, Dtype::f64, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

// Reads weight + scale·A·B, some rows at a time, and adds in f64.
void read_adapted(const std::string& folder, const std::string& name, const Weight& weight, const Box& box, Dtype dtype,
                  std::byte* tensor) {
  const WeightAdapter& adapter = *weight.adapter;
  const int64_t rank = adapter.weights->tensors.at(adapter.a).shape[1], columns = box.shape[1];
  const std::vector<double> b = read_f64(*adapter.weights, adapter.b, {0, box.offset[1]}, {rank, columns});
  const int64_t step = std::max<int64_t>(1, kBlockBytes / std::max<int64_t>(1, columns * 8));
  for (int64_t first = 0; first < box.shape[0]; first += step) {
    const int64_t rows = std::min(step, box.shape[0] - first), row = box.offset[0] + first;
    const std::vector<double> a = read_f64(*adapter.weights, adapter.a, {row, 0}, {rows, rank});
    std::vector<double> sum(rows * columns);
    const Box part{{row, box.offset[1]}, {rows, columns}, 0, {columns, 1}};
    read_stored(folder, name, weight, part, Dtype::f64, reinterpret_cast<std::byte*>(sum.data()));
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t k = 0; k < rank; ++k)
        for (int64_t j = 0; j < columns; ++j)
          sum[i * columns + j] += adapter.scale * a[i * rank + k] * b[k * columns + j];
    const Region all{{0, 0}, part.shape, box.first + first * box.strides[0], box.strides};
    convert_region(Dtype::f64, reinterpret_cast<const std::byte*>(sum.data()), all, dtype, tensor);
  }
}

}  // namespace

void Weights::read(const std::string& name, const Box& box, Dtype dtype, std::byte* tensor) const {
  const Weight& weight = tensors.at(name);
  if (weight.adapter) return read_adapted(folder, name, weight, box, dtype, tensor);
  if (weight.copies == 1) return read_stored(folder, name, weight, box, dtype, tensor);
  PRUN_CHECK(dtype == Dtype::f32 || dtype == Dtype::f64, std::string(dtype_name(dtype)));
  if (dtype == Dtype::f64) return read_mean(folder, name, weight, box, reinterpret_cast<double*>(tensor));
  read_mean(folder, name, weight, box, reinterpret_cast<float*>(tensor));
}

}  // namespace prun::checkpoint
