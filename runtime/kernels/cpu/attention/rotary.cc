// rotary and, for generation, rotary_at (Su et al., "RoFormer", 2021): each pair of elements of a head is rotated by an
// angle that grows with the token's position; one pass, in place if the program requests it.
//
// Surprising fact: rotary's table of cosines and sines is computed once, in f64, and shared by the kernels of all
// layers. An f32 angle at the last positions of a long context would be wrong in its third digit.
#include "prun/sdk/rotary.h"

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vectors.h"

namespace prun::cpu {

namespace {

// Returns radians per token, for each pair of a head of 2·half elements.
std::vector<double> rotary_speeds_of(const Attrs& attrs, int64_t half) {
  return sdk::rotary_speeds(half, attrs.text("scaling"),
                            [&](const char* name, double usual) { return attrs.number(name, usual); });
}

// [length][2][half]: the cosines and the sines of a token, in the order of the elements in vectors of T.
using Angles = std::vector<float>;

template <class T>
int64_t index_of(int64_t i, int64_t half) {
  int64_t index = i;
  with_lanes([=, &index]<int lanes>() PRUN_INLINED {
    if (i < half / (2 * lanes) * (2 * lanes)) index = WholeTwo<lanes, T>::place(i);
  });
  return index;
}

template <class T>
std::shared_ptr<const Angles> angles_of(const OpView& view, int64_t length, int64_t half) {
  const TokenPositions at = view.token_positions(length);
  const std::vector<double> speeds = rotary_speeds_of(view.attrs(), half);
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, std::vector<double>, int64_t, int64_t>, std::weak_ptr<const Angles>> tables;
  const std::lock_guard lock(mutex);
  // The positions of the first and the last token determine all.
  std::weak_ptr<const Angles>& entry = tables[{length, speeds, at.of(0), at.of(length - 1)}];
  if (std::shared_ptr<const Angles> angles = entry.lock()) return angles;
  Angles angles(length * 2 * half);
  for (int64_t i = 0; i < half; ++i) {
    const int64_t index = index_of<T>(i, half);
    for (int64_t token = 0; token < length; ++token) {
      const double angle = static_cast<double>(at.of(token)) * speeds[i];
      angles[token * 2 * half + index] = static_cast<float>(std::cos(angle));
      angles[(token * 2 + 1) * half + index] = static_cast<float>(std::sin(angle));
    }
  }
  std::shared_ptr<const Angles> shared = std::make_shared<const Angles>(std::move(angles));
  entry = shared;
  return shared;
}

struct Rotation {
  int64_t length, width, half, size, heads;  // rows are tokens of samples of `length`, `width` elements each
  const float* angles;
  float sign;  // -1: the inverse
};

// Returns the pairs of a head that are rotated.
int64_t pairs_of(const Attrs& attrs) { return attrs.integer("part", attrs.integer("size")) / 2; }

// Copies what is not rotated: each head's elements from `part` on, and the elements after the heads.
template <class T>
void copy_rest(const T* from, T* to, int64_t part, int64_t size, int64_t heads, int64_t width) {
  if (from == to) return;
  for (int64_t h = 0; part < size && h < heads; ++h)
    std::memcpy(to + h * size + part, from + h * size + part, (size - part) * sizeof(T));
  if (heads * size < width) std::memcpy(to + heads * size, from + heads * size, (width - heads * size) * sizeof(T));
}

// Rotates rows [first, last) and copies the other elements. Registers hold a token's cosines and sines for
// all heads.
template <class T>
void rotate_rows(const T* x, T* y, const Rotation& rotation, int64_t first, int64_t last) {
  with_lanes([=]<int lanes>() PRUN_INLINED {
    const int64_t half = rotation.half, size = rotation.size, rotated = rotation.heads * size;
    for (int64_t row = first; row < last; ++row) {
      const T* from = x + row * rotation.width;
      T* to = y + row * rotation.width;
      const float *cosine = rotation.angles + row % rotation.length * 2 * half, *sine = cosine + half;
      for_two_lanes<lanes, T>(half, [=, sign = rotation.sign](auto at) PRUN_INLINED {
        const auto c = at.load(cosine), s = at.load(sine) * sign;
        for (int64_t h = 0; h < rotated; h += size) {
          const auto a = at.load(from + h), b = at.load(from + h + half);
          at.store(to + h, a * c - b * s);
          at.store(to + h + half, b * c + a * s);
        }
      });
      copy_rest(from, to, 2 * half, size, rotation.heads, rotation.width);
    }
  });
}

template <class T>
std::unique_ptr<Kernel> rotary_kernel(const OpView& view) {
  const Shape& shape = view.read(0).shape;
  PRUN_CHECK(shape.size() == 3, shape_text(shape));
  const int64_t length = shape[1], width = shape[2], rows = shape[0] * length;
  const int64_t half = pairs_of(view.attrs()), size = view.attrs().integer("size");
  const int64_t heads = view.attrs().integer("heads");
  PRUN_CHECK(half > 0 && 2 * half <= size && heads * size <= width, shape_text(shape));
  view.expect_count(view.write(0), rows * width);
  const float sign = view.attrs().integer("inverse") != 0 ? -1.0f : 1.0f;
  const Rotation rotation{length, width, half, size, heads, nullptr, sign};
  return kernel_of([x = view.in<T>(0), y = view.out<T>(0), rows, rotation, angles = angles_of<T>(view, length, half),
                    threads = view.threads()] {
    Rotation with_angles = rotation;
    with_angles.angles = angles->data();
    parallel_rows(threads, rows, [&](int64_t first, int64_t last) { rotate_rows(x, y, with_angles, first, last); });
  });
}

// Rotates one row, with angles in f64 as in rotary.
template <class T>
void rotate_row(const T* x, T* y, const std::vector<double>& speeds, int64_t position, int64_t size, int64_t heads) {
  const int64_t half = std::ssize(speeds);
  for (int64_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * speeds[i];
    const float c = static_cast<float>(std::cos(angle)), s = static_cast<float>(std::sin(angle));
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t low = h * size + i, high = low + half;
      const float a = load(x[low]), b = load(x[high]);
      store(y[low], a * c - b * s);
      store(y[high], b * c + a * s);
    }
  }
}

template <class T>
std::unique_ptr<Kernel> rotary_at(const OpView& view) {
  const int64_t width = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  const int64_t size = view.attrs().integer("size"), heads = view.attrs().integer("heads");
  view.expect_count(view.read(1), rows);
  view.expect_count(view.write(0), rows * width);
  return kernel_of([x = view.in<T>(0), at = view.in<int32_t>(1), y = view.out<T>(0), rows, width, size, heads,
                    speeds = rotary_speeds_of(view.attrs(), pairs_of(view.attrs())), threads = view.threads()] {
    parallel_for(threads, rows, [&](int64_t row, int) {
      const T* from = x + row * width;
      T* to = y + row * width;
      rotate_row(from, to, speeds, at[row], size, heads);
      copy_rest(from, to, 2 * std::ssize(speeds), size, heads, width);
    });
  });
}

}  // namespace

const Family rotary_kernels = {{"rotary", PRUN_FLOAT_MAKER(read(0), rotary_kernel<T>(view))},
                               {"rotary_at", PRUN_FLOAT_MAKER(read(0), rotary_at<T>(view))}};

}  // namespace prun::cpu
