// Convolutions and pools, one loop for each dim.
#include "kernels/reference/rules.h"
#include "prun/sdk/windows.h"

namespace prun::reference {
namespace {

using sdk::Windows;

// The windows of an image x with results y: tensors [samples, channels, ..].
Windows windows_of(const Attrs& attrs, const Shape& x, const Shape& y, const std::vector<double>& kernel) {
  Windows windows;
  windows.samples = x[0];
  sdk::set_dims(windows, x.size() - 2, &x[2], &y[2], kernel, attrs.numbers("stride"), attrs.numbers("padding"),
                attrs.numbers("dilation"));
  return windows;
}
Windows convolution_of(const Attrs& attrs, const Shape& x, const Shape& y, const Shape& w) {
  Windows windows = windows_of(attrs, x, y, {w.begin() + 2, w.end()});
  windows.groups = attrs.integer("groups", 1);
  windows.in = x[1] / windows.groups;
  windows.out = y[1] / windows.groups;
  return windows;
}
Windows pool_of(const Attrs& attrs, const Shape& x, const Shape& y) {
  Windows windows = windows_of(attrs, x, y, attrs.numbers("kernel"));
  windows.groups = x[1];
  return windows;
}

// Calls f(x, w, y), indices of elements, for each multiplication of a convolution. A pool's w is the tap.
template <class F>
void each_product(const Windows& s, F f) {
  const auto [height, width] = s.dims;
  int64_t y = 0;
  for (int64_t n = 0; n < s.samples; ++n)
    for (int64_t o = 0; o < s.groups * s.out; ++o)
      for (int64_t i = 0; i < height.y; ++i)
        for (int64_t j = 0; j < width.y; ++j, ++y)
          for (int64_t c = 0; c < s.in; ++c)
            for (int64_t a = 0; a < height.kernel; ++a)
              for (int64_t b = 0; b < width.kernel; ++b) {
                const int64_t row = height.at(i, a), column = width.at(j, b);
                if (row < 0 || row >= height.x || column < 0 || column >= width.x) continue;
                const int64_t channel = (n * s.groups + o / s.out) * s.in + c;
                f((channel * height.x + row) * width.x + column,
                  ((o * s.in + c) * height.kernel + a) * width.kernel + b, y);
              }
}

void conv(Call& c) {
  const Array &x = c.reads[0], &w = c.reads[1];
  Array& y = c.writes[0];
  const Windows s = convolution_of(c.attrs, x.shape, y.shape, w.shape);
  if (c.reads.size() > 2)
    for (int64_t i = 0; i < y.count(); ++i) y[i] = c.reads[2][i / s.results() % (s.groups * s.out)];
  each_product(s, [&](int64_t i, int64_t k, int64_t j) { y[j] += x[i] * w[k]; });
}

void conv_transpose(Call& c) {
  const Array &dy = c.reads[0], &w = c.reads[1];
  Array& dx = c.writes[0];
  each_product(convolution_of(c.attrs, dx.shape, dy.shape, w.shape),
               [&](int64_t i, int64_t k, int64_t j) { dx[i] += dy[j] * w[k]; });
}

void conv_dw(Call& c) {
  const Array &x = c.reads[0], &dy = c.reads[1];
  Array& dw = c.writes[0];
  const Windows s = convolution_of(c.attrs, x.shape, dy.shape, dw.shape);
  each_product(s, [&](int64_t i, int64_t k, int64_t j) { dw[k] += x[i] * dy[j]; });
  if (c.writes.size() < 2) return;
  for (int64_t j = 0; j < dy.count(); ++j) c.writes[1][j / s.results() % (s.groups * s.out)] += dy[j];
}

// Returns the number of elements that result `y` of a mean divides by.
double divisor(const Windows& s, const Attrs& attrs, int64_t y) {
  if (attrs.integer("count_padding", 1) != 0) return static_cast<double>(s.taps());
  const int64_t at[2] = {y / s.dims[1].y % s.dims[0].y, y % s.dims[1].y};
  int64_t product = 1;
  for (int d = 0; d < 2; ++d) {
    int64_t inside = 0;
    for (int64_t tap = 0; tap < s.dims[d].kernel; ++tap)
      inside += at[d] >= s.dims[d].first(tap) && at[d] < s.dims[d].end(tap);
    product *= inside;
  }
  return static_cast<double>(product);
}

// Returns the element with the maximum of each window, the first of equal ones; a NaN is larger than all numbers.
std::vector<int64_t> largest(const Windows& s, const Array& x, int64_t results) {
  std::vector<int64_t> at(results, -1);
  each_product(s, [&](int64_t i, int64_t, int64_t j) {
    if (at[j] < 0 || x[i] > x[at[j]] || (x[i] != x[i] && x[at[j]] == x[at[j]])) at[j] = i;
  });
  return at;
}

void pool(Call& c) {
  const Array& x = c.reads[0];
  Array& y = c.writes[0];
  const Windows s = pool_of(c.attrs, x.shape, y.shape);
  if (c.attrs.text("op") == "max") {
    const std::vector<int64_t> at = largest(s, x, y.count());
    for (int64_t j = 0; j < y.count(); ++j) y[j] = x[at[j]];
    return;
  }
  each_product(s, [&](int64_t i, int64_t, int64_t j) { y[j] += x[i]; });
  for (int64_t j = 0; j < y.count(); ++j) y[j] /= divisor(s, c.attrs, j);
}

void pool_grad(Call& c) {
  const Array& dy = c.reads[0];
  Array& dx = c.writes[0];
  const Windows s = pool_of(c.attrs, dx.shape, dy.shape);
  if (c.attrs.text("op") == "max") {
    const std::vector<int64_t> at = largest(s, c.reads[1], dy.count());
    for (int64_t j = 0; j < dy.count(); ++j) dx[at[j]] += dy[j];
    return;
  }
  each_product(s, [&](int64_t i, int64_t, int64_t j) { dx[i] += dy[j] / divisor(s, c.attrs, j); });
}

}  // namespace

const Family convolution_rules = {{"conv", conv},
                                  {"conv_transpose", conv_transpose},
                                  {"conv_dw", conv_dw},
                                  {"pooling", pool},
                                  {"pooling_grad", pool_grad}};

}  // namespace prun::reference
