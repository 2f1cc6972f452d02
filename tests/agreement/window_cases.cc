// Convolutions and pools: strides, padding, dilation, groups, one and two dims, kernels as large as the image.
#include "tests/agreement/agreement_cases.h"
#include "tests/agreement/case_family.h"

namespace prun {
namespace {

struct Image {
  const char* name;
  Shape x, w, y;  // [samples, channels, ..], [out, channels / groups, ..], [samples, out, ..]
  Counts stride, padding, dilation;
  int64_t groups = 1;
};

std::vector<Image> images() {
  return {
      {"one element", {1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, {}, {}, {}},
      {"1 x 1", {3, 5, 4, 7}, {6, 5, 1, 1}, {3, 6, 4, 7}, {}, {}, {}},
      {"1 x 1 of aligned images", {3, 5, 4, 8}, {6, 5, 1, 1}, {3, 6, 4, 8}, {}, {}, {}},
      {"1 x 1 of large images", {2, 5, 33, 35}, {7, 5, 1, 1}, {2, 7, 33, 35}, {}, {}, {}},
      {"3 x 3", {4, 3, 8, 9}, {5, 3, 3, 3}, {4, 5, 8, 9}, {}, {1, 1}, {}},
      {"3 x 3 of large images", {2, 3, 34, 41}, {5, 3, 3, 3}, {2, 5, 34, 41}, {}, {1, 1}, {}},
      {"stride", {2, 4, 9, 11}, {6, 4, 3, 3}, {2, 6, 5, 5}, {2, 2}, {1, 0}, {}},
      {"stride of large images", {2, 4, 67, 70}, {6, 4, 3, 3}, {2, 6, 34, 35}, {2, 2}, {1, 1}, {}},
      {"kernel of two sizes, dilated", {5, 2, 9, 12}, {3, 2, 2, 3}, {5, 3, 7, 10}, {1, 2}, {1, 5}, {4, 2}},
      {"as large as the image", {2, 3, 4, 5}, {7, 3, 4, 5}, {2, 7, 1, 1}, {}, {}, {}},
      {"patches", {2, 3, 8, 8}, {9, 3, 4, 4}, {2, 9, 2, 2}, {4, 4}, {}, {}},
      {"groups", {2, 24, 5, 6}, {16, 12, 3, 3}, {2, 16, 5, 6}, {}, {1, 1}, {}, 2},
      {"groups of large images", {1, 16, 34, 37}, {16, 8, 3, 3}, {1, 16, 34, 37}, {}, {1, 1}, {}, 2},
      {"depthwise", {2, 6, 9, 17}, {6, 1, 7, 7}, {2, 6, 9, 17}, {}, {3, 3}, {}, 6},
      {"depthwise, a wide kernel", {2, 3, 5, 23}, {3, 1, 2, 19}, {2, 3, 4, 21}, {}, {0, 8}, {}, 3},
      {"depthwise, several outputs, stride", {2, 3, 9, 8}, {6, 1, 3, 3}, {2, 6, 5, 4}, {2, 2}, {1, 1}, {}, 3},
      {"one dim", {3, 4, 17}, {5, 4, 3}, {3, 5, 8}, {2}, {}, {}},
      {"one dim, groups", {3, 4, 17}, {4, 2, 5}, {3, 4, 17}, {}, {4}, {2}, 2},
      {"padding wider than the kernel", {2, 3, 3, 3}, {4, 3, 2, 2}, {2, 4, 8, 8}, {}, {3, 3}, {}},
  };
}

Attrs attrs_of(const Image& image) {
  Attrs attrs;
  if (!image.stride.empty()) attrs.set("stride", image.stride);
  if (!image.padding.empty()) attrs.set("padding", image.padding);
  if (!image.dilation.empty()) attrs.set("dilation", image.dilation);
  if (image.groups > 1) attrs.set("groups", image.groups);
  return attrs;
}
Attrs with(Attrs attrs, const char* name, const Shape& shape) {
  attrs.set(name, Shape(shape.begin() + 2, shape.end()));
  return attrs;
}

Attrs back_to(Attrs attrs, const Image& image) {
  Counts more;
  for (size_t i = 0; i + 2 < image.x.size(); ++i) {
    const auto of = [&](const Counts& list, int64_t usual) { return list.empty() ? usual : list[i]; };
    const int64_t reach = (image.w[2 + i] - 1) * of(image.dilation, 1) + 1;
    more.push_back((image.x[2 + i] + 2 * of(image.padding, 0) - reach) % of(image.stride, 1));
  }
  attrs.set("output_padding", more);
  return attrs;
}

void add_convolutions(std::vector<Case>& out) {
  for (const Image& image : images()) {
    Family f(out, {{"x dx", {T, image.x}},
                   {"w", {T, image.w}},
                   {"b", {T, {image.y[1]}}},
                   {"y", {T, image.y}},
                   {"dw", {F32, image.w}},
                   {"db", {F32, {image.y[1]}}}});
    const Attrs attrs = attrs_of(image);
    const auto named = [&](const char* op) { return std::string(op) + ", " + image.name; };
    f.add(named("conv"), {"conv x w b > y", attrs}, 4e-6);
    f.add(named("conv without bias"), {"conv x w > y", attrs}, 4e-6);
    f.add(named("conv_transpose"), {"conv_transpose y w > dx", back_to(attrs, image)}, 4e-6);
    Attrs dw = with(attrs, "kernel", image.w);
    f.add(named("conv_dw without bias"), {"conv_dw x y > dw", dw}, 5e-6);
    dw.set("bias", 1);
    f.add(named("conv_dw"), {"conv_dw x y > dw db", dw}, 5e-6);
  }
}

void add_pools(std::vector<Case>& out) {
  struct Pool {
    const char* name;
    Shape x, y;
    Counts kernel, stride, padding, dilation;
  };
  for (const Pool& pool :
       std::vector<Pool>{{"2 x 2", {2, 3, 6, 8}, {2, 3, 3, 4}, {2, 2}, {2, 2}, {}, {}},
                         {"overlapping, padded", {2, 5, 9, 11}, {2, 5, 5, 6}, {3, 3}, {2, 2}, {1, 1}, {}},
                         {"two sizes", {1, 2, 7, 9}, {1, 2, 7, 4}, {1, 4}, {1, 2}, {0, 1}, {}},
                         {"dilated", {2, 2, 9, 9}, {2, 2, 5, 3}, {3, 3}, {1, 2}, {}, {2, 2}},
                         {"large images", {3, 4, 65, 67}, {3, 4, 65, 67}, {3, 3}, {}, {1, 1}, {}},
                         {"whole", {2, 3, 5, 4}, {2, 3, 1, 1}, {5, 4}, {}, {}, {}},
                         {"one dim", {2, 3, 13}, {2, 3, 7}, {3}, {2}, {1}, {}}}) {
    Family f(out, {{"x dx", {T, pool.x}}, {"y", {T, pool.y}}});
    Attrs attrs = make_attrs({{"kernel", pool.kernel}});
    if (!pool.stride.empty()) attrs.set("stride", pool.stride);
    if (!pool.padding.empty()) attrs.set("padding", pool.padding);
    if (!pool.dilation.empty()) attrs.set("dilation", pool.dilation);
    const Attrs back = with(attrs, "sizes", pool.x);
    for (const char* op : {"max", "mean", "mean of elements"}) {
      if (op[1] == 'e' && !pool.dilation.empty()) continue;
      const auto set = [&](Attrs to) {
        to.set("op", std::string(op).substr(0, op[1] == 'a' ? 3 : 4));
        if (std::string(op) == "mean of elements") to.set("count_padding", 0);
        return to;
      };
      const std::string name = std::string(op) + ", " + pool.name;
      f.add("pooling " + name, {"pooling x > y", set(attrs)}, 2e-6);
      f.add("pooling_grad " + name, {op[1] == 'a' ? "pooling_grad y x > dx" : "pooling_grad y > dx", set(back)}, 2e-6);
    }
  }
}

}  // namespace

std::vector<Case> window_cases() {
  std::vector<Case> out;
  add_convolutions(out);
  add_pools(out);
  return out;
}

}  // namespace prun
