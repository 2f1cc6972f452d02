// expert_linear and its two gradients: one GEMM for each expert, sequentially on all cores of the kernel, so that they
// share scratch.
//
// Surprising fact: most slots may be empty: with capacity for every token at each of E experts, only k of E are taken.
// The op reads the numbers of taken slots. If the GEMM accepts any size, it skips the empty slots; otherwise it
// multiplies their zeros. A round of a dropless mixture that has no token costs nothing.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/kernel.h"
#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd.h"

namespace prun::cpu {
namespace {

// The dims of a tensor [experts, rows, columns].
struct Sizes {
  int64_t experts, rows, columns;
  explicit Sizes(const Tensor& t) {
    PRUN_CHECK(t.shape.size() == 3, shape_text(t.shape));
    experts = t.shape[0], rows = t.shape[1], columns = t.shape[2];
  }
};

// Returns the GEMM of one expert, C = op(A)·op(B), with A and B the reads and C the write.
GemmShape shape_of(const OpView& view, bool transpose_a, bool transpose_b) {
  const Sizes a(view.read(0)), b(view.read(1)), c(view.write(0));
  GemmShape s;
  s.m = c.rows;
  s.n = c.columns;
  s.k = transpose_a ? a.rows : a.columns;
  s.transpose_a = transpose_a;
  s.transpose_b = transpose_b;
  s.input = view.read(0).dtype;
  s.output = view.write(0).dtype;
  s.threads = view.threads();
  view.expect_count(view.read(0), c.experts * s.m * s.k);
  view.expect_count(view.read(1), c.experts * s.k * s.n);
  PRUN_CHECK(a.experts == c.experts && b.experts == c.experts, shape_text(view.write(0).shape));
  return s;
}

// Returns the part of expert `e` of a tensor.
template <class Pointer>
Pointer expert(Pointer data, const Tensor& t, int64_t e) {
  return data + e * (t.bytes() / t.shape[0]);
}

// The rows of the first operand with a token: the first filled[e][p] - `before` of the rows of each source p.
struct Occupancy {
  const int32_t* filled;
  int64_t sources, rows;  // rows of a source
  int64_t before;         // tokens of a source in earlier rounds

  int64_t taken(int64_t expert, int64_t source) const {
    return std::clamp<int64_t>(filled[expert * sources + source] - before, 0, rows);
  }
  // Returns whether one of the experts [first, end) has a token.
  bool any(int64_t first, int64_t end) const {
    return std::any_of(filled + first * sources, filled + end * sources, [&](int32_t n) { return n > before; });
  }

