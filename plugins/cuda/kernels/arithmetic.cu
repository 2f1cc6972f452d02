// pointwise, softmax and cumsum.
//
// pointwise is an interpreter: a thread computes all instructions for one element after the other, so that each operand
// is loaded once and the result stored once. The program is a kernel parameter, which all threads of a warp read alike.
#include <algorithm>

#include "block.cuh"
#include "launch.h"
#include "prun/sdk/key_rules.h"
#include "prun/sdk/pointwise.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

// An operand is a register: inputs first, then numbers, then results.
template <class W>
struct Code {
  uint8_t function[sdk::kMostPointwiseInstructions];
  uint16_t operands[sdk::kMostPointwiseInstructions][3];
  W numbers[64];
  int inputs = 0, instructions = 0, constants = 0;
};
constexpr int kMostRegisters = sdk::kMostPointwiseInputs + 64 + sdk::kMostPointwiseInstructions;
constexpr int kFewRegisters = 32;  // of most programs; a thread's stack frame has all of them

template <class T>
struct PointwiseInputs {
  const T* data[sdk::kMostPointwiseInputs];
};

template <class T, int kRegisters>
__global__ void __launch_bounds__(kThreads) interpret(PointwiseInputs<T> inputs, T* y, bool writes_part, int64_t count,
                                                      sdk::PointwiseLayout layout, Code<Wide<T>> code) {
  Wide<T> values[kRegisters];
  for (int i = 0; i < code.constants; ++i) values[code.inputs + i] = code.numbers[i];
  const int first = code.inputs + code.constants;
  for (int64_t i = first_item(); i < count; i += item_stride()) {
    for (int k = 0; k < code.inputs; ++k)
      values[k] = widen(inputs.data[k][layout.whole[k] ? i : sdk::pointwise_position(layout, k, i)]);
    for (int n = 0; n < code.instructions; ++n)
      values[first + n] =
          sdk::pointwise_value(static_cast<sdk::Pointwise>(code.function[n]), values[code.operands[n][0]],
                               values[code.operands[n][1]], values[code.operands[n][2]]);
    const int64_t to = writes_part ? sdk::pointwise_position(layout, code.inputs, i) : i;
    y[to] = narrow<T>(values[first + code.instructions - 1]);
  }
}

// The number of inputs, without the tensor of which the op writes a part.
size_t inputs_of(const OpView& view) { return view.reads() - (view.integer("continues") != 0 ? 1 : 0); }

template <class W>
Code<W> code_of(const OpView& view) {
  Code<W> code{};
  code.inputs = static_cast<int>(inputs_of(view));
  const auto program = sdk::parse_pointwise(view.text("program"), code.inputs);
  view.expect(program.has_value(), "pointwise: the program is none");
  std::vector<double> numbers;
  for (const sdk::PointwiseInstruction& one : *program)
    for (const sdk::PointwiseOperand& operand : one.operands)
      if (operand.kind == sdk::PointwiseOperand::number &&
          std::find(numbers.begin(), numbers.end(), operand.value) == numbers.end())
        numbers.push_back(operand.value);
  view.expect(numbers.size() <= std::size(code.numbers), "pointwise: the program has more than 64 numbers");
  std::copy(numbers.begin(), numbers.end(), code.numbers);
  code.constants = static_cast<int>(numbers.size());
  for (const sdk::PointwiseInstruction& one : *program) {
    const int n = code.instructions++;
    code.function[n] = static_cast<uint8_t>(one.code);
    for (int o = 0; o < 3; ++o) {
      const sdk::PointwiseOperand& operand = one.operands[o];
      const auto number = std::find(numbers.begin(), numbers.end(), operand.value) - numbers.begin();
      code.operands[n][o] = static_cast<uint16_t>(operand.kind == sdk::PointwiseOperand::input ? operand.index
                                                  : operand.kind == sdk::PointwiseOperand::result
                                                      ? code.inputs + code.constants + operand.index
                                                      : code.inputs + number);
    }
  }
  return code;
}

std::unique_ptr<Kernel> make_pointwise(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    PointwiseInputs<T> inputs{};
    std::vector<std::span<const int64_t>> shapes;
    const size_t count = inputs_of(view);
    for (size_t k = 0; k < count; ++k) {
      inputs.data[k] = view.in<T>(k);
      shapes.push_back(view.read(k).shape.dims);
    }
    const std::span<const int64_t> masks = view.has("over") ? view.integers("over") : std::span<const int64_t>();
    const bool part = view.has("whole");
    const std::span<const int64_t> whole = part ? view.integers("whole") : std::span<const int64_t>(),
                                   shape = part ? view.integers("shape") : view.write(0).shape.dims;
    const sdk::PointwiseLayout layout = sdk::pointwise_layout(shape, shapes, masks, view.text("views"), whole);
    for (size_t k = 0; k < count; ++k) inputs.data[k] += layout.offsets[k];
    int64_t elements = 1;
    for (const int64_t size : shape) elements *= size;
    return kernel_of([inputs, to = view.out<T>(0) + layout.offsets[count], part, elements,
                      code = code_of<Wide<T>>(view), layout](cudaStream_t stream) {
      const bool few = code.inputs + code.constants + code.instructions <= kFewRegisters;
      launch(few ? interpret<T, kFewRegisters> : interpret<T, kMostRegisters>, blocks_for(elements, kThreads), kThreads,
             0, stream, inputs, to, part, elements, layout, code);
    });
  });
}

