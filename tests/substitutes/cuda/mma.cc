// Tensor cores and asynchronous copies on the CPU, by the layouts that plugins/cuda/mma.h states.
//
// Surprising fact: a copy puts NaNs where it will write, and writes when its thread waits. So what is read before that,
// or by others before a barrier, is not there.
#include "plugins/cuda/mma.h"

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

namespace prun_cuda {
namespace {

using substitute::Here;
using substitute::Lane;

void want_16(const void* at, const char* what) {
  if (reinterpret_cast<uintptr_t>(at) % 16 != 0)
    substitute::die_in_kernel("an address is not a multiple of 16", what, Here::current());
}

struct Product {
  float* d;
  const uint32_t* a;
  uint32_t b[2];
};

// Of the pair that holds column or row k of 16.
float half_of(uint32_t pair, int k) {
  const uint32_t bits = k % 2 == 0 ? pair << 16 : pair & 0xffff0000u;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void multiply(const Lane (&lanes)[32]) {
  const auto of = [&](int lane) -> const Product& { return *static_cast<const Product*>(lanes[lane].given); };
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
      float sum = 0;
      for (int k = 0; k < 16; ++k) {
        const Product &left = of(row % 8 * 4 + k % 8 / 2), &right = of(column * 4 + k % 8 / 2);
        sum += half_of(left.a[row / 8 + 2 * (k / 8)], k) * half_of(right.b[k / 8], k);
      }
      of(lane).d[i] += sum;
    }
}

struct Load {
  uint32_t* r;
  const void* row;
  bool transposed;
};

void load(const Lane (&lanes)[32]) {
  const auto of = [&](int lane) -> const Load& { return *static_cast<const Load*>(lanes[lane].given); };
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      uint16_t pair[2];
      for (int j = 0; j < 2; ++j) {
        int row = lane / 4, column = 2 * (lane % 4) + j;
        if (of(lane).transposed) std::swap(row, column);
        pair[j] = static_cast<const uint16_t*>(of(8 * i + row).row)[column];
      }
      std::memcpy(&of(lane).r[i], pair, sizeof pair);
    }
}

void load_from(uint32_t (&r)[4], const void* row, bool transposed, const char* what) {
  want_16(row, what);
  const Load mine{r, row, transposed};
  substitute::meet_warp(~0u, what, Here::current(), {&mine, nullptr}, load);
}

struct Copy {
  void* shared;
  const void* global;  // null: zeros
};

std::vector<Copy>& copies_under_way() {
  thread_local std::vector<Copy> all[1024];  // of each thread of the block that runs
  return all[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)];
}

}  // namespace

void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const Product mine{d, a, {b0, b1}};
  substitute::meet_warp(~0u, "multiply_add", Here::current(), {&mine, nullptr}, multiply);
}

void load_matrices(uint32_t (&r)[4], const void* row) { load_from(r, row, false, "load_matrices"); }
void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  load_from(r, row, true, "load_matrices_transposed");
}

void copy_16(void* shared, const void* global, bool there) {
  want_16(shared, "copy_16");
  want_16(global, "copy_16");
  std::memset(shared, 0xff, 16);
  copies_under_way().push_back({shared, there ? global : nullptr});
}

void wait_copies() {
  for (const Copy& copy : copies_under_way()) {
    if (copy.global != nullptr)
      std::memcpy(copy.shared, copy.global, 16);
    else
      std::memset(copy.shared, 0, 16);
  }
  copies_under_way().clear();
}

float exp2_approximate(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.0f : y;
}

}  // namespace prun_cuda
