// conv, conv_transpose and conv_dw: copies of images to columns and back around one GEMM for each chunk of samples
// (Chellapilla et al. 2006), or one kernel if a group has few channels.
//
// Surprising fact: a chunk's scratch is bounded, because the columns of a whole batch are larger than its activations
// by the size of the kernel.
#include "convolution.cuh"
#include "cuda/gemm/gemm.h"
#include "launch.h"
#include "windows.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = kConvolutionThreads;
constexpr int64_t kMostColumns = int64_t{64} << 20;  // bytes of a chunk with several samples

// The parts of an op: the GEMM's scratch comes first, because make_gemm takes the start of the workspace.
struct Plan {
  Convolution at;
  bool direct = false;  // by one kernel
  // The kernel is 1 x 1, and tensor cores load the rows as they are: a GEMM for each sample is the whole op.
  bool plain = false;
  int dtype = PRUN_F32;
  size_t bytes = 0;

  Plan(const OpView& view, const Tensor& x, const Tensor& y, const Tensor& w) {
    const Shape& shape = w.shape;
    view.expect(shape.rank() == x.shape.rank(), shape_text(shape));
    at.s = windows_of(view, x.shape, y.shape, {shape.dims.begin() + 2, shape.dims.end()});
    at.s.groups = view.integer("groups", 1);
    at.s.in = x.shape[1] / at.s.groups;
    at.s.out = y.shape[1] / at.s.groups;
    view.expect(shape[0] == y.shape[1] && shape[1] == at.s.in, shape_text(shape));
    at.frame = frame_of(at.s);
    dtype = x.dtype;
    direct = at.s.groups > 1 && at.s.in * at.s.out < 64;
    plain = at.s.groups == 1 && at.s.taps() == 1 && at.s.results() * dtype_bytes(dtype) % 16 == 0;
    for (const sdk::WindowDim& dim : at.s.dims) plain = plain && dim.stride == 1 && dim.padding == 0;
    for (int64_t n = 2; n <= at.s.samples; ++n)
      if (at.s.samples % n == 0 && n * at.s.groups * at.depth() * at.s.results() * 4 <= kMostColumns) at.chunk = n;
  }
  // A chunk has one sample, or at most kMostColumns bytes.
  int64_t chunks() const { return at.s.samples / at.chunk; }
  int64_t columns() const { return at.s.groups * at.depth() * at.width(); }
  int64_t image() const { return at.s.groups * at.s.out * at.width(); }
  int64_t inputs() const { return at.chunk * at.s.groups * at.s.in * at.s.inputs(); }  // of a chunk

  // Returns the offset of a part of the scratch.
  size_t take(size_t part) {
    const size_t offset = bytes;
    bytes += (part + kScratchAlign - 1) / kScratchAlign * kScratchAlign;
    return offset;
  }
  Gemm gemm(int64_t m, int64_t n, int64_t k) const {
    Gemm g;
    g.shape.m = m, g.shape.n = n, g.shape.k = k, g.shape.batch = at.s.groups;
    g.shape.input = dtype;
    return g;
  }
  Gemm gemm_of_samples(int64_t m, int64_t k) const {
    Gemm g;
    g.shape.m = m, g.shape.n = at.s.results(), g.shape.k = k, g.shape.batch = at.s.samples;
    g.shape.in_a.entry = 0;  // all samples have the same weights
    g.shape.input = g.shape.output = dtype;
    return g;
  }
};

struct ConvPlan : Plan {
  Gemm product;
  size_t column_part = 0, result_part = 0;
  explicit ConvPlan(const OpView& view) : Plan(view, view.read(0), view.write(0), view.read(1)) {
    product = plain ? gemm_of_samples(at.s.out, at.s.in) : gemm(at.s.out, at.width(), at.depth());
    if (plain && view.reads() > 2) product.added = view.write(0).ptr;
    if (direct) return;
    take(gemm_workspace(product));
    if (plain) return;
    column_part = take(columns() * dtype_bytes(dtype));
    result_part = take(image() * sizeof(float));
  }
};

struct TransposePlan : Plan {
  Gemm product;
  size_t column_part = 0, image_part = 0;
  explicit TransposePlan(const OpView& view) : Plan(view, view.write(0), view.read(0), view.read(1)) {
    product = plain ? gemm_of_samples(at.s.in, at.s.out) : gemm(at.depth(), at.width(), at.s.out);
    product.shape.transpose_a = true;
    if (direct) return;
    take(gemm_workspace(product));
    if (plain) return;
    column_part = take(columns() * sizeof(float));
    image_part = take(image() * dtype_bytes(dtype));
  }
};

