// rotary: rotates each pair of elements by an angle; one pass, in place if the program requests it. rotary_at does the
// same for rows whose positions only the device stores: those of documents, and those of a generation.
//
// Surprising fact: the table of cosines and sines is computed once, in f64 on the host, and shared by the kernels of
// all layers. An f32 angle at the last positions of a long context would be wrong in its third digit.
#include <cmath>
#include <map>
#include <mutex>
#include <numbers>
#include <tuple>
#include <vector>

#include "block.cuh"
#include "launch.h"
#include "prun/sdk/rotary.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

std::vector<double> speeds_of(const OpView& view, int64_t half) {
  return sdk::rotary_speeds(half, view.text("scaling"), view.numbers("factors"),
                            [&](const char* name, double usual) { return view.number(name, usual); });
}

// Returns the table [length][2][half]: the cosines, then the sines of a token.
std::shared_ptr<void> angles_of(const OpView& view, int64_t length, int64_t half) {
  const TokenPositions at = view.token_positions(length);
  const std::vector<double> speeds = speeds_of(view, half);
  const double factor = view.number("attention_factor", 1);
  static std::mutex mutex;
  static std::map<std::tuple<Context*, int64_t, std::vector<double>, double, int64_t, int64_t>, std::weak_ptr<void>>
      made;
  const std::lock_guard lock(mutex);
  // The positions of the first and the last token determine all positions.
  std::weak_ptr<void>& known = made[{&view.context(), length, speeds, factor, at.of(0), at.of(length - 1)}];
  if (std::shared_ptr<void> angles = known.lock()) return angles;
  std::vector<float> angles(static_cast<size_t>(length * 2 * half));
  for (int64_t i = 0; i < half; ++i) {
    for (int64_t token = 0; token < length; ++token) {
      const double angle = static_cast<double>(at.of(token)) * speeds[static_cast<size_t>(i)];
      angles[static_cast<size_t>(token * 2 * half + i)] = static_cast<float>(factor * std::cos(angle));
      angles[static_cast<size_t>((token * 2 + 1) * half + i)] = static_cast<float>(factor * std::sin(angle));
    }
  }
  std::shared_ptr<void> shared = device_table(view.context(), angles.data(), angles.size() * sizeof(float));
  known = shared;
  return shared;
}

struct Rotary {
  int64_t rows, width, size, half, heads;
  bool interleaved;  // elements 2i and 2i + 1 are a pair, not i and i + half
  float sign;        // -1 for the inverse rotation
  explicit Rotary(const OpView& view)
      : rows(view.read(0).shape.rows()),
        width(view.read(0).shape.last()),
        size(view.integer("size")),
        half(view.integer("part", size) / 2),
        heads(view.integer("heads")),
        interleaved(view.integer("interleaved") != 0),
        sign(view.integer("inverse") != 0 ? -1.0f : 1.0f) {
    view.expect(half > 0 && 2 * half <= size && heads * size <= width,
                std::to_string(heads) + " heads of " + std::to_string(size) + " in " + shape_text(view.read(0).shape));
    view.expect_count(view.write(0), rows * width);
  }
  __host__ __device__ int64_t kept() const { return width - 2 * heads * half; }
  // Returns the column of the i-th element of a row that is not rotated.
  __device__ __forceinline__ int64_t kept_column(int64_t i) const {
    const int64_t rest = size - 2 * half;  // of a head
    if (i >= heads * rest) return 2 * heads * half + i;
    const int64_t head = i / rest;
    return (head + 1) * 2 * half + i;
  }
};

// Rotates N pairs of the heads at a time, then copies N of the remaining elements at a time. N interleaved pairs are
// 2·N neighboring elements, which registers hold in two packs.
template <class T, int N, bool interleaved>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    turn(const T* x, T* y, const float* angles, Rotary r, int64_t length) {
  const int64_t packs = r.heads * r.half / N, items = packs + (x == y ? 0 : r.kept() / N);
  for (int64_t i = first_item(); i < r.rows * items; i += item_stride()) {
    const int64_t row = i / items, item = i - row * items;
    if (item >= packs) {
      const int64_t at = row * r.width + r.kept_column((item - packs) * N);
      store_pack(y + at, load_pack<N>(x + at));
      continue;
    }
    const int64_t head = item * N / r.half, pair = item * N - head * r.half;
    const int64_t low = row * r.width + head * r.size + (interleaved ? 2 * pair : pair);
    const int64_t high = low + (interleaved ? N : r.half);
    const float* angle = angles + row % length * 2 * r.half + pair;
    Wide<T> in[2][N], out[2][N];  // the packs at `low` and at `high`
    float cosine[N], sine[N];
    load(x + low, in[0]), load(x + high, in[1]), load(angle, cosine), load(angle + r.half, sine);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float s = r.sign * sine[j];
      constexpr int kStep = interleaved ? 2 : 1;  // elements between the first ones of two pairs
      const int first = kStep * j, second = interleaved ? first + 1 : N + j;
      const Wide<T> a = in[first / N][first % N], b = in[second / N][second % N];
      out[first / N][first % N] = a * cosine[j] - b * s;
      out[second / N][second % N] = b * cosine[j] + a * s;
    }
    store(y + low, out[0]), store(y + high, out[1]);
  }
}