template <class T>
__global__ void softmax_rows(const T* x, T* y, int64_t rows, int64_t queries, sdk::KeyRules rules, bool log) {
  const int64_t n = rules.keys;
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    const sdk::KeyRange seen = rules.of(r % queries, nullptr);
    float most = -std::numeric_limits<float>::infinity(), sum = 0;
    for (int64_t i = seen.first + threadIdx.x; i < seen.end; i += blockDim.x) most = fmaxf(most, widen(x[r * n + i]));
    most = block_max(most);
    for (int64_t i = seen.first + threadIdx.x; i < seen.end; i += blockDim.x) sum += expf(widen(x[r * n + i]) - most);
    sum = block_sum(sum);
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
      const float shifted = widen(x[r * n + i]) - most;
      const bool is_seen = i >= seen.first && i < seen.end;
      y[r * n + i] = narrow<T>(!is_seen ? 0.0f : log ? shifted - logf(sum) : expf(shifted) / sum);
    }
    __syncthreads();
  }
}
template <class T>
__global__ void softmax_rows_grad(const T* y, const T* dy, T* dx, int64_t rows, int64_t n, bool log) {
  for (int64_t r = blockIdx.x; r < rows; r += gridDim.x) {
    float sum = 0;
    for (int64_t i = r * n + threadIdx.x; i < (r + 1) * n; i += blockDim.x)
      sum += log ? widen(dy[i]) : widen(dy[i]) * widen(y[i]);
    sum = block_sum(sum);
    for (int64_t i = r * n + threadIdx.x; i < (r + 1) * n; i += blockDim.x) {
      const float value = widen(y[i]), g = widen(dy[i]);
      dx[i] = narrow<T>(log ? g - expf(value) * sum : value * (g - sum));
    }
    __syncthreads();
  }
}

std::unique_ptr<Kernel> make_softmax(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const Shape shape = view.read(0).shape;
    view.expect_count(view.write(0), shape.count());
    const sdk::KeyRules rules{shape.last(), view.integer("causal") != 0, view.integer("window")};
    const int64_t queries = shape.rank() > 1 ? shape[shape.rank() - 2] : 1;
    return kernel_of([x = view.in<T>(0), y = view.out<T>(0), rows = shape.rows(), queries, rules,
                      log = view.integer("log") != 0](cudaStream_t stream) {
      launch(softmax_rows<T>, blocks_for(rows, 1), kThreads, 0, stream, x, y, rows, queries, rules, log);
    });
  });
}
std::unique_ptr<Kernel> make_softmax_grad(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const Shape shape = view.read(0).shape;
    view.expect_count(view.read(1), shape.count());
    view.expect_count(view.write(0), shape.count());
    return kernel_of([y = view.in<T>(0), dy = view.in<T>(1), dx = view.out<T>(0), rows = shape.rows(), n = shape.last(),
                      log = view.integer("log") != 0](cudaStream_t stream) {
      launch(softmax_rows_grad<T>, blocks_for(rows, 1), kThreads, 0, stream, y, dy, dx, rows, n, log);
    });
  });
}

// Adds up along the middle of [outer, n, inner], a thread for each of the others.
template <class T>
__global__ void cumulate(const T* x, T* y, int64_t columns, int64_t n, int64_t inner, bool reverse) {
  for (int64_t i = first_item(); i < columns; i += item_stride()) {
    double sum = 0;
    for (int64_t step = 0; step < n; ++step) {
      const int64_t at = (i / inner * n + (reverse ? n - 1 - step : step)) * inner + i % inner;
      sum += static_cast<double>(widen(x[at]));
      y[at] = narrow<T>(static_cast<Wide<T>>(sum));
    }
  }
}
std::unique_ptr<Kernel> make_cumsum(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const Shape shape = view.read(0).shape;
    const auto dim = static_cast<size_t>(view.integer("dim"));
    const int64_t n = shape[dim];
    int64_t inner = 1;
    for (size_t d = dim + 1; d < shape.rank(); ++d) inner *= shape[d];
    view.expect_count(view.write(0), shape.count());
    return kernel_of([x = view.in<T>(0), y = view.out<T>(0), columns = n == 0 ? 0 : shape.count() / n, n, inner,
                      reverse = view.integer("reverse") != 0](cudaStream_t stream) {
      launch(cumulate<T>, blocks_for(columns, kThreads), kThreads, 0, stream, x, y, columns, n, inner, reverse);
    });
  });
}

const KernelFamily kFamily = {{"pointwise", make_pointwise},
                              {"softmax", make_softmax},
                              {"softmax_grad", make_softmax_grad},
                              {"cumsum", make_cumsum}};

}  // namespace
}  // namespace prun::cuda