struct DwPlan : Plan {
  Gemm product;
  size_t column_part = 0, image_part = 0;
  explicit DwPlan(const OpView& view) : Plan(view, view.read(0), view.read(1), view.write(0)) {
    product = gemm(at.s.out, at.depth(), at.width());
    product.shape.transpose_b = true;
    if (direct) return;
    take(gemm_workspace(product));
    column_part = take(columns() * dtype_bytes(dtype));
    image_part = take(image() * dtype_bytes(dtype));
  }
};

template <class P>
size_t workspace(const OpView& view) {
  return P(view).bytes;
}

unsigned blocks(int64_t count) { return blocks_for(count, kThreads); }

// Calls f<N>() with the most elements of T, at most 16 bytes of them, that a run of `count` elements is a multiple of.
template <class T, class F>
auto with_pack(int64_t count, const F& f) {
  if (count % kPack<T> == 0) return f.template operator()<kPack<T>>();
  constexpr int most = kPack<T>;
  if (most > 4 && count % 4 == 0) return f.template operator()<4>();
  return f.template operator()<1>();
}

template <class T>
void launch_fill(cudaStream_t stream, const T* x, T* columns, const Convolution& at) {
  with_pack<T>(at.width(), [&]<int N>() {
    const unsigned parts = blocks_for(at.width(), kThreads * N, INT32_MAX);
    const dim3 grid(parts * static_cast<unsigned>(at.s.groups * at.s.in), static_cast<unsigned>(at.frame.rows.kernel));
    launch(fill_columns<T, N>, grid, kThreads, 0, stream, x, columns, at, parts);
  });
}
// `y` is a sample's start, and is aligned as a whole tensor is if the results of a channel are.
template <class T>
void launch_gather(cudaStream_t stream, const T* y, T* to, const Convolution& at) {
  with_pack<T>(aligned(y) ? at.frame.results : 1, [&]<int N>() {
    launch(gather_chunk<T, N>, blocks(at.s.groups * at.s.out * at.width() / N), kThreads, 0, stream, y, to, at);
  });
}
template <class T>
void launch_scatter(cudaStream_t stream, const float* from, const T* bias, T* y, const Convolution& at) {
  with_pack<T>(aligned(y) ? at.frame.results : 1, [&]<int N>() {
    launch(scatter_chunk<T, N>, blocks(at.s.groups * at.s.out * at.width() / N), kThreads, 0, stream, from, bias, y,
           at);
  });
}
char* at_part(const Scratch& scratch, size_t part) { return static_cast<char*>(scratch.data) + part; }

// Writes the bias to all results, to which a GEMM then adds.
template <class T>
void launch_bias(cudaStream_t stream, const T* bias, T* y, const Convolution& at) {
  with_pack<T>(aligned(y) ? at.frame.results : 1, [&]<int N>() {
    const int64_t packs = at.s.samples * at.s.out * at.frame.results / N;
    launch(fill_bias<T, N>, blocks(packs), kThreads, 0, stream, bias, y, at.s.out, at.frame.results / N, packs);
  });
}

template <class T>
std::unique_ptr<Kernel> conv(const OpView& view) {
  ConvPlan plan(view);
  const Convolution at = plan.at;
  const sdk::Windows s = at.s;
  const T *x = view.in<T>(0), *w = view.in<T>(1), *bias = view.reads() > 2 ? view.in<T>(2) : nullptr;
  T* y = view.out<T>(0);
  if (plan.direct)
    return kernel_of([=](cudaStream_t stream) {
      launch(conv_direct<T>, blocks(s.samples * s.groups * s.out * s.results()), kThreads, 0, stream, x, w, bias, y, s,
             at.frame);
    });
  if (plan.plain) {
    plan.product.a = w, plan.product.b = x, plan.product.c = y;
    return kernel_of([=, gemm = std::shared_ptr<Kernel>(make_gemm(view, plan.product))](cudaStream_t stream) {
      if (bias != nullptr) launch_bias(stream, bias, y, at);
      gemm->run(stream);
    });
  }
  const Scratch memory = scratch(view, plan.bytes);
  T* columns = reinterpret_cast<T*>(at_part(memory, plan.column_part));
  float* result = reinterpret_cast<float*>(at_part(memory, plan.result_part));
  plan.product.a = w, plan.product.b = columns, plan.product.c = result;
  std::shared_ptr<Kernel> gemm = make_gemm(view, plan.product);
  return kernel_of([=, owned = memory.owned, chunks = plan.chunks(), step = plan.inputs(),
                    result_count = plan.image()](cudaStream_t stream) {
    for (int64_t i = 0; i < chunks; ++i) {
      launch_fill(stream, x + i * step, columns, at);
      gemm->run(stream);
      launch_scatter(stream, result, bias, y + i * result_count, at);
    }
  });
}

