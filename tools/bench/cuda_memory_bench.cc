// Kernels without tensor cores, and convolutions, at the sizes of models in bf16: the device's ops against a copy of as
// many bytes on the device, which reads and writes half of them each. A ratio of 1 is the speed of memory.
//
// Surprising fact: convolutions have no yardstick here. Their row has the rate of their GEMM instead.
#include <fmt/format.h>

#include <algorithm>

#include "tools/bench/cuda_bench.h"

namespace prun::bench {
namespace {

using Dims = std::vector<int64_t>;

// Attributes whose lists must outlive the op's creation.
prun_attr text_attr(const char* name, const char* text) {
  return {name, PRUN_ATTR_TEXT, 0, 0, text, nullptr, nullptr, 0};
}
prun_attr list_attr(const char* name, const Dims& list) {
  return {name, PRUN_ATTR_INTEGERS, 0, 0, nullptr, list.data(), nullptr, list.size()};
}

class Table {
 public:
  Table(CudaBench& bench, const std::string& only, const std::function<void(const Figure&)>& report)
      : bench_(bench), only_(only), report_(report) {}

  // Measures an op that must move all of its operands once. Lists: shapes of reads and writes.
  void row(const char* group, const std::string& what, const char* kind, const std::vector<Dims>& reads,
           const std::vector<Dims>& writes, const std::vector<prun_attr>& attrs = {}, int result = PRUN_BF16) {
    measure({.group = group, .what = what, .judged = false}, kind, reads, writes, attrs, result);
  }
  // Measures a convolution of so many FLOPs.
  void product(const char* group, const std::string& what, const char* kind, const std::vector<Dims>& reads,
               const Dims& write, double flops, const std::vector<prun_attr>& attrs, int result = PRUN_BF16) {
    measure({.group = group, .what = what, .flops = flops, .judged = false}, kind, reads, {write}, attrs, result);
  }

 private:
  void measure(Figure figure, const char* kind, const std::vector<Dims>& reads, const std::vector<Dims>& writes,
               const std::vector<prun_attr>& attrs, int result) {
    if (fmt::format("{} {}", figure.group, figure.what).find(only_) == std::string::npos) return;
    measure_or_say(
        figure,
        [&] {
          BenchOp op{kind, {}, {}, attrs};
          for (const Dims& dims : reads) op.reads.push_back(operand(dims, PRUN_BF16));
          // Statistics and gradients of parameters, which have at most two dims, are f32 behind the first result.
          for (size_t i = 0; i < writes.size(); ++i)
            op.writes.push_back(operand(writes[i], i > 0 && writes[i].size() < 3 ? PRUN_F32 : result));
          std::vector<std::function<void()>> runs = {bench_.op(op)};
          if (figure.flops == 0) runs.push_back(copy(figure));
          const std::vector<double> times = bench_.times(runs);
          figure.ours = times[0];
          if (times.size() > 1) figure.best = times[1];
          report_(figure);
        },
        report_);
    bytes_ = 0;
    bench_.forget();
  }

  BenchOperand operand(const Dims& dims, int dtype) {
    size_t bytes = dtype == PRUN_F32 ? 4 : 2;
    for (const int64_t dim : dims) bytes *= static_cast<size_t>(dim);
    bytes_ += bytes;
    return bench_.tensor(dims, dtype);
  }
  std::function<void()> copy(Figure& figure) {
    const size_t half = std::max<size_t>(bytes_ / 2, 1);
    void *from = bench_.bytes(half), *to = bench_.bytes(half);
    figure.best_is = fmt::format("a copy of {:.1f} MB", static_cast<double>(half) * 1e-6);
    return [this, from, to, half] {
      check(cudaMemcpyAsync(to, from, half, cudaMemcpyDeviceToDevice, bench_.stream()), "cudaMemcpyAsync");
    };
  }

