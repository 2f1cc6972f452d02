// rotary and rotary_at (Su et al., "RoFormer", 2021): each pair of elements of a head is rotated by an angle that grows
// with the token's position; one pass, in place if the program requests it.
//
// Surprising fact: rotary's table of cosines and sines is computed once, in f64, and shared by the kernels of all
// layers. An f32 angle at the last positions of a long context would be wrong in its third digit. rotary_at reads its
// positions, and adds the angles of two shared tables.
#include "prun/sdk/rotary.h"

#include <cmath>
#include <compare>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vectors.h"

namespace prun::cpu {

namespace {

// The rotation that an op's attributes describe; also the key of tables that kernels share.
struct Turn {
  std::vector<double> speeds;  // radians per token of each pair of a head
  double factor;               // of the cosines and sines
  bool interleaved;            // elements 2i and 2i + 1 are a pair, not i and i + half
  explicit Turn(const Attrs& attrs)
      : speeds(sdk::rotary_speeds(attrs.integer("part", attrs.integer("size")) / 2, attrs.text("scaling"),
                                  attrs.numbers("factors"),
                                  [&](const char* name, double usual) { return attrs.number(name, usual); })),
        factor(attrs.number("attention_factor", 1)),
        interleaved(attrs.integer("interleaved") != 0) {}
  auto operator<=>(const Turn&) const = default;  // NOLINT(modernize-use-nullptr)
  int64_t half() const { return std::ssize(speeds); }
};

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
std::shared_ptr<const Angles> angles_of(const OpView& view, int64_t length, const Turn& turn) {
  const TokenPositions at = view.token_positions(length);
  const int64_t half = turn.half();
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, Turn, int64_t, int64_t>, std::weak_ptr<const Angles>> tables;
  const std::lock_guard lock(mutex);
  // The positions of the first and the last token determine all.
  std::weak_ptr<const Angles>& entry = tables[{length, turn, at.of(0), at.of(length - 1)}];
  if (std::shared_ptr<const Angles> angles = entry.lock()) return angles;
  Angles angles(length * 2 * half);
  for (int64_t i = 0; i < half; ++i) {
    const int64_t index = turn.interleaved ? i : index_of<T>(i, half);
    for (int64_t token = 0; token < length; ++token) {
      const double angle = static_cast<double>(at.of(token)) * turn.speeds[i];
      angles[token * 2 * half + index] = static_cast<float>(turn.factor * std::cos(angle));
      angles[(token * 2 + 1) * half + index] = static_cast<float>(turn.factor * std::sin(angle));
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

// Copies the elements that are not rotated: those of each head from `part` on, and those after the heads.
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
void rotate_pair(const T* from, T* to, int64_t low, int64_t high, float c, float s) {
  const float a = load(from[low]), b = load(from[high]);
  store(to[low], a * c - b * s);
  store(to[high], b * c + a * s);
}

// Does the same for pairs of neighbors.
template <class T>
void rotate_neighbors(const T* x, T* y, const Rotation& rotation, int64_t first, int64_t last) {
  const int64_t half = rotation.half, size = rotation.size;
  for (int64_t row = first; row < last; ++row) {
    const T* from = x + row * rotation.width;
    T* to = y + row * rotation.width;
    const float *cosine = rotation.angles + row % rotation.length * 2 * half, *sine = cosine + half;
    for (int64_t h = 0; h < rotation.heads * size; h += size)
      for (int64_t i = 0; i < half; ++i)
        rotate_pair(from, to, h + 2 * i, h + 2 * i + 1, cosine[i], rotation.sign * sine[i]);
    copy_rest(from, to, 2 * half, size, rotation.heads, rotation.width);
  }
}

template <class T>
std::unique_ptr<Kernel> rotary_kernel(const OpView& view) {
  const Shape& shape = view.read(0).shape;
  PRUN_CHECK(shape.size() == 3, shape_text(shape));
  const Turn turn(view.attrs());
  const int64_t length = shape[1], width = shape[2], rows = shape[0] * length;
  const int64_t half = turn.half(), size = view.attrs().integer("size"), heads = view.attrs().integer("heads");
  PRUN_CHECK(half > 0 && 2 * half <= size && heads * size <= width, shape_text(shape));
  view.expect_count(view.write(0), rows * width);
  const float sign = view.attrs().integer("inverse") != 0 ? -1.0f : 1.0f;
  const Rotation rotation{length, width, half, size, heads, nullptr, sign};
  return kernel_of([x = view.in<T>(0), y = view.out<T>(0), rows, rotation, angles = angles_of<T>(view, length, turn),
                    neighbors = turn.interleaved, threads = view.threads()] {
    Rotation with_angles = rotation;
    with_angles.angles = angles->data();
    parallel_rows(threads, rows, [&](int64_t first, int64_t last) {
      if (neighbors)
        rotate_neighbors(x, y, with_angles, first, last);
      else
        rotate_rows(x, y, with_angles, first, last);
    });
  });
}

// Cosines and sines for any position. Those of positions below 2^16 are computed by the sum of two angles of tables,
// because std::cos and std::sin cost as much as rotating a pair in 30 heads.
class AnglesAt {
 public:
  explicit AnglesAt(Turn turn) : turn_(std::move(turn)) {
    table_.reserve(4 * kPart * turn_.half());
    for (const int64_t step : {kPart, int64_t{1}})
      for (int64_t k = 0; k < kPart; ++k)
        for (const double speed : turn_.speeds) {
          const double angle = static_cast<double>(k * step) * speed, factor = step == 1 ? 1 : turn_.factor;
          table_.push_back(factor * std::cos(angle));
          table_.push_back(factor * std::sin(angle));
        }
  }
  // Returns the cosine and the sine of pair i, times the factor.
  std::pair<float, float> of(int64_t position, int64_t i) const {
    if (position < 0 || position >= kPart * kPart) {
      const double angle = static_cast<double>(position) * turn_.speeds[i];
      return rounded(turn_.factor * std::cos(angle), turn_.factor * std::sin(angle));
    }
    const double *a = at(position / kPart, i), *b = at(kPart + position % kPart, i);
    return rounded(a[0] * b[0] - a[1] * b[1], a[1] * b[0] + a[0] * b[1]);
  }
  const Turn& turn() const { return turn_; }

 private:
  static constexpr int64_t kPart = 256;
  static std::pair<float, float> rounded(double cosine, double sine) {
    return {static_cast<float>(cosine), static_cast<float>(sine)};
  }
  const double* at(int64_t entry, int64_t i) const { return table_.data() + 2 * (entry * turn_.half() + i); }

  Turn turn_;
  std::vector<double> table_;  // of multiples of kPart, then of 0 to kPart - 1: cosine and sine of each pair
};

std::shared_ptr<const AnglesAt> angles_at(const Attrs& attrs) {
  Turn turn(attrs);
  static std::mutex mutex;
  static std::map<Turn, std::weak_ptr<const AnglesAt>> tables;
  const std::lock_guard lock(mutex);
  std::weak_ptr<const AnglesAt>& entry = tables[turn];
  std::shared_ptr<const AnglesAt> angles = entry.lock();
  if (!angles) entry = angles = std::make_shared<const AnglesAt>(std::move(turn));
  return angles;
}

template <class T>
std::unique_ptr<Kernel> rotary_at(const OpView& view) {
  const int64_t width = last_dim(view.read(0).shape), rows = row_count(view.read(0).shape);
  const int64_t size = view.attrs().integer("size"), heads = view.attrs().integer("heads");
  const float sign = view.attrs().integer("inverse") != 0 ? -1.0f : 1.0f;
  view.expect_count(view.read(1), rows);
  view.expect_count(view.write(0), rows * width);
  return kernel_of([x = view.in<T>(0), at = view.in<int32_t>(1), y = view.out<T>(0), rows, width, size, heads, sign,
                    angles = angles_at(view.attrs()), threads = view.threads()] {
    const int64_t half = angles->turn().half();
    const int64_t step = angles->turn().interleaved ? 2 : 1, distance = step == 2 ? 1 : half;
    parallel_for(threads, rows, [&](int64_t row, int) {
      const T* from = x + row * width;
      T* to = y + row * width;
      for (int64_t i = 0; i < half; ++i) {
        const auto [c, s] = angles->of(at[row], i);
        for (int64_t low = step * i; low < heads * size; low += size)
          rotate_pair(from, to, low, low + distance, c, sign * s);
      }
      copy_rest(from, to, 2 * half, size, heads, width);
    });
  });
}

}  // namespace

const Family rotary_kernels = {{"rotary", PRUN_FLOAT_MAKER(read(0), rotary_kernel<T>(view))},
                               {"rotary_at", PRUN_FLOAT_MAKER(read(0), rotary_at<T>(view))}};

}  // namespace prun::cpu