// Enqueues the rotation of rows by the angles [length][2][half]; row r has those of token r mod length.
template <class T>
void run_turn(cudaStream_t stream, const Rotary& r, const T* x, T* y, const void* angles, int64_t length) {
  const bool packed = r.half % kPack<T> == 0 && r.size % kPack<T> == 0 && rows_aligned(r.width, x, y);
  const auto kernel = r.interleaved ? (packed ? turn<T, kPack<T>, true> : turn<T, 1, true>)
                                    : (packed ? turn<T, kPack<T>, false> : turn<T, 1, false>);
  // At least one item for each N elements that are written, so the grid is large enough although a pair has two.
  launch(kernel, blocks_for(r.rows * r.width / (packed ? kPack<T> : 1), kThreads), kThreads, 0, stream, x, y,
         static_cast<const float*>(angles), r, length);
}

template <class T>
std::unique_ptr<Kernel> rotary(const OpView& view) {
  const Shape shape = view.read(0).shape;
  view.expect(shape.rank() == 3, shape_text(shape));
  const Rotary r(view);
  const int64_t length = shape[1];
  return kernel_of([=, x = view.in<T>(0), y = view.out<T>(0), angles = angles_of(view, length, r.half)](
                       cudaStream_t stream) { run_turn(stream, r, x, y, angles.get(), length); });
}

// From so many rows on, a kernel computes each row's angles once, for all heads; training on packed documents has
// thousands. Fewer rows would not fill a GPU, so every pair's thread computes its angle.
constexpr int64_t kTableRows = 32;

struct Turn {
  float cosine, sine;
};
// Angles are computed in f64, as in rotary, and in half turns, because cos and sin of large radians need a table of π's
// digits in local memory.
__device__ __forceinline__ Turn turn_of(int32_t position, double half_turns, double factor) {
  const double angle = position * half_turns;
  return {static_cast<float>(factor * cospi(angle)), static_cast<float>(factor * sinpi(angle))};
}

// Computes the angles [rows][2][half].
__global__ void __launch_bounds__(kThreads)
    make_angles(const int32_t* at, const double* half_turns, float* angles, int64_t rows, int64_t half, double factor) {
  for (int64_t i = first_item(); i < rows * half; i += item_stride()) {
    const int64_t row = i / half, pair = i - row * half;
    const Turn t = turn_of(at[row], half_turns[pair], factor);
    angles[row * 2 * half + pair] = t.cosine;
    angles[(row * 2 + 1) * half + pair] = t.sine;
  }
}

// Rotates the pairs of each row, then copies the elements that are not rotated.
template <class T>
__global__ void turn_at(const T* x, const int32_t* at, T* y, const double* half_turns, Rotary r, double factor) {
  const int64_t pairs = r.heads * r.half, items = pairs + (x == y ? 0 : r.kept());
  for (int64_t i = first_item(); i < r.rows * items; i += item_stride()) {
    const int64_t row = i / items, item = i - row * items;
    if (item >= pairs) {
      const int64_t at_kept = row * r.width + r.kept_column(item - pairs);
      y[at_kept] = x[at_kept];
      continue;
    }
    const int64_t head = item / r.half, pair = item - head * r.half;
    const Turn t = turn_of(at[row], half_turns[pair], factor);
    const float cosine = t.cosine, sine = r.sign * t.sine;
    const int64_t low = row * r.width + head * r.size + (r.interleaved ? 2 * pair : pair);
    const int64_t high = low + (r.interleaved ? 1 : r.half);
    const float a = widen(x[low]), b = widen(x[high]);
    y[low] = narrow<T>(a * cosine - b * sine);
    y[high] = narrow<T>(b * cosine + a * sine);
  }
}

size_t angle_bytes(const OpView& view) {
  const int64_t rows = view.read(0).shape.rows(), half = view.integer("part", view.integer("size")) / 2;
  return rows < kTableRows ? 0 : static_cast<size_t>(rows * 2 * half) * sizeof(float);
}

template <class T>
std::unique_ptr<Kernel> rotary_at(const OpView& view) {
  const Rotary r(view);
  view.expect_count(view.read(1), r.rows);
  std::vector<double> speeds = speeds_of(view, r.half);
  for (double& speed : speeds) speed /= std::numbers::pi;
  const std::shared_ptr<void> table = device_table(view.context(), speeds.data(), speeds.size() * sizeof(double));
  return kernel_of([=, x = view.in<T>(0), at = view.in<int32_t>(1), y = view.out<T>(0),
                    memory = scratch(view, angle_bytes(view)),
                    factor = view.number("attention_factor", 1)](cudaStream_t stream) {
    const double* const half_turns = static_cast<const double*>(table.get());
    if (r.rows < kTableRows) {
      launch(turn_at<T>, blocks_for(r.rows * r.width, kThreads), kThreads, 0, stream, x, at, y, half_turns, r, factor);
      return;
    }
    launch(make_angles, blocks_for(r.rows * r.half, kThreads), kThreads, 0, stream, at, half_turns,
           static_cast<float*>(memory.data), r.rows, r.half, factor);
    run_turn(stream, r, x, y, memory.data, r.rows);
  });
}

std::unique_ptr<Kernel> make_rotary(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return rotary<T>(view); });
}
std::unique_ptr<Kernel> make_rotary_at(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() { return rotary_at<T>(view); });
}

const KernelFamily kFamily = {{"rotary", make_rotary}, {"rotary_at", make_rotary_at, angle_bytes}};

}  // namespace
}  // namespace prun::cuda
