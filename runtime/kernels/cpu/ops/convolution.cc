// conv, conv_transpose and conv_dw: im2col and GEMM (Chellapilla et al. 2006), or plain loops if a group has few
// channels (depthwise convolutions).
//
//   columns [in·taps, chunk·results]: each row has the elements that one tap reads
//   conv             result  = w · columns             then a copy to y with the bias
//   conv_transpose   columns = wᵀ · image              then added up in the elements of the result
//   conv_dw          dw     += image · columnsᵀ
//
// Surprising fact: a chunk has several samples if images are small, because a GEMM with few columns spends its time
// packing the weight. It depends on sizes only, as do all orders of additions.
#include <functional>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/ops/windows.h"

namespace prun::cpu {
namespace {

constexpr int64_t kColumns = 1024;  // of a GEMM at least, if there are as many

// The sizes of a convolution and the parts of its scratch. `x` is the image with `in` channels a group, `y` the one
// with `out`.
struct Layout {
  Windows s;
  int64_t chunk = 1;  // samples of a GEMM
  bool direct = false;
  bool plain = false;  // columns are the image itself
  Dtype dtype = Dtype::f32;
  int threads = 1;

  int64_t depth() const { return s.in * s.taps(); }
  int64_t width() const { return chunk * s.results(); }
  int64_t chunks() const { return s.samples / chunk; }
  int64_t x_offset(int64_t sample, int64_t group) const { return (sample * s.groups + group) * s.in * s.inputs(); }
  int64_t y_offset(int64_t sample, int64_t group) const { return (sample * s.groups + group) * s.out * s.results(); }
  int64_t w_offset(int64_t group) const { return group * s.out * depth(); }
};

Layout layout_of(const OpView& view, const Tensor& x, const Tensor& y, const Tensor& w) {
  Layout at;
  at.s = windows_of(view, x.shape, y.shape, {w.shape.begin() + 2, w.shape.end()});
  at.s.groups = view.attrs().integer("groups", 1);
  at.s.in = x.shape[1] / at.s.groups;
  at.s.out = y.shape[1] / at.s.groups;
  PRUN_CHECK(w.shape[0] == y.shape[1] && w.shape[1] == at.s.in, shape_text(w.shape));
  for (int64_t n = 2; n <= at.s.samples && n * at.s.results() <= kColumns; ++n)
    if (at.s.samples % n == 0) at.chunk = n;
  at.direct = at.s.groups > 1 && at.s.in * at.s.out < 64;
  const WindowDim &height = at.s.dims[0], &width = at.s.dims[1];
  at.plain = at.chunk == 1 && at.s.taps() == 1 && height.stride * width.stride == 1 && height.padding == 0 &&
             width.padding == 0;
  at.dtype = x.dtype;
  at.threads = view.threads();
  return at;
}

Layout conv_layout(const OpView& view) { return layout_of(view, view.read(0), view.write(0), view.read(1)); }
Layout transpose_layout(const OpView& view) { return layout_of(view, view.write(0), view.read(0), view.read(1)); }
Layout dw_layout(const OpView& view) { return layout_of(view, view.read(0), view.read(1), view.write(0)); }

// Hands out parts of the scratch, or counts their bytes.
class Parts {
 public:
  explicit Parts(std::byte* data = nullptr) : data_(data) {}
  template <class T>
  T* take(int64_t count) {
    std::byte* part = data_ == nullptr ? nullptr : data_ + bytes_;
    bytes_ += round_up(count * int64_t{sizeof(T)}, kAlignBytes);
    return reinterpret_cast<T*>(part);
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  int64_t bytes_ = 0;
};

template <class T>
PRUN_CLONES void add_scaled(float* to, int64_t to_step, const T* from, int64_t from_step, float by, int64_t n) {
  if (to_step == 1 && from_step == 1) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] += by * load(from[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) to[i * to_step] += by * load(from[i * from_step]);
}
PRUN_CLONES void add_row(float* to, int64_t step, const float* from, int64_t n) {
  if (step == 1) {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) to[i] += from[i];
    return;
  }
  for (int64_t i = 0; i < n; ++i) to[i * step] += from[i];
}
template <class T>
PRUN_CLONES void add_number(const float* from, float number, T* to, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) store(to[i], from[i] + number);
}

// Writes the columns of a group, for the chunk of samples from x on.
template <class T>
void fill_columns(const Layout& at, const T* x, T* columns) {
  const Windows& s = at.s;
  const int64_t width = s.dims[1].y, stride = s.dims[1].stride;
  parallel_for(at.threads, at.depth() * at.chunk, [&](int64_t job, int) {
    const int64_t row_of = job / at.chunk, sample = job % at.chunk, tap = row_of % s.taps();
    const int64_t a = tap / s.dims[1].kernel, b = tap % s.dims[1].kernel;
    const T* image = x + sample * s.groups * s.in * s.inputs() + row_of / s.taps() * s.inputs();
    T* to = columns + job * s.results();
    each_row(s, a, b, [&](int64_t i, int64_t row, int64_t first, int64_t end) {
      T* line = to + i * width;
      std::fill(line, line + first, T{});
      std::fill(line + end, line + width, T{});
      if (first == end) return;
      const T* from = image + row * s.dims[1].x + s.dims[1].at(first, b);
      if (stride == 1)
        std::copy(from, from + (end - first), line + first);
      else
        for (int64_t j = first; j < end; ++j, from += stride) line[j] = *from;
    });
  });
}

// Calls f(plane, thread's f32 plane) for each of `count` planes of `size` elements; the f32 plane is the result's own
// memory if it is f32. Afterwards the plane is rounded to T.
template <class T, class F>
void each_plane(int threads, T* to, int64_t count, int64_t size, float* scratch, const F& f) {
  parallel_for(threads, count, [&](int64_t i, int thread) {
    if constexpr (std::is_same_v<T, float>) {
      f(i, to + i * size);
    } else {
      float* plane = scratch + thread * size;
      f(i, plane);
      add_number(plane, 0.0f, to + i * size, size);
    }
  });
}

// Adds the columns of a group in the images of the chunk from x on.
template <class T>
void add_columns(const Layout& at, const float* columns, T* x, float* scratch) {
  const Windows& s = at.s;
  for (int64_t sample = 0; sample < at.chunk; ++sample)
    each_plane(at.threads, x + sample * s.groups * s.in * s.inputs(), s.in, s.inputs(), scratch,
               [&](int64_t channel, float* plane) {
                 std::fill(plane, plane + s.inputs(), 0.0f);
                 for (int64_t tap = 0; tap < s.taps(); ++tap) {
                   const int64_t a = tap / s.dims[1].kernel, b = tap % s.dims[1].kernel;
                   const float* from = columns + ((channel * s.taps() + tap) * at.chunk + sample) * s.results();
                   each_row(s, a, b, [&](int64_t i, int64_t row, int64_t first, int64_t end) {
                     add_row(plane + row * s.dims[1].x + s.dims[1].at(first, b), s.dims[1].stride,
                             from + i * s.dims[1].y + first, end - first);
                   });
                 }
               });
}

// Copies a group's channels of the chunk from y on, [chunk, out, results] with all groups between, to [out, chunk,
// results].
template <class T>
void gather_chunk(const Layout& at, const T* y, T* to) {
  const int64_t size = at.s.results();
  parallel_for(at.threads, at.s.out * at.chunk, [&](int64_t job, int) {
    const T* from = y + (job % at.chunk * at.s.groups * at.s.out + job / at.chunk) * size;
    std::copy(from, from + size, to + job * size);
  });
}
// Copies back with the bias.
template <class T>
void scatter_chunk(const Layout& at, const float* from, const T* bias, T* y) {
  const int64_t size = at.s.results();
  parallel_for(at.threads, at.s.out * at.chunk, [&](int64_t job, int) {
    const int64_t channel = job / at.chunk;
    add_number(from + job * size, bias == nullptr ? 0.0f : load(bias[channel]),
               y + (job % at.chunk * at.s.groups * at.s.out + channel) * size, size);
  });
}

GemmShape gemm_shape(const Layout& at, int64_t m, int64_t n, int64_t k, Dtype output) {
  GemmShape shape;
  shape.m = m, shape.n = n, shape.k = k;
  shape.input = at.dtype, shape.output = output;
  shape.threads = at.threads;
  return shape;
}

// A GEMM for each chunk and group, at operands that f(chunk's first sample, group) returns.
struct Operands {
  const void *a, *b;
  void* c;
};
template <class F>
std::vector<Gemm> gemms_of(const Layout& at, const GemmShape& shape, void* scratch, const F& f) {
  std::vector<Gemm> gemms;
  gemms.reserve(at.chunks() * at.s.groups);
  for (int64_t chunk = 0; chunk < at.chunks(); ++chunk)
    for (int64_t group = 0; group < at.s.groups; ++group) {
      const Operands at_chunk = f(chunk * at.chunk, group);
      gemms.emplace_back(shape, at_chunk.a, at_chunk.b, nullptr, at_chunk.c, scratch);
    }
  return gemms;
}
template <class F>
void each_chunk(const Layout& at, const F& f) {
  for (int64_t chunk = 0, i = 0; chunk < at.chunks(); ++chunk)
    for (int64_t group = 0; group < at.s.groups; ++group, ++i) f(i, chunk * at.chunk, group);
}

// --- conv

template <class T>
struct ConvParts {
  explicit ConvParts(const Layout& at, std::byte* data = nullptr)
      : shape(gemm_shape(at, at.s.out, at.width(), at.depth(), Dtype::f32)) {
    Parts parts(data);
    if (at.direct) {
      if (!std::is_same_v<T, float>) result = parts.take<float>(at.threads * at.s.results());
    } else {
      if (!at.plain) columns = parts.take<T>(at.depth() * at.width());
      if (!in_place(at)) result = parts.take<float>(at.s.out * at.width());
      gemm = parts.take<std::byte>(gemm_scratch_bytes(shape));
    }
    bytes = parts.bytes();
  }
  // Returns whether the GEMM writes y itself.
  static bool in_place(const Layout& at) { return at.chunk == 1 && std::is_same_v<T, float>; }
  GemmShape shape;
  T* columns = nullptr;
  float* result = nullptr;
  std::byte* gemm = nullptr;
  int64_t bytes = 0;
};

template <class T>
void conv_direct(const Layout& at, const T* x, const T* w, const T* bias, T* y, float* scratch) {
  const Windows& s = at.s;
  each_plane(at.threads, y, s.samples * s.groups * s.out, s.results(), scratch, [&](int64_t i, float* plane) {
    const int64_t out = i % (s.groups * s.out), sample = i / (s.groups * s.out);
    std::fill(plane, plane + s.results(), bias == nullptr ? 0.0f : load(bias[out]));
    for (int64_t c = 0; c < s.in; ++c)
      for (int64_t tap = 0; tap < s.taps(); ++tap) {
        const int64_t a = tap / s.dims[1].kernel, b = tap % s.dims[1].kernel;
        const float by = load(w[(out * s.in + c) * s.taps() + tap]);
        const T* image = x + at.x_offset(sample, out / s.out) + c * s.inputs();
        each_row(s, a, b, [&](int64_t row_of, int64_t row, int64_t first, int64_t end) {
          if (first < end)
            add_scaled(plane + row_of * s.dims[1].y + first, 1, image + row * s.dims[1].x + s.dims[1].at(first, b),
                       s.dims[1].stride, by, end - first);
        });
      }
  });
}

template <class T>
std::unique_ptr<Kernel> conv(const OpView& view) {
  const Layout at = conv_layout(view);
  const Scratch scratch = view.scratch(ConvParts<T>(at).bytes);
  const ConvParts<T> parts(at, scratch.data);
  const T *x = view.in<T>(0), *w = view.in<T>(1), *bias = view.reads() > 2 ? view.in<T>(2) : nullptr;
  T* y = view.out<T>(0);
  if (at.direct) return kernel_of([=, owned = scratch.owned] { conv_direct(at, x, w, bias, y, parts.result); });
  std::vector<Gemm> gemms = gemms_of(at, parts.shape, parts.gemm, [&](int64_t sample, int64_t group) {
    const bool in_place = ConvParts<T>::in_place(at);
    return Operands{w + at.w_offset(group), at.plain ? x + at.x_offset(sample, group) : parts.columns,
                    in_place ? static_cast<void*>(y + at.y_offset(sample, group)) : parts.result};
  });
  return kernel_of([=, gemms = std::move(gemms), owned = scratch.owned] {
    each_chunk(at, [&](int64_t i, int64_t sample, int64_t group) {
      if (!at.plain) fill_columns(at, x + at.x_offset(sample, group), parts.columns);
      gemms[i].run();
      T* to = y + at.y_offset(sample, group);
      const T* its_bias = bias == nullptr ? nullptr : bias + group * at.s.out;
      if (!ConvParts<T>::in_place(at))
        scatter_chunk(at, parts.result, its_bias, to);
      else if (bias != nullptr)
        scatter_chunk(at, reinterpret_cast<const float*>(to), its_bias, to);
    });
  });
}

// --- conv_transpose

template <class T>
struct TransposeParts {
  explicit TransposeParts(const Layout& at, std::byte* data = nullptr)
      : shape(gemm_shape(at, at.depth(), at.width(), at.s.out, at.plain ? at.dtype : Dtype::f32)) {
    shape.transpose_a = true;
    Parts parts(data);
    if (!std::is_same_v<T, float> && !(at.plain && !at.direct)) plane = parts.take<float>(at.threads * at.s.inputs());
    if (!at.direct) {
      if (!at.plain) columns = parts.take<float>(at.depth() * at.width());
      if (at.chunk > 1) image = parts.take<T>(at.s.out * at.width());
      gemm = parts.take<std::byte>(gemm_scratch_bytes(shape));
    }
    bytes = parts.bytes();
  }
  GemmShape shape;
  float *columns = nullptr, *plane = nullptr;
  T* image = nullptr;
  std::byte* gemm = nullptr;
  int64_t bytes = 0;
};

template <class T>
void transpose_direct(const Layout& at, const T* y, const T* w, T* x, float* scratch) {
  const Windows& s = at.s;
  each_plane(at.threads, x, s.samples * s.groups * s.in, s.inputs(), scratch, [&](int64_t i, float* plane) {
    const int64_t sample = i / (s.groups * s.in), group = i / s.in % s.groups, c = i % s.in;
    std::fill(plane, plane + s.inputs(), 0.0f);
    for (int64_t o = 0; o < s.out; ++o)
      for (int64_t tap = 0; tap < s.taps(); ++tap) {
        const int64_t a = tap / s.dims[1].kernel, b = tap % s.dims[1].kernel;
        const float by = load(w[((group * s.out + o) * s.in + c) * s.taps() + tap]);
        const T* from = y + at.y_offset(sample, group) + o * s.results();
        each_row(s, a, b, [&](int64_t row_of, int64_t row, int64_t first, int64_t end) {
          if (first < end)
            add_scaled(plane + row * s.dims[1].x + s.dims[1].at(first, b), s.dims[1].stride,
                       from + row_of * s.dims[1].y + first, 1, by, end - first);
        });
      }
  });
}

template <class T>
std::unique_ptr<Kernel> conv_transpose(const OpView& view) {
  const Layout at = transpose_layout(view);
  const Scratch scratch = view.scratch(TransposeParts<T>(at).bytes);
  const TransposeParts<T> parts(at, scratch.data);
  const T *y = view.in<T>(0), *w = view.in<T>(1);
  T* x = view.out<T>(0);
  if (at.direct) return kernel_of([=, owned = scratch.owned] { transpose_direct(at, y, w, x, parts.plane); });
  std::vector<Gemm> gemms = gemms_of(at, parts.shape, parts.gemm, [&](int64_t sample, int64_t group) {
    return Operands{w + at.w_offset(group), at.chunk == 1 ? y + at.y_offset(sample, group) : parts.image,
                    at.plain ? static_cast<void*>(x + at.x_offset(sample, group)) : parts.columns};
  });
  return kernel_of([=, gemms = std::move(gemms), owned = scratch.owned] {
    each_chunk(at, [&](int64_t i, int64_t sample, int64_t group) {
      if (at.chunk > 1) gather_chunk(at, y + at.y_offset(sample, group), parts.image);
      gemms[i].run();
      if (!at.plain) add_columns(at, parts.columns, x + at.x_offset(sample, group), parts.plane);
    });
  });
}

// --- conv_dw

template <class T>
struct DwParts {
  explicit DwParts(const Layout& at, std::byte* data = nullptr)
      : shape(gemm_shape(at, at.s.out, at.depth(), at.width(), Dtype::f32)) {
    shape.transpose_b = true;
    if (at.direct) return;
    Parts parts(data);
    if (!at.plain) columns = parts.take<T>(at.depth() * at.width());
    if (at.chunk > 1) image = parts.take<T>(at.s.out * at.width());
    if (at.chunks() > 1) fresh = parts.take<float>(at.s.out * at.depth());
    gemm = parts.take<std::byte>(gemm_scratch_bytes(shape));
    bytes = parts.bytes();
  }
  GemmShape shape;
  T *columns = nullptr, *image = nullptr;
  float* fresh = nullptr;
  std::byte* gemm = nullptr;
  int64_t bytes = 0;
};

template <class T>
double dot(const T* a, const T* b, int64_t b_step, int64_t n) {
  if (b_step == 1) return sum_range([](auto x, auto y) PRUN_INLINED { return x * y; }, n, a, b);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(load(a[i])) * static_cast<double>(load(b[i * b_step]));
  return sum;
}

template <class T>
void dw_direct(const Layout& at, const T* x, const T* dy, float* dw) {
  const Windows& s = at.s;
  parallel_for(at.threads, s.groups * s.out * s.in * s.taps(), [&](int64_t i, int) {
    const int64_t tap = i % s.taps(), c = i / s.taps() % s.in, out = i / (s.taps() * s.in);
    const int64_t a = tap / s.dims[1].kernel, b = tap % s.dims[1].kernel;
    double sum = 0;
    for (int64_t sample = 0; sample < s.samples; ++sample) {
      const T* image = x + at.x_offset(sample, out / s.out) + c * s.inputs();
      const T* gradient = dy + (sample * s.groups * s.out + out) * s.results();
      each_row(s, a, b, [&](int64_t row_of, int64_t row, int64_t first, int64_t end) {
        if (first < end)
          sum += dot(gradient + row_of * s.dims[1].y + first, image + row * s.dims[1].x + s.dims[1].at(first, b),
                     s.dims[1].stride, end - first);
      });
    }
    dw[i] = static_cast<float>(sum);
  });
}

template <class T>
void sum_channels(const Layout& at, const T* dy, float* db) {
  const int64_t channels = at.s.groups * at.s.out, size = at.s.results();
  parallel_for(at.threads, channels, [&](int64_t channel, int) {
    double sum = 0;
    for (int64_t sample = 0; sample < at.s.samples; ++sample)
      sum += sum_range([](auto v) PRUN_INLINED { return v; }, size, dy + (sample * channels + channel) * size);
    db[channel] = static_cast<float>(sum);
  });
}

template <class T>
std::unique_ptr<Kernel> conv_dw(const OpView& view) {
  const Layout at = dw_layout(view);
  const Scratch scratch = view.scratch(DwParts<T>(at).bytes);
  const DwParts<T> parts(at, scratch.data);
  const T *x = view.in<T>(0), *dy = view.in<T>(1);
  float *dw = view.out<float>(0), *db = view.writes() > 1 ? view.out<float>(1) : nullptr;
  if (db != nullptr) view.expect_count(view.write(1), at.s.groups * at.s.out);
  if (at.direct)
    return kernel_of([=] {
      dw_direct(at, x, dy, dw);
      if (db != nullptr) sum_channels(at, dy, db);
    });
  std::vector<Gemm> gemms = gemms_of(at, parts.shape, parts.gemm, [&](int64_t sample, int64_t group) {
    return Operands{at.chunk == 1 ? dy + at.y_offset(sample, group) : parts.image,
                    at.plain ? x + at.x_offset(sample, group) : parts.columns,
                    sample == 0 ? dw + at.w_offset(group) : parts.fresh};
  });
  return kernel_of([=, gemms = std::move(gemms), owned = scratch.owned] {
    each_chunk(at, [&](int64_t i, int64_t sample, int64_t group) {
      if (!at.plain) fill_columns(at, x + at.x_offset(sample, group), parts.columns);
      if (at.chunk > 1) gather_chunk(at, dy + at.y_offset(sample, group), parts.image);
      gemms[i].run();
      float* sum = dw + at.w_offset(group);
      if (sample > 0) add_floats(at.threads, sum, parts.fresh, sum, at.s.out * at.depth());
    });
    if (db != nullptr) sum_channels(at, dy, db);
  });
}

template <template <class> class P, Layout (*layout)(const OpView&)>
int64_t workspace(const OpView& view) {
  const Layout at = layout(view);
  return at.dtype == Dtype::f32 ? P<float>(at).bytes : P<bf16>(at).bytes;
}

}  // namespace

const Family convolution_kernels = {
    {"conv", PRUN_FLOAT_MAKER(read(0), conv<T>(view)), Accepts::floats, workspace<ConvParts, conv_layout>},
    {"conv_transpose", PRUN_FLOAT_MAKER(read(0), conv_transpose<T>(view)), Accepts::floats,
     workspace<TransposeParts, transpose_layout>},
    {"conv_dw", PRUN_FLOAT_MAKER(read(0), conv_dw<T>(view)), Accepts::floats, workspace<DwParts, dw_layout>},
};

}  // namespace prun::cpu
