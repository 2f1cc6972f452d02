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

#include "device/cpu/kernel.h"
#include "device/cpu/parallel.h"
#include "device/cpu/rotary_speeds.h"
#include "device/cpu/vectors.h"

namespace prun::cpu {

std::vector<double> rotary_speeds_of(const Attrs& attrs, int64_t half) {
  return sdk::rotary_speeds(half, attrs.text("scaling"),
                            [&](const char* name, double usual) { return attrs.number(name, usual); });
}

namespace {

// [length][2][half]: the cosines, then the sines of a token.
using Angles = std::vector<float>;

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
    for (int64_t token = 0; token < length; ++token) {
      const double angle = static_cast<double>(at.of(token)) * speeds[i];
      angles[token * 2 * half + i] = static_cast<float>(std::cos(angle));
      angles[(token * 2 + 1) * half + i] = static_cast<float>(std::sin(angle));
    }
  }
  std::shared_ptr<const Angles> shared = std::make_shared<const Angles>(std::move(angles));
  known = shared;
  return shared;
}

// Turns `heads` heads of one token; `sign` is -1 to turn back.
template <class T>
void turn_heads(const T* x, T* y, const float* angles, int64_t heads, int64_t half, float sign) {
  const float *cosine = angles, *sine = angles + half;
  with_lanes([=]<int lanes>() PRUN_INLINED {
    using V = Floats<lanes>;
    for (int64_t h = 0; h < heads; ++h) {
      const T *low = x + h * 2 * half, *high = low + half;
      T *to_low = y + h * 2 * half, *to_high = to_low + half;
      for_lanes<lanes>(half, [=](auto at) PRUN_INLINED {
        const V a = at.load(low), b = at.load(high), c = at.load(cosine), s = sign * at.load(sine);
        at.store(to_low, V(a * c - b * s));
        at.store(to_high, V(b * c + a * s));
      });
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
  return kernel_of([x = view.in<T>(0), y = view.out<T>(0), rows, length, width, half, heads,
                    angles = angles_of(view, length, half), threads = view.threads(),
                    sign = view.attrs().integer("inverse") != 0 ? -1.0f : 1.0f] {
    parallel_for(threads, rows, [&](int64_t row, int) {
      const T* from = x + row * width;
      T* to = y + row * width;
      turn_heads(from, to, angles->data() + row % length * 2 * half, heads, half, sign);
      const int64_t turned = heads * 2 * half;
      if (from != to) std::memcpy(to + turned, from + turned, (width - turned) * sizeof(T));
    });
  });
}

}  // namespace

const Family rotary_kernels = {{"rotary", PRUN_FLOAT_MAKER(read(0), rotary_kernel<T>(view))}};

}  // namespace prun::cpu
