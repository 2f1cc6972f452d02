// copy_kv and join_qkv, for ring attention: copy_kv copies keys and values out of a fused qkv, join_qkv assembles its
// gradient.
#include <cstring>

#include "kernels/cpu/kernel.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace prun::cpu {
namespace {

// kv is the tail of each row of qkv.
template <class T>
std::unique_ptr<Kernel> copy_kv(const OpView& view) {
  const Tensor &qkv = view.read(0), &kv = view.write(0);
  const int64_t rows = row_count(qkv.shape), wide = last_dim(qkv.shape), shared = last_dim(kv.shape);
  PRUN_CHECK(row_count(kv.shape) == rows && shared < wide, shape_text(kv.shape));
  return kernel_of(
      [from = view.in<T>(0) + wide - shared, to = view.out<T>(0), rows, wide, shared, threads = view.threads()] {
        parallel_for(threads, rows,
                     [&](int64_t row, int) { std::memcpy(to + row * shared, from + row * wide, shared * sizeof(T)); });
      });
}

template <class T>
PRUN_CLONES void join_rows(const float* dq, const float* dkv, T* dqkv, int64_t width, int64_t shared, int64_t begin,
                           int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    T* to = dqkv + row * (width + shared);
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) store(to[i], dq[row * width + i]);
#pragma omp simd
    for (int64_t i = 0; i < shared; ++i) store(to[width + i], dkv[row * shared + i]);
  }
}

template <class T>
std::unique_ptr<Kernel> join_qkv(const OpView& view) {
  const Tensor &dq = view.read(0), &dkv = view.read(1);
  const int64_t rows = row_count(dq.shape), width = last_dim(dq.shape), shared = last_dim(dkv.shape);
  view.expect_count(dkv, rows * shared);
  view.expect_count(view.write(0), rows * (width + shared));
  return kernel_of([dq = view.in<float>(0), dkv = view.in<float>(1), dqkv = view.out<T>(0), rows, width, shared,
                    threads = view.threads()] {
    parallel_rows(threads, rows,
                  [&](int64_t begin, int64_t end) { join_rows(dq, dkv, dqkv, width, shared, begin, end); });
  });
}

}  // namespace

const Family qkv_kernels = {{"copy_kv", PRUN_FLOAT_MAKER(read(0), copy_kv<T>(view))},
                            {"join_qkv", PRUN_FLOAT_MAKER(write(0), join_qkv<T>(view))}};

}  // namespace prun::cpu
