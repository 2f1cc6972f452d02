// See driver.h. The loops around the micro-kernel, from the outermost; sizes are the backend's:
//
//      columns of C      a block of B's columns           each thread has its own columns
//        part of K       packs B's panels                 partial sums are kept in C, or in scratch if C is bf16
//          rows of C     packs a block of A               unless the micro-kernel reads A in place
//            panel of B  prefetches the next one
//              tile      micro-kernel: accumulates in registers, then bias, activation, rounding
//
// Surprising fact: panels exceed the first-level cache. The most expensive cache misses are those of C, whose partial
// sums are reloaded for each part of K, rather than those of panels.
#include "kernels/cpu/gemm/driver.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "kernels/cpu/gemm/finish_tile.h"
#include "kernels/cpu/gemm/prefetch_plan.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace prun::cpu {
namespace {

constexpr int64_t kMostColumns = 1024;  // upper bound of a block's columns in backends with sums_columns

struct Operands {
  const void *a, *b, *bias;
  void* c;
};

template <class Out>
class Driver {
 public:
  Driver(const Backend& backend, const GemmShape& shape, const Operands& operands, float* scratch, bool add,
         float* sums)
      : backend_(backend),
        s_(shape),
        x_(operands),
        blocking_(backend.blocking(shape)),
        layout_(backend.scratch(shape)),
        sums_apart_(backend.keeps_sums_apart(shape)),
        k_((shape.k + backend.pair - 1) / backend.pair),
        scratch_(scratch),
        add_(add),
        sums_(sums) {}

  // Computes columns [begin, end) of C; `begin` is a multiple of the backend's columns.
  void columns(int64_t begin, int64_t end) {
    if (backend_.open != nullptr) backend_.open();
    for (int64_t j = begin; j < end; j += blocking_.columns) {
      const int64_t width = std::min(blocking_.columns, end - j);
      widen_bias(j, width);
      for (int64_t p = 0; p < k_; p += blocking_.depth) part_of_k(j, width, p, std::min(blocking_.depth, k_ - p));
      if (unrounded_.accumulators != nullptr) backend_.finish(unrounded_);
    }
    if (backend_.close != nullptr) backend_.close();
  }

 private:
  void part_of_k(int64_t j, int64_t width, int64_t p, int64_t depth) {
    float sums[kMostColumns];  // sums of this part alone, which limits the rounding error of long sums
    if (sums_ != nullptr) std::fill_n(sums, width, 0.0f);
    float* const part_sums = sums_ == nullptr ? nullptr : sums;
    if (!backend_.packs_b_late) pack_b(j, 0, width, p, depth, part_sums);
    for (int64_t i = 0; i < s_.m; i += blocking_.rows)
      block(i, std::min(blocking_.rows, s_.m - i), j, width, p, depth, part_sums);
    for (int64_t i = 0; sums_ != nullptr && i < width; ++i) sums_[j + i] = sums[i] + (p == 0 ? 0.0f : sums_[j + i]);
  }

  void block(int64_t i, int64_t rows, int64_t j, int64_t width, int64_t p, int64_t depth, float* sums) {
    const bool in_place = s_.stride_a == 0 && backend_.reads_a_in_place(s_, rows);
    float* const a = scratch_ + layout_.a;
    if (!in_place) backend_.pack_a(source(x_.a, !s_.transpose_a, s_.a_row(), i, rows, p, depth), a);
    for (int64_t jj = 0; jj < width; jj += backend_.columns) {
      const int64_t next = jj + backend_.columns, wide = std::min(backend_.columns, width - jj);
      const bool packs = backend_.packs_b_late && i == 0;
      if (packs) pack_b(j, jj, wide, p, depth, sums);
      const ColumnPrefetch prefetch =
          backend_.prefetch({backend_, s_, x_.a, x_.b, x_.c, i, j, jj, width, p, depth,
                             b_panel(next < width ? next : 0, depth), packs && next < width});
      for (int64_t ii = 0; ii < rows; ii += backend_.rows) {
        Tile t;
        t.prefetch = prefetch.of(ii / backend_.rows);
        t.depth = depth;
        t.a = a + ii / backend_.rows * backend_.panel_size(backend_.rows, depth);
        if (in_place) {
          t.a = static_cast<const float*>(element(x_.a, (i + ii) * s_.k + p * backend_.pair));
          t.a_row = s_.k / backend_.pair;
        }
        t.b = b_panel(jj, depth);
        tile(t, i + ii, std::min(backend_.rows, rows - ii), j, jj, wide, p);
      }
    }
  }

