// rotary: each pair of elements times a cosine and a sine; one pass, in place where the program wishes.
//
// Surprising fact: the table of cosines and sines is made once, in f64, and shared by the kernels of all layers. At the
// last positions of a long context the angle of an f32 product would be wrong in its third digit.
#include "prun/sdk/rotary.h"

#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "kernels/cpu/attention/rotary_speeds.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/vectors.h"

namespace prun::cpu {

std::vector<double> rotary_speeds_of(const Attrs& attrs, int64_t half) {
  return sdk::rotary_speeds(half, attrs.text("scaling"),
                            [&](const char* name, double usual) { return attrs.number(name, usual); });
}

namespace {

// [length][2][half]: the cosines, then the sines of a token, in the order in which vectors of T have a half.
using Angles = std::vector<float>;

template <class T>
int64_t place_of(int64_t i, int64_t half) {
  int64_t place = i;
  with_lanes([=, &place]<int lanes>() PRUN_INLINED {
    if (i < half / (2 * lanes) * (2 * lanes)) place = WholeTwo<lanes, T>::place(i);
  });
  return place;
}

template <class T>
std::shared_ptr<const Angles> angles_of(const OpView& view, int64_t length, int64_t half) {
  const TokenPositions at = view.token_positions(length);
  const std::vector<double> speeds = rotary_speeds_of(view.attrs(), half);
  static std::mutex mutex;
  static std::map<std::tuple<int64_t, std::vector<double>, int64_t, int64_t>, std::weak_ptr<const Angles>> made;
  const std::lock_guard lock(mutex);
  // Where the first and the last token stand says where all do.
  std::weak_ptr<const Angles>& known = made[{length, speeds, at.of(0), at.of(length - 1)}];
  if (std::shared_ptr<const Angles> angles = known.lock()) return angles;
  Angles angles(length * 2 * half);
  for (int64_t i = 0; i < half; ++i) {
    const int64_t place = place_of<T>(i, half);
    for (int64_t token = 0; token < length; ++token) {
      const double angle = static_cast<double>(at.of(token)) * speeds[i];
      angles[token * 2 * half + place] = static_cast<float>(std::cos(angle));
      angles[(token * 2 + 1) * half + place] = static_cast<float>(std::sin(angle));
    }
  }
  std::shared_ptr<const Angles> shared = std::make_shared<const Angles>(std::move(angles));
  known = shared;
  return shared;
}

struct Turn {
  int64_t length, width, half, heads;  // rows are tokens of samples of `length`, `width` elements each
  const float* angles;
  float sign;  // -1 to turn back
};

// Rows [first, last); what is behind the heads is copied. A token's cosines and sines stay in registers for all heads.
template <class T>
void turn_rows(const T* x, T* y, const Turn& turn, int64_t first, int64_t last) {
  with_lanes([=]<int lanes>() PRUN_INLINED {
    const int64_t half = turn.half, turned = turn.heads * 2 * half;
    for (int64_t row = first; row < last; ++row) {
      const T* from = x + row * turn.width;
      T* to = y + row * turn.width;
      const float *cosine = turn.angles + row % turn.length * 2 * half, *sine = cosine + half;
      for_two_lanes<lanes, T>(half, [=, sign = turn.sign](auto at) PRUN_INLINED {
        const auto c = at.load(cosine), s = at.load(sine) * sign;
        for (int64_t h = 0; h < turned; h += 2 * half) {
          const auto a = at.load(from + h), b = at.load(from + h + half);
          at.store(to + h, a * c - b * s);
          at.store(to + h + half, b * c + a * s);
        }
      });
      if (from != to && turned < turn.width) std::memcpy(to + turned, from + turned, (turn.width - turned) * sizeof(T));
    }
  });
}

template <class T>
std::unique_ptr<Kernel> rotary_kernel(const OpView& view) {
  const Shape& shape = view.read(0).shape;
  PRUN_CHECK(shape.size() == 3, shape_text(shape));
  const int64_t length = shape[1], width = shape[2], rows = shape[0] * length;
  const int64_t half = view.attrs().integer("size") / 2, heads = view.attrs().integer("heads");
  PRUN_CHECK(half > 0 && heads * 2 * half <= width, shape_text(shape));
  view.expect_count(view.write(0), rows * width);
  const Turn turn{length, width, half, heads, nullptr, view.attrs().integer("inverse") != 0 ? -1.0f : 1.0f};
  return kernel_of([x = view.in<T>(0), y = view.out<T>(0), rows, turn, angles = angles_of<T>(view, length, half),
                    threads = view.threads()] {
    Turn with_angles = turn;
    with_angles.angles = angles->data();
    parallel_rows(threads, rows, [&](int64_t first, int64_t last) { turn_rows(x, y, with_angles, first, last); });
  });
}

}  // namespace

const Family rotary_kernels = {{"rotary", PRUN_FLOAT_MAKER(read(0), rotary_kernel<T>(view))}};

}  // namespace prun::cpu