  // Calls f(first, count, empty) for each run of rows of an expert.
  template <class F>
  void each_run(int64_t expert, const F& f) const {
    for (int64_t p = 0; p < sources; ++p) {
      const int64_t taken = this->taken(expert, p);
      if (taken > 0) f(p * rows, taken, false);
      if (taken < rows) f(p * rows + taken, rows - taken, true);
    }
  }
};

// Runs the GEMM of an expert on the rows with a token. Other rows yield zero rows or, with `sums` (a reduction over
// rows), contribute nothing.
void run_taken(const Gemm& gemm, const Occupancy& rows, int64_t expert, bool sums, float* c, int64_t columns,
               int64_t count) {
  if (sums) {
    bool add = false;
    rows.each_run(expert, [&](int64_t first, int64_t n, bool empty) {
      if (empty) return;
      gemm.run_part(first, n, add);
      add = true;
    });
    if (!add) std::fill(c, c + count, 0.0f);
  } else {
    rows.each_run(expert, [&](int64_t first, int64_t n, bool empty) {
      if (empty)
        std::fill(c + first * columns, c + (first + n) * columns, 0.0f);
      else
        gemm.run_part(first, n, false);
    });
  }
}

Occupancy occupancy_of(const OpView& view) {
  const Sizes a(view.read(0));
  const int64_t sources = last_dim(view.read(2).shape);
  view.expect_count(view.read(2), a.experts * sources);
  PRUN_CHECK(sources > 0 && a.rows % sources == 0, shape_text(view.read(2).shape));
  return {view.in<int32_t>(2), sources, a.rows / sources, view.attrs().integer("round") * (a.rows / sources)};
}

template <bool transpose_a, bool transpose_b>
int64_t workspace(const OpView& view) {
  return gemm_scratch_bytes(shape_of(view, transpose_a, transpose_b));
}

// Makes a kernel that writes to `c`. `scratch`: at least workspace() bytes.
template <bool transpose_a, bool transpose_b>
std::unique_ptr<Kernel> make_into(const OpView& view, std::byte* c, const Scratch& scratch) {
  const GemmShape shape = shape_of(view, transpose_a, transpose_b);
  std::vector<Gemm> gemms;
  for (int64_t e = 0; e < view.write(0).shape[0]; ++e)
    gemms.emplace_back(shape, expert(bytes_in(view, 0), view.read(0), e), expert(bytes_in(view, 1), view.read(1), e),
                       nullptr, expert(c, view.write(0), e), scratch.data);
  const bool parts = gemms.front().takes_parts(), in_rounds = view.attrs().has("round");
  if (!parts && !in_rounds) {
    return kernel_of([gemms = std::move(gemms), scratch] {
      for (const Gemm& gemm : gemms) gemm.run();
    });
  }
  const int64_t bytes = shape.m * shape.n * dtype_bytes(shape.output);
  return kernel_of([gemms = std::move(gemms), rows = occupancy_of(view), scratch, c, n = shape.n, parts, in_rounds,
                    bytes, count = shape.m * shape.n] {
    const int64_t experts = std::ssize(gemms);
    if (in_rounds && !transpose_a && !rows.any(0, experts)) return;
    for (int64_t e = 0; e < experts; ++e) {
      if (parts)
        run_taken(gemms[e], rows, e, transpose_a, reinterpret_cast<float*>(c) + e * count, n, count);
      else if (rows.any(e, e + 1))
        gemms[e].run();
      else
        std::memset(c + e * bytes, 0, bytes);
    }
  });
}

template <bool transpose_a, bool transpose_b>
std::unique_ptr<Kernel> make(const OpView& view) {
  return make_into<transpose_a, transpose_b>(view, bytes_out(view, 0),
                                             view.scratch(workspace<transpose_a, transpose_b>(view)));
}

// Returns the bytes of scratch for the op dw and for its result, in a round for that of one expert.
int64_t dw_add_workspace(const OpView& view) {
  const Tensor& dw = view.write(0);
  const int64_t results = view.attrs().has("round") ? dw.bytes() / dw.shape.at(0) : dw.bytes();
  return round_up(workspace<true, false>(view), kAlignBytes) + results;
}

// Adds the round's gradients to the sum, for one expert after the other; experts without a token remain as they are.
std::unique_ptr<Kernel> dw_add_round(const OpView& view, std::byte* fresh, const Scratch& scratch) {
  const GemmShape shape = shape_of(view, true, false);
  std::vector<Gemm> gemms;
  for (int64_t e = 0; e < view.write(0).shape[0]; ++e)
    gemms.emplace_back(shape, expert(bytes_in(view, 0), view.read(0), e), expert(bytes_in(view, 1), view.read(1), e),
                       nullptr, fresh, scratch.data);
  return kernel_of([gemms = std::move(gemms), rows = occupancy_of(view), scratch, n = shape.n, sum = view.in<float>(3),
                    to = view.out<float>(0), count = shape.m * shape.n, dw = reinterpret_cast<float*>(fresh),
                    threads = view.threads()] {
    for (int64_t e = 0; e < std::ssize(gemms); ++e) {
      const float* of_others = sum + e * count;
      if (!rows.any(e, e + 1)) {
        if (sum != to) std::copy_n(of_others, count, to + e * count);
        continue;
      }
      if (gemms[e].takes_parts())
        run_taken(gemms[e], rows, e, true, dw, n, count);
      else
        gemms[e].run();
      add_floats(threads, of_others, dw, to + e * count, count);
    }
  });
}

std::unique_ptr<Kernel> dw_add(const OpView& view) {
  const int64_t count = view.write(0).count();
  view.expect_count(view.read(3), count);
  const Scratch scratch = view.scratch(dw_add_workspace(view));
  std::byte* fresh = scratch.data + round_up(workspace<true, false>(view), kAlignBytes);
  if (view.attrs().has("round")) return dw_add_round(view, fresh, scratch);
  return kernel_of([dw = make_into<true, false>(view, fresh, scratch), fresh = reinterpret_cast<const float*>(fresh),
                    sum = view.in<float>(3), to = view.out<float>(0), count, threads = view.threads()] {
    dw->run();
    add_floats(threads, sum, fresh, to, count);
  });
}

}  // namespace

const Family expert_linear_kernels = {
    {"expert_linear", make<false, false>, Accepts::floats, workspace<false, false>},
    {"expert_linear_dx", make<false, true>, Accepts::floats, workspace<false, true>},
    {"expert_linear_dw", make<true, false>, Accepts::floats, workspace<true, false>},
    {"expert_linear_dw_add", dw_add, Accepts::floats, dw_add_workspace},
};

}  // namespace prun::cpu