  CudaBench& bench_;
  const std::string& only_;
  const std::function<void(const Figure&)>& report_;
  size_t bytes_ = 0;
};

void transformer(Table& table, bool small) {
  const int64_t batch = small ? 2 : 8, length = small ? 8 : 1024, width = small ? 64 : 4096, wide = 4 * width;
  const Dims x{batch, length, width}, long_x{batch, length / 4, wide}, rows{batch * length}, few{batch * length / 4};
  const char* group = "transformer";
  table.row(group, "add", "add", {x, x}, {x});
  table.row(group, "silu_mul", "silu_mul", {x, x}, {x});
  table.row(group, "silu_mul_grad", "silu_mul_grad", {x, x, x}, {x, x});
  table.row(group, "bias", "bias", {x, {width}}, {x});
  table.row(group, "bias_grad", "bias_grad", {x}, {{width}}, {}, PRUN_F32);
  table.row(group, "rmsnorm", "rmsnorm", {x, {width}}, {x, rows});
  table.row(group, "rmsnorm of wide rows", "rmsnorm", {long_x, {wide}}, {long_x, few});
  table.row(group, "add_rmsnorm", "add_rmsnorm", {x, x, {width}}, {x, x, rows});
  table.row(group, "dropout", "dropout", {x}, {x}, {{"p", PRUN_ATTR_NUMBER, 0, 0.1, nullptr, nullptr, nullptr, 0}});
  table.row(group, "cast to f32", "cast", {x}, {x}, {}, PRUN_F32);
  const Dims short_rows{batch, small ? 2 : 64, length, small ? 8 : 128};
  table.row(group, "softmax of 128", "softmax", {short_rows}, {short_rows});
  const Dims scores{batch, small ? 2 : 16, length, length};
  table.row(group, "softmax of 1,024", "softmax", {scores}, {scores});
  table.row(group, "softmax_grad of 1,024", "softmax_grad", {scores, scores}, {scores});
}

void arithmetic(Table& table, bool small) {
  const int64_t batch = small ? 2 : 8, length = small ? 8 : 1024, width = small ? 64 : 4096;
  const Dims x{batch, length, width}, all{0, 1, 2}, first{0, 1}, last{2}, turned{0, 2, 1}, heads{0, 2, 1, 3};
  const Dims vector{width}, column{batch, length, 1}, image{batch, width, length}, split{batch, length, width / 16, 16},
      swapped{batch, width / 16, length, 16}, one{1, 1, width};
  const char* group = "arithmetic";
  const auto program = [](const char* text) { return text_attr("program", text); };
  table.row(group, "one instruction", "pointwise", {x}, {x}, {program("mul x0 1.5")});
  table.row(group, "a gate", "pointwise", {x}, {x}, {program("mul x0 1.702; sigmoid r0; mul x0 r1")});
  table.row(group, "a norm's end", "pointwise", {x, column, vector, vector}, {x},
            {program("sub x0 x1; mul r0 x2; add r1 x3")});
  table.row(group, "ten instructions", "pointwise", {x, x}, {x},
            {program("mul x0 x0; mul x1 x1; add r0 r1; sqrt r2; add r3 1; div x0 r4; sub r5 x1; mul r6 r6; abs r7; "
                     "minimum r8 3")});
  table.row(group, "a transposed operand", "pointwise", {x, image}, {x},
            {program("add x0 x1"), text_attr("views", "x1 0 2 1"), list_attr("shape", x)});
  const auto reduce = [&](const char* what, const Dims& dims, const Dims& result) {
    table.row(group, what, "reduce_dims", {x}, {result}, {text_attr("op", "mean"), list_attr("dims", dims)});
  };
  reduce("mean of all", all, {});
  reduce("mean of the first dims", first, vector);
  reduce("mean of the last dim", last, {batch, length});
  table.row(group, "expand_grad", "expand_grad", {x}, {one}, {list_attr("dims", one)});
  table.row(group, "permute of heads", "permute", {split}, {swapped}, {list_attr("order", heads)});
  table.row(group, "permute of the last dims", "permute", {x}, {image}, {list_attr("order", turned)});
  table.row(group, "cumsum of the last dim", "cumsum", {x}, {x}, {integer_attr("dim", 2)});
  table.row(group, "cumsum of the first dim", "cumsum", {{batch * length, width}}, {{batch * length, width}},
            {integer_attr("dim", 0)});
}

// A UNet's layers of 320 and 1,280 channels, the patches of a ViT-B, a ResNet's and a ConvNeXt's layers.
void images(Table& table, bool small) {
  struct Layer {
    const char* name;
    int64_t samples, in, out, size, kernel, stride, padding, groups;
  };
  for (const Layer& l :
       {Layer{"UNet 320", 8, 320, 320, 64, 3, 1, 1, 1}, Layer{"UNet 1,280", 8, 1280, 1280, 16, 3, 1, 1, 1},
        Layer{"ViT patches", 256, 3, 768, 224, 16, 16, 0, 1}, Layer{"ResNet 1 x 1", 64, 256, 64, 56, 1, 1, 0, 1},
        Layer{"ConvNeXt 7 x 7", 64, 96, 96, 56, 7, 1, 3, 96}}) {
    // Small shapes keep whether a layer is depthwise.
    const int64_t samples = small ? 2 : l.samples, size = small ? std::min<int64_t>(l.size, 16) : l.size;
    const int64_t in = small ? std::min<int64_t>(l.in, 8) : l.in, out = small ? std::min<int64_t>(l.out, 8) : l.out;
    const int64_t groups = l.groups > 1 ? in : 1, side = (size + 2 * l.padding - l.kernel) / l.stride + 1;
    const Dims x{samples, in, size, size}, w{out, in / groups, l.kernel, l.kernel}, y{samples, out, side, side};
    const Dims stride{l.stride, l.stride}, padding{l.padding, l.padding}, kernel{l.kernel, l.kernel}, more{0, 0};
    const std::vector<prun_attr> attrs = {list_attr("stride", stride), list_attr("padding", padding),
                                          list_attr("kernel", kernel), list_attr("output_padding", more),
                                          integer_attr("groups", groups)};
    const double flops =
        2.0 * static_cast<double>(samples * out * side * side) * static_cast<double>(in / groups * l.kernel * l.kernel);
    table.product(l.name, "conv", "conv", {x, w}, y, flops, attrs);
    table.product(l.name, "conv_transpose", "conv_transpose", {y, w}, x, flops, attrs);
    table.product(l.name, "conv_dw", "conv_dw", {x, y}, w, flops, attrs, PRUN_F32);
  }
  const int64_t samples = small ? 1 : 64;
  const Dims x{samples, 64, 112, 112}, y{samples, 64, 56, 56}, kernel{3, 3}, stride{2, 2}, padding{1, 1},
      sizes{112, 112};
  const std::vector<prun_attr> attrs = {text_attr("op", "max"), list_attr("kernel", kernel),
                                        list_attr("stride", stride), list_attr("padding", padding),
                                        list_attr("sizes", sizes)};
  table.row("ResNet pool", "pooling", "pooling", {x}, {y}, attrs);
  table.row("ResNet pool", "pooling_grad", "pooling_grad", {y, x}, {x}, attrs);
}

}  // namespace

void memory_figures(CudaBench& bench, const std::string& only, const std::function<void(const Figure&)>& report) {
  Table table(bench, only, report);
  transformer(table, bench.small);
  arithmetic(table, bench.small);
  images(table, bench.small);
}

}  // namespace prun::bench
