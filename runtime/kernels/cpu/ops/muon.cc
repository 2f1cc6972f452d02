// muon_momentum, orthogonalize and muon: the formulas of torch.optim.Muon, in f32 (Jordan et al., Muon, 2024).
//
// Surprising fact: with M = aI + bG + cG², G = XX', an iteration is the single GEMM MX, because aX is part of it. For a
// tall matrix G is X'X and the GEMM is XM, so that nothing is transposed.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/ops/update_operands.h"
#include "prun/sdk/matrix_updates.h"

namespace prun::cpu {
namespace {

PRUN_CLONES void direct(const float* grad, float* momentum, float* direction, int64_t n, const Clip& clip, float share,
                        float kept, bool nesterov) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float g = clip.of(grad[i]), m = kept * momentum[i] + share * g;
    momentum[i] = m;
    direction[i] = nesterov ? share * g + kept * m : m;
  }
}

std::unique_ptr<Kernel> make_momentum(const OpView& view) {
  const int64_t n = view.write(0).count();
  for (const size_t read : {0, 2}) view.expect_count(view.read(read), n);
  float* momentum = view.out<float>(1);
  PRUN_CHECK(view.in<float>(2) == momentum, "muon_momentum updates in place");
  const float* clip = view.reads() > 3 ? view.in<float>(3) : nullptr;
  const double kept = view.attrs().number("momentum", 0.95);
  return kernel_of([=, grad = view.in<float>(0), direction = view.out<float>(0), threads = view.threads(),
                    nesterov = view.attrs().number("nesterov", 1) != 0] {
    const bool skips = clip != nullptr && *clip < 0;
    const Clip factor(clip);
    parallel_ranges(threads, n, [&](int64_t begin, int64_t end) {
      const FlushSubnormals flush;
      if (skips)
        std::fill(direction + begin, direction + end, 0.0f);
      else
        direct(grad + begin, momentum + begin, direction + begin, end - begin, factor, static_cast<float>(1 - kept),
               static_cast<float>(kept), nesterov);
    });
  });
}

// One matrix that this rank owns: `parts` blocks of rows x columns, one after the other.
struct Owned {
  const float* from;
  float* to;
  int64_t rows, columns, parts, joined;
  int64_t whole_rows() const { return joined == 1 ? rows * parts : rows; }
  int64_t whole_columns() const { return joined == 2 ? columns * parts : columns; }
  int64_t count() const { return rows * columns * parts; }
  int64_t side() const { return std::min(whole_rows(), whole_columns()); }
  bool wide() const { return whole_rows() <= whole_columns(); }
};

// The matrices of the op that `owner` owns; -1 = all.
std::vector<Owned> matrices_of(const OpView& view, int64_t owner, bool pointers) {
  const Attrs& a = view.attrs();
  const std::vector<int64_t> of = a.integers("of"), starts = a.integers("starts"), rows = a.integers("rows"),
                             columns = a.integers("columns"), joined = a.integers("joined"),
                             owners = a.integers("owners"), offsets = a.integers("offsets");
  std::vector<Owned> all;
  for (size_t i = 0; i < of.size(); ++i) {
    if (owner >= 0 && owners[i] != owner) continue;
    const Tensor& vector = view.read(of[i]);
    const int64_t parts = vector.shape.size() > 1 ? vector.shape[0] : 1;
    Owned one{nullptr, nullptr, rows[i], columns[i], parts, joined[i]};
    // Parts are apart by the length of the whole vector; matrices are loaded part by part.
    if (pointers) one.from = view.in<float>(of[i]) + starts[i], one.to = view.out<float>(0) + offsets[i];
    all.push_back(one);
  }
  return all;
}

