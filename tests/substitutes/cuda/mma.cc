// plugins/cuda/attention/mma.h on the CPU: the layouts that it documents, and copies that complete as late as possible,
// in wait_copies.
#include "plugins/cuda/attention/mma.h"

#include <cuda_runtime.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace prun::cuda {
namespace {

using substitute::Here;
using substitute::Lane;

void whole_warp(const Lane (&lanes)[32], const char* what) {
  for (const Lane& lane : lanes)
    if (lane.given == nullptr) substitute::die_in_kernel("lanes of the warp are missing", what, Here::current());
}

float low(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
float high(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }

struct Fragments {
  const uint32_t* a;
  uint32_t b[2];
  float* d;
};

void multiply_warp(const Lane (&lanes)[32]) {
  whole_warp(lanes, "multiply_add");
  float a[16][16], b[16][8], c[16][8] = {};
  for (int lane = 0; lane < 32; ++lane) {
    const auto* f = static_cast<const Fragments*>(lanes[lane].given);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      const int row = g + i % 2 * 8, column = 2 * t + i / 2 * 8;
      a[row][column] = low(f->a[i]), a[row][column + 1] = high(f->a[i]);
    }
    for (int i = 0; i < 2; ++i) b[2 * t + 8 * i][g] = low(f->b[i]), b[2 * t + 8 * i + 1][g] = high(f->b[i]);
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i)
      static_cast<const Fragments*>(lanes[lane].given)->d[i] += c[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2];
}

template <bool transposed>
void load_warp(const Lane (&lanes)[32]) {
  whole_warp(lanes, "load_matrices");
  for (int lane = 0; lane < 32; ++lane) {
    auto* r = static_cast<uint32_t*>(lanes[lane].got);
    const int g = lane / 4, t = lane % 4;
    for (int matrix = 0; matrix < 4; ++matrix) {
      uint16_t pair[2];
      for (int i = 0; i < 2; ++i) {
        const int row = transposed ? 2 * t + i : g, column = transposed ? g : 2 * t + i;
        std::memcpy(&pair[i], static_cast<const char*>(lanes[8 * matrix + row].given) + 2 * column, 2);
      }
      r[matrix] = pair[0] | uint32_t{pair[1]} << 16;
    }
  }
}

void want(bool right, const char* why, const char* what) {
  if (!right) substitute::die_in_kernel(why, what, Here::current());
}
bool aligned(const void* ptr) { return reinterpret_cast<uintptr_t>(ptr) % 16 == 0; }
void want_row(const void* row) {
  want(aligned(row), "a row is not on a boundary of 16 bytes", "load_matrices");
  want(substitute::is_shared(row, 16), "a row is not in shared memory", "load_matrices");
}

}  // namespace

void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const Fragments given{a, {b0, b1}, d};
  substitute::meet_warp(~0u, "multiply_add", Here::current(), {&given, nullptr}, multiply_warp);
}
void load_matrices(uint32_t (&r)[4], const void* row) {
  want_row(row);
  substitute::meet_warp(~0u, "load_matrices", Here::current(), {row, r}, load_warp<false>);
}
void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  want_row(row);
  substitute::meet_warp(~0u, "load_matrices_transposed", Here::current(), {row, r}, load_warp<true>);
}

void copy_16(void* shared, const void* global, bool there) {
  want(aligned(shared) && aligned(global), "an address is not on a boundary of 16 bytes", "copy_16");
  want(substitute::is_shared(shared, 16), "it does not copy to shared memory", "copy_16");
  std::memset(shared, 0xff, 16);  // garbage until the copy completes
  substitute::copy_later(shared, there ? global : nullptr, 16);
}
void wait_copies() { substitute::wait_for_copies(); }

float exp2_approximate(float x) { return x < -126 ? 0 : std::exp2(x); }

}  // namespace prun::cuda