  // Computes the micro-tile at row i and column j + jj of C. A partial tile, or one of a bf16 C, has its accumulators
  // in scratch.
  void tile(Tile& t, int64_t i, int64_t rows, int64_t j, int64_t jj, int64_t width, int64_t p) {
    const bool last = p + t.depth == k_;
    const bool whole = width == backend_.columns && (rows == backend_.rows || !backend_.whole_tiles);
    const bool direct = whole && std::is_same_v<Out, float>;
    const Activation activation = last ? s_.activation : Activation::none;
    Out* const c = static_cast<Out*>(x_.c) + i * s_.c_row() + j + jj;
    t.add = p > 0 || add_;
    if (direct) {
      t.c = reinterpret_cast<float*>(c);
      t.c_row = s_.c_row();
    } else if (sums_apart_) {
      t.c_row = round_up(std::min(s_.n, blocking_.columns), backend_.columns);
      t.c = scratch_ + layout_.accumulators + i * t.c_row + jj;
    } else {
      t.c_row = backend_.columns;
      t.c = scratch_ + layout_.accumulators + (first_is_unrounded_ ? backend_.rows * backend_.columns : 0);
      if (t.add) load_tile(c, t.c, rows, width);
    }
    if (std::is_same_v<Out, bf16> && backend_.rounds && last && whole && activation == Activation::none) {
      t.rounded = reinterpret_cast<bf16*>(c);
      t.rounded_row = s_.c_row();
    }
    const float* const bias = scratch_ + layout_.bias + jj;
    if (backend_.adds_bias_last)
      t.bias = last && (s_.bias || t.rounded != nullptr) ? bias : nullptr;
    else
      t.bias = bias;
    t.unrounded = &unrounded_;
    backend_.tile(t, rows);
    if (t.rounded != nullptr) {
      first_is_unrounded_ = backend_.overlaps && !first_is_unrounded_;
      return;
    }
    const bool waits_apart = !direct && sums_apart_ && !last;
    if (waits_apart || (direct && activation == Activation::none)) return;
    finish_tile(t.c, t.c_row, c, s_.c_row(), rows, width, activation);
  }
  void load_tile(const Out* c, float* to, int64_t rows, int64_t width) const {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < width; ++j) to[r * backend_.columns + j] = load(c[r * s_.c_row() + j]);
  }

  // Packs columns [j + jj, j + jj + width) of B.
  void pack_b(int64_t j, int64_t jj, int64_t width, int64_t p, int64_t depth, float* sums) const {
    backend_.pack_b(source(x_.b, s_.transpose_b, s_.b_row(), j + jj, width, p, depth), b_panel(jj, depth),
                    sums == nullptr ? nullptr : sums + jj);
  }
  float* b_panel(int64_t jj, int64_t depth) const {
    return scratch_ + layout_.b + jj / backend_.columns * backend_.panel_size(backend_.columns, depth);
  }
  // Returns rows or columns [first, first + count) of an operand, from element p of K on; `row`: its stride.
  PanelSource source(const void* x, bool k_along_rows, int64_t row, int64_t first, int64_t count, int64_t p,
                     int64_t depth) const {
    const int64_t begin = p * backend_.pair;
    return {element(x, k_along_rows ? first * row + begin : begin * row + first),
            s_.input,
            row,
            k_along_rows,
            count,
            std::min(depth * backend_.pair, s_.k - begin)};
  }
  const void* element(const void* x, int64_t i) const {
    return static_cast<const std::byte*>(x) + i * dtype_bytes(s_.input);
  }
  void widen_bias(int64_t j, int64_t width) const {
    float* to = scratch_ + layout_.bias;
    std::memset(to, 0, static_cast<size_t>(round_up(width, backend_.columns)) * sizeof(float));
    for (int64_t i = 0; s_.bias && i < width; ++i)
      to[i] = s_.input == Dtype::f32 ? static_cast<const float*>(x_.bias)[j + i]
                                     : to_float(static_cast<const bf16*>(x_.bias)[j + i]);
  }

  const Backend& backend_;
  const GemmShape& s_;
  const Operands x_;
  const Blocking blocking_;
  const GemmScratch layout_;
  const bool sums_apart_;
  const int64_t k_;  // elements of a panel along K
  float* const scratch_;
  const bool add_;
  float* const sums_;
  Unrounded unrounded_;              // the previous tile, in one of two accumulator tiles
  bool first_is_unrounded_ = false;  // whether it is in the first one
};

template <class Out>
void run(const Backend& backend, const GemmShape& s, const Operands& operands, float* scratch, bool add, float* sums) {
  const int64_t step = backend.columns, panels = (s.n + step - 1) / step;
  const int64_t threads = std::min<int64_t>(s.threads, panels);
  const int64_t share = round_up(backend.scratch(s).total, 16);
  parallel_for(static_cast<int>(threads), threads, [&](int64_t i, int) {
    Driver<Out>(backend, s, operands, scratch + i * share, add, sums)
        .columns(panels * i / threads * step, std::min(s.n, panels * (i + 1) / threads * step));
  });
}

}  // namespace

int64_t driver_scratch_bytes(const Backend& backend, const GemmShape& shape) {
  return shape.threads * round_up(backend.scratch(shape).total, 16) * static_cast<int64_t>(sizeof(float));
}

void run_driver(const Backend& backend, const GemmShape& s, const void* a, const void* b, const void* bias, void* c,
                void* scratch, bool add, float* sums) {
  PRUN_CHECK(sums == nullptr || (backend.sums_columns && !s.transpose_b), "sums of columns of a transposed B");
  PRUN_CHECK(!add || (s.output == Dtype::f32 && !s.bias), "sums are added to an f32 C without a bias");
  const auto driven = s.output == Dtype::f32 ? run<float> : run<bf16>;
  driven(backend, s, {a, b, bias, c}, static_cast<float*>(scratch), add, sums);
}

}  // namespace prun::cpu