GemmShape gemm_shape(int64_t m, int64_t n, int64_t k, int threads) {
  GemmShape shape;
  shape.m = m, shape.n = n, shape.k = k, shape.threads = threads;
  return shape;
}
GemmShape gram_shape(const Owned& one, int threads) {
  GemmShape shape = gemm_shape(one.side(), one.side(), std::max(one.whole_rows(), one.whole_columns()), threads);
  (one.wide() ? shape.transpose_b : shape.transpose_a) = true;
  return shape;
}
GemmShape square_shape(const Owned& one, int threads) {
  return gemm_shape(one.side(), one.side(), one.side(), threads);
}
GemmShape product_shape(const Owned& one, int threads) {
  return gemm_shape(one.whole_rows(), one.whole_columns(), one.side(), threads);
}

// Elements of the scratch of one matrix: X twice, G and G².
int64_t scratch_elements(const Owned& one) {
  return 2 * round_up(one.count(), 16) + 2 * round_up(one.side() * one.side(), 16);
}

struct Sizes {
  int64_t elements = 0, gemm = 0;
};
Sizes sizes_of(const OpView& view) {
  Sizes sizes;
  for (const Owned& one : matrices_of(view, -1, false)) {
    sizes.elements = std::max(sizes.elements, scratch_elements(one));
    for (const GemmShape& shape :
         {gram_shape(one, view.threads()), square_shape(one, view.threads()), product_shape(one, view.threads())})
      sizes.gemm = std::max(sizes.gemm, gemm_scratch_bytes(shape));
  }
  sizes.gemm = round_up(sizes.gemm, kAlignBytes);
  return sizes;
}
int64_t workspace(const OpView& view) {
  const Sizes sizes = sizes_of(view);
  return sizes.gemm + sizes.elements * static_cast<int64_t>(sizeof(float));
}

struct Coefficients {
  double a, b, c, norm_eps;
  int64_t steps;
};

class NewtonSchulz {
 public:
  NewtonSchulz(const Owned& one, int64_t apart, void* gemm_scratch, float* scratch, int threads)
      : one_(one),
        apart_(apart),
        x_{scratch, scratch + round_up(one.count(), 16)},
        gram_(scratch + 2 * round_up(one.count(), 16)),
        square_(gram_ + round_up(one.side() * one.side(), 16)) {
    for (int i = 0; i < 2; ++i) {
      grams_.emplace_back(gram_shape(one, threads), x_[i], x_[i], nullptr, gram_, gemm_scratch);
      products_.emplace_back(product_shape(one, threads), one.wide() ? gram_ : x_[i], one.wide() ? x_[i] : gram_,
                             nullptr, x_[1 - i], gemm_scratch);
    }
    squares_.emplace_back(square_shape(one, threads), gram_, gram_, nullptr, square_, gemm_scratch);
  }

  void run(const Coefficients& how) const {
    load(how.norm_eps);
    int now = 0;
    for (int64_t step = 0; step < how.steps; ++step) {
      grams_[now].run();
      squares_[0].run();
      polynomial(how);
      products_[now].run();
      now = 1 - now;
    }
    store(x_[now]);
  }

 private:
  // Copies a row of a part; columns of parts are interleaved in the whole matrix.
  template <class F>
  void each_row(const F& f) const {
    for (int64_t part = 0; part < one_.parts; ++part)
      for (int64_t row = 0; row < one_.rows; ++row)
        f(part, row,
          one_.joined == 2 ? row * one_.columns * one_.parts + part * one_.columns
                           : (part * one_.rows + row) * one_.columns);
  }
  void load(double eps) const {
    double sum = 0;
    each_row([&](int64_t part, int64_t row, int64_t) {
      const float* from = one_.from + part * apart_ + row * one_.columns;
      for (int64_t c = 0; c < one_.columns; ++c) sum += static_cast<double>(from[c]) * from[c];
    });
    const double norm = std::sqrt(sum);
    const auto factor = static_cast<float>(1 / (norm < eps ? eps : norm));  // NaNs propagate
    each_row([&](int64_t part, int64_t row, int64_t place) {
      const float* from = one_.from + part * apart_ + row * one_.columns;
      for (int64_t c = 0; c < one_.columns; ++c) x_[0][place + c] = from[c] * factor;
    });
  }
  void polynomial(const Coefficients& how) const {
    const int64_t n = one_.side();
    const auto a = static_cast<float>(how.a), b = static_cast<float>(how.b), c = static_cast<float>(how.c);
    for (int64_t i = 0; i < n * n; ++i) gram_[i] = b * gram_[i] + c * square_[i];
    for (int64_t i = 0; i < n; ++i) gram_[i * n + i] += a;
  }
  void store(const float* x) const {
    each_row([&](int64_t part, int64_t row, int64_t place) {
      std::memcpy(one_.to + (part * one_.rows + row) * one_.columns, x + place,
                  static_cast<size_t>(one_.columns) * sizeof(float));
    });
  }

