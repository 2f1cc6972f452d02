// rotary_at: rotary for a generation, whose rows are at positions that only the device knows.
#include <cmath>
#include <numbers>
#include <vector>

#include "block.cuh"
#include "launch.h"
#include "prun/sdk/rotary.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

struct Turns {
  int64_t rows, width, half, heads;
};

// Rotates the pairs of each row, then copies the elements that are not rotated. Angles are computed in f64, as in
// rotary, and in half turns, because cos and sin of large radians need a table of π's digits in local memory.
template <class T>
__global__ void turn_at(const T* x, const int32_t* at, T* y, const double* half_turns, Turns r) {
  const int64_t pairs = r.heads * r.half, items = pairs + (x == y ? 0 : r.width - 2 * pairs);
  for (int64_t i = first_item(); i < r.rows * items; i += item_stride()) {
    const int64_t row = i / items, item = i - row * items;
    if (item >= pairs) {
      y[row * r.width + pairs + item] = x[row * r.width + pairs + item];
      continue;
    }
    const int64_t head = item / r.half, pair = item - head * r.half;
    const double angle = at[row] * half_turns[pair];
    const float cosine = static_cast<float>(cospi(angle)), sine = static_cast<float>(sinpi(angle));
    const int64_t low = row * r.width + head * 2 * r.half + pair, high = low + r.half;
    const float a = widen(x[low]), b = widen(x[high]);
    y[low] = narrow<T>(a * cosine - b * sine);
    y[high] = narrow<T>(b * cosine + a * sine);
  }
}

template <class T>
std::unique_ptr<Kernel> rotary_at(const OpView& view) {
  const Shape shape = view.read(0).shape;
  const Turns r{shape.rows(), shape.last(), view.integer("size") / 2, view.integer("heads")};
  view.expect(r.half > 0 && r.heads * 2 * r.half <= r.width,
              std::to_string(r.heads) + " heads of " + std::to_string(2 * r.half) + " in " + shape_text(shape));
  view.expect_count(view.read(1), r.rows);
  view.expect_count(view.write(0), r.rows * r.width);
  std::vector<double> speeds = sdk::rotary_speeds(
      r.half, view.text("scaling"), [&](const char* name, double usual) { return view.number(name, usual); });
  for (double& speed : speeds) speed /= std::numbers::pi;
  const std::shared_ptr<void> table = device_table(view.context(), speeds.data(), speeds.size() * sizeof(double));
  return kernel_of([=, x = view.in<T>(0), at = view.in<int32_t>(1), y = view.out<T>(0)](cudaStream_t stream) {
    launch(turn_at<T>, blocks_for(r.rows * r.width, kThreads), kThreads, 0, stream, x, at, y,
           static_cast<const double*>(table.get()), r);
  });
}

std::unique_ptr<Kernel> make_rotary_at(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return rotary_at<T>(view); });
}

constexpr KernelEntry kEntries[] = {{"rotary_at", make_rotary_at}};

}  // namespace

std::span<const KernelEntry> rotary_at_kernels() { return kEntries; }

}  // namespace prun::cuda
