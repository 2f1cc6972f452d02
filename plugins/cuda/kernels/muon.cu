// muon_momentum, orthogonalize and muon: the formulas of torch.optim.Muon, in f32 (Jordan et al., Muon, 2024). GEMMs of
// a bf16 plan (tf32 = 1) round their operands to 10 bits of mantissa, PyTorch's to 7.
//
// Surprising fact: with M = aI + bG + cG², G = XX', an iteration is the single GEMM MX, because aX is part of it. For a
// tall matrix G is X'X and the GEMM is XM, so that nothing is transposed.
#include <algorithm>

#include "block.cuh"
#include "cuda/device/context.h"
#include "cuda/gemm/gemm.h"
#include "launch.h"
#include "prun/sdk/matrix_updates.h"
#include "update_operands.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256, kPartialSums = 128;

__global__ void direct(const float* grad, float* momentum, float* direction, int64_t n, float share, float kept,
                       bool nesterov, const float* clip) {
  const float factor = clip != nullptr ? *clip : 1.0f;
  for (int64_t i = first_item(); i < n; i += item_stride()) {
    if (factor < 0) {
      direction[i] = 0;
      continue;
    }
    const float g = grad[i] * factor, m = kept * momentum[i] + share * g;
    momentum[i] = m;
    direction[i] = nesterov ? share * g + kept * m : m;
  }
}

std::unique_ptr<Kernel> make_momentum(const OpView& view) {
  const int64_t n = view.write(0).count();
  view.expect_count(view.read(0), n), view.expect_count(view.read(2), n), view.expect_count(view.write(1), n);
  view.expect(view.read(2).ptr == view.write(1).ptr, "it updates in place");
  const double kept = view.number("momentum", 0.95);
  return kernel_of([grad = view.in<float>(0), momentum = view.out<float>(1), direction = view.out<float>(0), n, kept,
                    nesterov = view.number("nesterov", 1) != 0,
                    clip = view.reads() > 3 ? view.in<float>(3) : nullptr](cudaStream_t stream) {
    launch(direct, blocks_for(n, kThreads), kThreads, 0, stream, grad, momentum, direction, n,
           static_cast<float>(1 - kept), static_cast<float>(kept), nesterov, clip);
  });
}

// One matrix: `parts` blocks of rows x columns, whose first elements are `apart` elements apart where it is read, and
// which follow each other where it is written.
struct Owned {
  const float* from;
  float* to;
  int64_t rows, columns, parts, apart, joined;
  int64_t whole_rows() const { return joined == 1 ? rows * parts : rows; }
  int64_t whole_columns() const { return joined == 2 ? columns * parts : columns; }
  __host__ __device__ int64_t count() const { return rows * columns * parts; }
  int64_t side() const { return std::min(whole_rows(), whole_columns()); }
  bool wide() const { return whole_rows() <= whole_columns(); }
  // Return where element `i` of the blocks in sequence is read, and its place in the whole matrix.
  __device__ int64_t source(int64_t i) const { return i / (rows * columns) * apart + i % (rows * columns); }
  __device__ int64_t place(int64_t i) const {
    if (joined != 2) return i;
    const int64_t part = i / (rows * columns), row = i / columns % rows;
    return (row * parts + part) * columns + i % columns;
  }
};