  Owned one_;
  int64_t apart_;  // elements between the starts of two parts
  float* x_[2];
  float *gram_, *square_;
  std::vector<Gemm> grams_, products_, squares_;
};

std::unique_ptr<Kernel> make_orthogonalize(const OpView& view) {
  const Attrs& a = view.attrs();
  const Coefficients how{a.number("a"), a.number("b"), a.number("c"), a.number("norm_eps"),
                         static_cast<int64_t>(a.number("steps"))};
  const Sizes sizes = sizes_of(view);
  const Scratch scratch = view.scratch(workspace(view));
  const int64_t owner = view.share("axes").index;
  const std::vector<int64_t> of = a.integers("of"), owners = a.integers("owners");
  std::vector<int64_t> apart;
  for (size_t i = 0; i < of.size(); ++i) {
    const Tensor& vector = view.read(of[i]);
    if (owners[i] == owner) apart.push_back(vector.count() / (vector.shape.size() > 1 ? vector.shape[0] : 1));
  }
  std::vector<NewtonSchulz> all;
  const std::vector<Owned> owned = matrices_of(view, owner, true);
  for (size_t i = 0; i < owned.size(); ++i)
    all.emplace_back(owned[i], apart[i], scratch.data, reinterpret_cast<float*>(scratch.data + sizes.gemm),
                     view.threads());
  return kernel_of([all = std::move(all), how, scratch, to = view.out<float>(0), n = view.write(0).count()] {
    std::fill(to, to + n, 0.0f);
    for (const NewtonSchulz& one : all) one.run(how);
  });
}

template <class T>
PRUN_CLONES void apply(const float* update, T* param, int64_t n, float rate, float decay) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const float p = load(param[i]);
    store(param[i], p - (decay * p + rate * update[i]));
  }
}

template <class T>
std::unique_ptr<Kernel> make_muon(const OpView& view) {
  const Attrs& a = view.attrs();
  const int64_t n = view.read(1).count(), offset = view.share("axis").index * a.integer("shard");
  view.expect_count(view.write(0), n);
  T* param = view.out<T>(0);
  PRUN_CHECK(view.in<T>(1) == param, "muon updates in place");
  const float* clip = view.reads() > 2 ? view.in<float>(2) : nullptr;
  const std::vector<double> scales = a.numbers("matrix_scales");
  return kernel_of([=, updates = view.in<float>(0), threads = view.threads(), table = view.table(),
                    pieces = sdk::matrix_pieces(a.integers("matrix_starts"), a.integers("matrix_counts"),
                                                a.integers("matrix_places"), scales, view.share("joined_axis").index,
                                                offset, n, update_ranges_of(view, n, 0))] {
    if (clip != nullptr && *clip < 0) return;
    for (const sdk::MatrixPiece& piece : pieces) {
      const double rate = table->learning_rate * piece.lr_factor;
      parallel_ranges(threads, piece.end - piece.begin, [&](int64_t begin, int64_t end) {
        apply(updates + piece.source + begin, param + piece.begin + begin, end - begin,
              static_cast<float>(rate * piece.scale), static_cast<float>(rate * piece.weight_decay));
      });
    }
  });
}

}  // namespace

const Family muon_kernels = {{"muon_momentum", make_momentum},
                             {"orthogonalize", make_orthogonalize, Accepts::floats, workspace},
                             {"muon", PRUN_FLOAT_MAKER(read(1), make_muon<T>(view))}};

}  // namespace prun::cpu