template <class T>
std::unique_ptr<Kernel> conv_transpose(const OpView& view) {
  TransposePlan plan(view);
  const Convolution at = plan.at;
  const sdk::Windows s = at.s;
  const T *y = view.in<T>(0), *w = view.in<T>(1);
  T* x = view.out<T>(0);
  if (plan.direct)
    return kernel_of([=](cudaStream_t stream) {
      launch(transpose_direct<T>, blocks(s.samples * s.groups * s.in * s.inputs()), kThreads, 0, stream, y, w, x, s,
             at.frame);
    });
  if (plan.plain) {
    plan.product.a = w, plan.product.b = y, plan.product.c = x;
    return make_gemm(view, plan.product);
  }
  const Scratch memory = scratch(view, plan.bytes);
  float* columns = reinterpret_cast<float*>(at_part(memory, plan.column_part));
  T* image = reinterpret_cast<T*>(at_part(memory, plan.image_part));
  plan.product.a = w, plan.product.b = image, plan.product.c = columns;
  std::shared_ptr<Kernel> gemm = make_gemm(view, plan.product);
  return kernel_of([=, owned = memory.owned, chunks = plan.chunks(), step = plan.inputs(),
                    count = plan.image()](cudaStream_t stream) {
    for (int64_t i = 0; i < chunks; ++i) {
      launch_gather(stream, y + i * count, image, at);
      gemm->run(stream);
      launch(add_columns<T>, blocks(step), kThreads, 0, stream, columns, x + i * step, at);
    }
  });
}

template <class T>
std::unique_ptr<Kernel> conv_dw(const OpView& view) {
  DwPlan plan(view);
  const Convolution at = plan.at;
  const sdk::Windows s = at.s;
  const T *x = view.in<T>(0), *dy = view.in<T>(1);
  float *dw = view.out<float>(0), *db = view.writes() > 1 ? view.out<float>(1) : nullptr;
  const int64_t channels = s.groups * s.out;
  if (db != nullptr) view.expect_count(view.write(1), channels);
  const auto sums = [=](cudaStream_t stream) {
    if (db != nullptr)
      launch(sum_channels<T>, blocks_for(channels, 1), kThreads, 0, stream, dy, db, s.samples, channels, s.results());
  };
  if (plan.direct)
    return kernel_of([=](cudaStream_t stream) {
      const int64_t runs = at.frame.rows.kernel * ((at.frame.columns.kernel + kTapsAtOnce - 1) / kTapsAtOnce);
      launch(dw_direct<T>, blocks_for(channels * s.in * runs, 1), kThreads, 0, stream, x, dy, dw, s, at.frame);
      sums(stream);
    });
  const Scratch memory = scratch(view, plan.bytes);
  T* columns = reinterpret_cast<T*>(at_part(memory, plan.column_part));
  T* image = reinterpret_cast<T*>(at_part(memory, plan.image_part));
  plan.product.a = image, plan.product.b = columns, plan.product.c = dw;
  std::shared_ptr<Kernel> first = make_gemm(view, plan.product);
  plan.product.added = dw;
  std::shared_ptr<Kernel> next = plan.chunks() > 1 ? make_gemm(view, plan.product) : nullptr;
  return kernel_of([=, owned = memory.owned, chunks = plan.chunks(), step = plan.inputs(),
                    count = plan.image()](cudaStream_t stream) {
    for (int64_t i = 0; i < chunks; ++i) {
      launch_fill(stream, x + i * step, columns, at);
      launch_gather(stream, dy + i * count, image, at);
      (i == 0 ? first : next)->run(stream);
    }
    sums(stream);
  });
}

const KernelFamily kFamily = {
    {"conv",
     [](const OpView& view) { return with_float(view.read(0).dtype, [&]<class T>() { return conv<T>(view); }); },
     workspace<ConvPlan>},
    {"conv_transpose",
     [](const OpView& view) {
       return with_float(view.read(0).dtype, [&]<class T>() { return conv_transpose<T>(view); });
     },
     workspace<TransposePlan>},
    {"conv_dw",
     [](const OpView& view) { return with_float(view.read(0).dtype, [&]<class T>() { return conv_dw<T>(view); }); },
     workspace<DwPlan>},
};

}  // namespace
}  // namespace prun::cuda