__global__ void square_sums(Owned one, double* sums) {
  double sum = 0;
  for (int64_t i = first_item(); i < one.count(); i += item_stride()) {
    const double value = one.from[one.source(i)];
    sum += value * value;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void load_normalized(Owned one, const double* sums, int blocks, float eps, float* x) {
  double square = 0;
  for (int b = 0; b < blocks; ++b) square += sums[b];
  const float norm = static_cast<float>(sqrt(square)), factor = 1.0f / (norm < eps ? eps : norm);
  for (int64_t i = first_item(); i < one.count(); i += item_stride())
    x[one.place(i)] = one.from[one.source(i)] * factor;
}

// gram = a·I + b·gram + c·square
__global__ void polynomial(float* gram, const float* square, int64_t n, float a, float b, float c) {
  for (int64_t i = first_item(); i < n * n; i += item_stride())
    gram[i] = b * gram[i] + c * square[i] + (i % (n + 1) == 0 ? a : 0.0f);
}

__global__ void store_matrix(Owned one, const float* x) {
  for (int64_t i = first_item(); i < one.count(); i += item_stride()) one.to[i] = x[one.place(i)];
}

__global__ void clear_chunk(float* to, int64_t n) {
  for (int64_t i = first_item(); i < n; i += item_stride()) to[i] = 0;
}

// Returns the matrices of an owner; -1 = all, for sizes.
std::vector<Owned> matrices_of(const OpView& view, int64_t owner) {
  const auto of = view.integers("of"), starts = view.integers("starts"), rows = view.integers("rows"),
             columns = view.integers("columns"), joined = view.integers("joined"), owners = view.integers("owners"),
             offsets = view.integers("offsets");
  std::vector<Owned> all;
  for (size_t i = 0; i < of.size(); ++i) {
    if (owner >= 0 && owners[i] != owner) continue;
    const Tensor vector = view.read(of[i]);
    const int64_t parts = vector.shape.rank() > 1 ? vector.shape[0] : 1;
    Owned one{nullptr, nullptr, rows[i], columns[i], parts, vector.count() / parts, joined[i]};
    if (owner >= 0) one.from = view.in<float>(of[i]) + starts[i], one.to = view.out<float>(0) + offsets[i];
    all.push_back(one);
  }
  return all;
}

Gemm gemm_of(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c) {
  Gemm gemm;
  gemm.shape.m = m, gemm.shape.n = n, gemm.shape.k = k;
  gemm.a = a, gemm.b = b, gemm.c = c;
  return gemm;
}
Gemm gram_of(const Owned& one, const float* x, float* gram) {
  Gemm gemm = gemm_of(one.side(), one.side(), std::max(one.whole_rows(), one.whole_columns()), x, x, gram);
  (one.wide() ? gemm.shape.transpose_b : gemm.shape.transpose_a) = true;
  return gemm;
}
Gemm square_of(const Owned& one, const float* gram, float* square) {
  return gemm_of(one.side(), one.side(), one.side(), gram, gram, square);
}
Gemm product_of(const Owned& one, const float* gram, const float* x, float* y) {
  return gemm_of(one.whole_rows(), one.whole_columns(), one.side(), one.wide() ? gram : x, one.wide() ? x : gram, y);
}

// Scratch of one matrix at a time: of the GEMMs, then X twice, G and G², and the partial sums of the norm.
struct Sizes {
  size_t gemm = 0, matrix = 0, square = 0;  // bytes, multiples of kScratchAlign
  size_t all() const { return gemm + 2 * matrix + 2 * square + kPartialSums * sizeof(double); }
};
size_t padded(size_t bytes) { return (bytes + kScratchAlign - 1) / kScratchAlign * kScratchAlign; }
Sizes sizes_of(const OpView& view) {
  Sizes sizes;
  for (const Owned& one : matrices_of(view, -1)) {
    sizes.matrix = std::max(sizes.matrix, padded(one.count() * sizeof(float)));
    sizes.square = std::max(sizes.square, padded(one.side() * one.side() * sizeof(float)));
    for (const Gemm& gemm :
         {gram_of(one, nullptr, nullptr), square_of(one, nullptr, nullptr), product_of(one, nullptr, nullptr, nullptr)})
      sizes.gemm = std::max(sizes.gemm, padded(gemm_workspace(gemm)));
  }
  return sizes;
}

struct Iteration {
  Owned one;
  float* x[2];
  float *gram, *square;
  std::unique_ptr<Kernel> grams[2], squared, products[2];
};

class NewtonSchulz final : public Kernel {
 public:
  explicit NewtonSchulz(const OpView& view)
      : a_(static_cast<float>(view.number("a"))),
        b_(static_cast<float>(view.number("b"))),
        c_(static_cast<float>(view.number("c"))),
        eps_(static_cast<float>(view.number("norm_eps"))),
        steps_(static_cast<int>(view.number("steps"))),
        to_(view.out<float>(0)),
        n_(view.write(0).count()) {
    const Sizes sizes = sizes_of(view);
    scratch_ = scratch(view, sizes.all());
    char* at = static_cast<char*>(scratch_.data) + sizes.gemm;
    float* x[2] = {reinterpret_cast<float*>(at), reinterpret_cast<float*>(at + sizes.matrix)};
    auto* gram = reinterpret_cast<float*>(at + 2 * sizes.matrix);
    auto* square = reinterpret_cast<float*>(at + 2 * sizes.matrix + sizes.square);
    sums_ = reinterpret_cast<double*>(at + 2 * sizes.matrix + 2 * sizes.square);
    const auto make = [&](Gemm gemm) {
      gemm.shape.tf32 = view.integer("tf32") != 0;
      return make_gemm(view, gemm);
    };
    for (const Owned& one : matrices_of(view, view.share("axes").index)) {
      Iteration& it = iterations_.emplace_back();
      it.one = one, it.gram = gram, it.square = square;
      it.squared = make(square_of(one, gram, square));
      for (int i = 0; i < 2; ++i) {
        it.x[i] = x[i];
        it.grams[i] = make(gram_of(one, x[i], gram));
        it.products[i] = make(product_of(one, gram, x[i], x[1 - i]));
      }
    }
  }

  void run(cudaStream_t stream) override {
    launch(clear_chunk, blocks_for(n_, kThreads), kThreads, 0, stream, to_, n_);
    for (const Iteration& it : iterations_) {
      const int64_t count = it.one.count(), square = it.one.side() * it.one.side();
      const unsigned blocks = blocks_for(count, kThreads, kPartialSums);
      launch(square_sums, blocks, kThreads, 0, stream, it.one, sums_);
      launch(load_normalized, blocks_for(count, kThreads), kThreads, 0, stream, it.one, sums_, static_cast<int>(blocks),
             eps_, it.x[0]);
      int now = 0;
      for (int step = 0; step < steps_; ++step, now = 1 - now) {
        it.grams[now]->run(stream);
        it.squared->run(stream);
        launch(polynomial, blocks_for(square, kThreads), kThreads, 0, stream, it.gram, it.square, it.one.side(), a_, b_,
               c_);
        it.products[now]->run(stream);
      }
      launch(store_matrix, blocks_for(count, kThreads), kThreads, 0, stream, it.one, it.x[now]);
    }
  }

 private:
  float a_, b_, c_, eps_;
  int steps_;
  float* to_;
  int64_t n_;
  double* sums_ = nullptr;
  Scratch scratch_;
  std::vector<Iteration> iterations_;
};

std::unique_ptr<Kernel> make_orthogonalize(const OpView& view) { return std::make_unique<NewtonSchulz>(view); }
size_t workspace_of(const OpView& view) { return sizes_of(view).all(); }

template <class T>
__global__ void apply(const float* update, T* param, int64_t n, double scale, double lr_factor, double decay,
                      const float* clip, const prun_step_values* values) {
  if (clip != nullptr && *clip < 0) return;
  const double lr = values->learning_rate * lr_factor;
  const float rate = static_cast<float>(lr * scale), kept = static_cast<float>(lr * decay);
  for (int64_t i = first_item(); i < n; i += item_stride()) {
    const float p = widen(param[i]);
    param[i] = narrow<T>(p - (kept * p + rate * update[i]));
  }
}

template <class T>
std::unique_ptr<Kernel> make_muon_of(const OpView& view) {
  const int64_t n = view.read(1).count(), offset = view.share("axis").index * view.integer("shard");
  view.expect_count(view.write(0), n);
  view.expect(view.read(1).ptr == view.write(0).ptr, "it updates in place");
  const std::vector<double> scales = view.numbers("matrix_scales");
  return kernel_of([updates = view.in<float>(0), param = view.out<T>(0), values = view.values(),
                    clip = view.reads() > 2 ? view.in<float>(2) : nullptr,
                    pieces = sdk::matrix_pieces(view.integers("matrix_starts"), view.integers("matrix_counts"),
                                                view.integers("matrix_places"), scales, view.share("joined_axis").index,
                                                offset, n, update_ranges_of(view, n, 0))](cudaStream_t stream) {
    for (const sdk::MatrixPiece& piece : pieces) {
      const int64_t count = piece.end - piece.begin;
      launch(apply<T>, blocks_for(count, kThreads), kThreads, 0, stream, updates + piece.source, param + piece.begin,
             count, piece.scale, piece.lr_factor, piece.weight_decay, clip, values);
    }
  });
}
std::unique_ptr<Kernel> make_muon(const OpView& view) {
  return with_float(view.read(1).dtype, [&]<class T>() { return make_muon_of<T>(view); });
}

const KernelFamily kFamily = {
    {"muon_momentum", make_momentum}, {"orthogonalize", make_orthogonalize, workspace_of}, {"muon", make_muon}};

}  // namespace
}  // namespace prun::cuda
