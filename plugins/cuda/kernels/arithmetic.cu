// pointwise, softmax and cumsum.
//
// pointwise is an interpreter: a thread computes all instructions for a pack of elements, so that each operand is
// loaded once and the result stored once. The program is a kernel parameter, which all threads of a warp read alike,
// and the cost of reading it is divided by the elements of the pack.
#include <algorithm>

#include "block.cuh"
#include "launch.h"
#include "prun/sdk/key_rules.h"
#include "prun/sdk/pointwise.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256;

// An operand is a slot of the thread's local memory, a number, or the result of the previous instruction, which is in
// registers. Results that only the next instruction reads have no slot.
constexpr uint16_t kPrevious = 0xffff, kNumber = 0x8000;  // kNumber + i: number i
constexpr int kMostNumbers = 64, kMostSlots = sdk::kMostPointwiseInputs + sdk::kMostPointwiseInstructions;
constexpr int kFewSlots = 16;  // of most programs; a thread's stack frame has all of them

template <class W>
struct Code {
  uint8_t function[sdk::kMostPointwiseInstructions];
  uint16_t operands[sdk::kMostPointwiseInstructions][3], result[sdk::kMostPointwiseInstructions];
  W numbers[kMostNumbers];
  int inputs = 0, instructions = 0, slots = 0;
};

// How a thread accesses its pack of a tensor.
enum class Access : uint8_t { pack, one, strided };

template <class T>
struct PointwiseTensors {
  const T* inputs[sdk::kMostPointwiseInputs];
  T* y;
  Access access[sdk::kMostPointwiseInputs + 1];  // the last one is y's
  bool writes_part;
};

__device__ __forceinline__ int64_t place_of(const sdk::PointwiseLayout& layout, int k, int64_t at) {
  if (layout.whole[k]) return at;
  int64_t place = 0;
#pragma unroll 1
  for (int d = layout.dims - 1; d > 0; --d) {
    const int64_t rest = at / layout.sizes[d];
    place += (at - rest * layout.sizes[d]) * layout.strides[k][d];
    at = rest;
  }
  return place + at * layout.strides[k][0];
}
__device__ __forceinline__ int64_t last_stride(const sdk::PointwiseLayout& layout, int k) {
  return layout.whole[k] ? 1 : layout.strides[k][layout.dims > 0 ? layout.dims - 1 : 0];
}

template <int N>
__device__ __forceinline__ void compute(sdk::Pointwise function, const float (&a)[N], const float (&b)[N],
                                        const float (&c)[N], float (&y)[N]) {
  switch (function) {
#define PRUN_ONE(name, operands)                                                                                       \
  case sdk::Pointwise::name:                                                                                           \
    _Pragma("unroll") for (int i = 0; i < N; ++i) y[i] = sdk::pointwise_value(sdk::Pointwise::name, a[i], b[i], c[i]); \
    break;
    PRUN_POINTWISE_FUNCTIONS(PRUN_ONE)
#undef PRUN_ONE
  }
}

// Computes `packs` packs of N elements from element `first` on.
template <class T, int N, int kSlots>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    interpret(PointwiseTensors<T> t, int64_t first, int64_t packs, sdk::PointwiseLayout layout, Code<float> code) {
  Pack<float, N> slots[kSlots];
  for (int64_t pack = first_item(); pack < packs; pack += item_stride()) {
    const int64_t at = first + pack * N;
    for (int k = 0; k < code.inputs; ++k) {
      const T* from = t.inputs[k] + place_of(layout, k, at);
      Pack<T, N> loaded;
      if (N == 1 || t.access[k] == Access::pack) {
        loaded = load_pack<N>(from);
      } else {
        const int64_t step = t.access[k] == Access::one ? 0 : last_stride(layout, k);
#pragma unroll
        for (int i = 0; i < N; ++i) loaded.v[i] = from[i * step];
      }
#pragma unroll
      for (int i = 0; i < N; ++i) slots[k].v[i] = loaded.wide(i);
    }
    float last[N] = {};
    const auto read = [&](uint16_t operand, float(&to)[N]) {
      if (operand == kPrevious) {
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = last[i];
      } else if (operand >= kNumber) {
        const float number = code.numbers[operand - kNumber];
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = number;
      } else {
        const Pack<float, N> slot = slots[operand];
#pragma unroll
        for (int i = 0; i < N; ++i) to[i] = slot.v[i];
      }
    };
#pragma unroll 1
    for (int n = 0; n < code.instructions; ++n) {
      float a[N], b[N], c[N];
      read(code.operands[n][0], a), read(code.operands[n][1], b), read(code.operands[n][2], c);
      compute<N>(static_cast<sdk::Pointwise>(code.function[n]), a, b, c, last);
      if (code.result[n] == kPrevious) continue;
      Pack<float, N> slot;
#pragma unroll
      for (int i = 0; i < N; ++i) slot.v[i] = last[i];
      slots[code.result[n]] = slot;
    }
    T* to = t.y + (t.writes_part ? place_of(layout, code.inputs, at) : at);
    if (N == 1 || t.access[code.inputs] == Access::pack) {
      store_pack(to, narrowed<T, N>(last));
    } else {
      const int64_t step = last_stride(layout, code.inputs);
#pragma unroll
      for (int i = 0; i < N; ++i) to[i * step] = narrow<T>(last[i]);
    }
  }
}

// The number of inputs, without the tensor of which the op writes a part.
size_t inputs_of(const OpView& view) { return view.reads() - (view.integer("continues") != 0 ? 1 : 0); }

// Gives slots to inputs and results; a slot is free after its last read.
template <class W>
void assign_slots(const sdk::PointwiseProgram& program, Code<W>& code) {
  constexpr int kUnread = -1;
  const int count = static_cast<int>(program.size());
  std::vector<int> input_end(static_cast<size_t>(code.inputs), kUnread), result_end(program.size(), kUnread);
  const auto each = [&](int n, const auto& visit) {
    for (int o = 0; o < sdk::function_of(program[n].code).operands; ++o) visit(program[n].operands[o]);
  };
  for (int n = 0; n < count; ++n)
    each(n, [&](const sdk::PointwiseOperand& operand) {
      if (operand.kind == sdk::PointwiseOperand::input) input_end[operand.index] = n;
      if (operand.kind == sdk::PointwiseOperand::result && operand.index + 1 < n) result_end[operand.index] = n;
    });
  std::vector<uint16_t> vacant;
  code.slots = code.inputs;
  for (int n = 0; n < count; ++n) {
    for (int k = 0; k < code.inputs; ++k)
      if (input_end[k] == n) vacant.push_back(static_cast<uint16_t>(k));
    for (int r = 0; r < n; ++r)
      if (result_end[r] == n) vacant.push_back(code.result[r]);
    code.result[n] = kPrevious;
    if (result_end[n] == kUnread) continue;
    if (vacant.empty()) vacant.push_back(static_cast<uint16_t>(code.slots++));
    code.result[n] = vacant.back();
    vacant.pop_back();
  }
}

Code<float> code_of(const OpView& view) {
  Code<float> code{};
  code.inputs = static_cast<int>(inputs_of(view));
  const auto program = sdk::parse_pointwise(view.text("program"), code.inputs);
  view.expect(program.has_value(), "pointwise: the program is none");
  code.instructions = static_cast<int>(program->size());
  assign_slots(*program, code);
  std::vector<double> numbers;
  for (int n = 0; n < code.instructions; ++n) {
    const sdk::PointwiseInstruction& one = (*program)[n];
    code.function[n] = static_cast<uint8_t>(one.code);
    std::fill(std::begin(code.operands[n]), std::end(code.operands[n]), kPrevious);
    for (int o = 0; o < sdk::function_of(one.code).operands; ++o) {
      const sdk::PointwiseOperand& operand = one.operands[o];
      uint16_t& to = code.operands[n][o];
      if (operand.kind == sdk::PointwiseOperand::input) to = static_cast<uint16_t>(operand.index);
      if (operand.kind == sdk::PointwiseOperand::result)
        to = operand.index + 1 == n ? kPrevious : code.result[operand.index];
      if (operand.kind != sdk::PointwiseOperand::number) continue;
      const auto number = std::find(numbers.begin(), numbers.end(), operand.value) - numbers.begin();
      if (number == std::ssize(numbers)) numbers.push_back(operand.value);
      to = static_cast<uint16_t>(kNumber + number);
    }
  }
  view.expect(numbers.size() <= kMostNumbers, "pointwise: the program has more than 64 numbers");
  std::copy(numbers.begin(), numbers.end(), code.numbers);
  return code;
}

// Returns how packs of N elements of tensor `k` at `data` are accessed.
template <int N, class T>
Access access_of(const sdk::PointwiseLayout& layout, int k, const T* data) {
  const int last = std::max(0, layout.dims - 1);
  if (!layout.whole[k] && layout.strides[k][last] == 0) return Access::one;
  bool packed = reinterpret_cast<uintptr_t>(data) % (N * sizeof(T)) == 0;
  if (!layout.whole[k]) {
    packed = packed && layout.strides[k][last] == 1;
    for (int d = 0; d < last; ++d) packed = packed && layout.strides[k][d] % N == 0;
  }
  return packed ? Access::pack : Access::strided;
}

// Returns the number of elements from the first on that whole packs have.
int64_t packed_elements(const sdk::PointwiseLayout& layout, int tensors, int64_t elements, int pack) {
  const bool whole = std::all_of(layout.whole, layout.whole + tensors, [](bool one) { return one; });
  if (whole) return elements - elements % pack;
  return layout.dims > 0 && layout.sizes[layout.dims - 1] % pack == 0 ? elements : 0;
}

template <class T>
void launch_pointwise(cudaStream_t stream, const PointwiseTensors<T>& t, const sdk::PointwiseLayout& layout,
                      const Code<float>& code, int64_t packed, int64_t elements) {
  constexpr int N = kPack<T>;
  const bool few = code.slots <= kFewSlots;
  if (few && packed > 0)
    launch(interpret<T, N, kFewSlots>, blocks_for(packed / N, kThreads), kThreads, 0, stream, t, int64_t{0}, packed / N,
           layout, code);
  const int64_t done = few ? packed : 0;
  if (done < elements)
    launch(few ? interpret<T, 1, kFewSlots> : interpret<T, 1, kMostSlots>, blocks_for(elements - done, kThreads),
           kThreads, 0, stream, t, done, elements - done, layout, code);
}

std::unique_ptr<Kernel> make_pointwise(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    PointwiseTensors<T> t{};
    std::vector<std::span<const int64_t>> shapes;
    const size_t count = inputs_of(view);
    for (size_t k = 0; k < count; ++k) {
      t.inputs[k] = view.in<T>(k);
      shapes.push_back(view.read(k).shape.dims);
    }
    const std::span<const int64_t> masks = view.has("over") ? view.integers("over") : std::span<const int64_t>();
    t.writes_part = view.has("whole");
    const std::span<const int64_t> whole = t.writes_part ? view.integers("whole") : std::span<const int64_t>(),
                                   shape = t.writes_part ? view.integers("shape") : view.write(0).shape.dims;
    sdk::PointwiseLayout layout = sdk::pointwise_layout(shape, shapes, masks, view.text("views"), whole);
    if (!t.writes_part) layout.whole[count] = true;
    t.y = view.out<T>(0) + layout.offsets[count];
    for (size_t k = 0; k < count; ++k) {
      t.inputs[k] += layout.offsets[k];
      t.access[k] = access_of<kPack<T>>(layout, static_cast<int>(k), t.inputs[k]);
    }
    t.access[count] = access_of<kPack<T>>(layout, static_cast<int>(count), t.y);
    const int64_t elements = Shape{shape}.count();
    const int64_t packed = packed_elements(layout, static_cast<int>(count) + 1, elements, kPack<T>);
    return kernel_of([=, code = code_of(view)](cudaStream_t stream) {
      launch_pointwise(stream, t, layout, code, packed, elements);
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
// Registers for the elements that a lane holds: 128, or 255.
template <int kHeld>
inline constexpr int kShortRowBlocks = kHeld > 16 ? 1 : 2;

// Computes short rows: a warp holds a row in registers, kHeld elements in each lane.
template <class T, int kHeld>
__global__ void __launch_bounds__(kThreads, kShortRowBlocks<kHeld>)
    softmax_short_rows(const T* x, T* y, int64_t rows, int64_t queries, sdk::KeyRules rules, bool log) {
  const int n = static_cast<int>(rules.keys);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t r = first_item() / kWarp; r < rows; r += item_stride() / kWarp) {
    const sdk::KeyRange seen = rules.of(r % queries, nullptr);
    const int first = static_cast<int>(seen.first), end = static_cast<int>(seen.end);
    const auto is_seen = [&](int i) { return i >= first && i < end; };
    const T* from = x + r * n;
    T* to = y + r * n;
    float held[kHeld], most = -std::numeric_limits<float>::infinity(), sum = 0;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int i = lane + h * kWarp;
      held[h] = i < n ? widen(from[i]) : 0.0f;
    }
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      if (is_seen(lane + h * kWarp)) most = fmaxf(most, held[h]);
    most = warp_reduce(most, Larger{});
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      held[h] -= most;
      if (is_seen(lane + h * kWarp)) sum += expf(held[h]);
    }
    sum = warp_sum(sum);
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int i = lane + h * kWarp;
      if (i < n) to[i] = narrow<T>(!is_seen(i) ? 0.0f : log ? held[h] - logf(sum) : expf(held[h]) / sum);
    }
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

template <class T, int kHeld>
__global__ void __launch_bounds__(kThreads, kShortRowBlocks<kHeld>)
    softmax_short_rows_grad(const T* y, const T* dy, T* dx, int64_t rows, int64_t width, bool log) {
  const int n = static_cast<int>(width);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int64_t r = first_item() / kWarp; r < rows; r += item_stride() / kWarp) {
    const T *of_y = y + r * n, *of_dy = dy + r * n;
    T* to = dx + r * n;
    float value[kHeld], g[kHeld], sum = 0;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      const int i = lane + h * kWarp;
      value[h] = i < n ? widen(of_y[i]) : 0.0f, g[h] = i < n ? widen(of_dy[i]) : 0.0f;
    }
#pragma unroll
    for (int h = 0; h < kHeld; ++h) sum += log ? g[h] : g[h] * value[h];
    sum = warp_sum(sum);
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      if (const int i = lane + h * kWarp; i < n)
        to[i] = narrow<T>(log ? g[h] - expf(value[h]) * sum : value[h] * (g[h] - sum));
  }
}

// Calls f with the kernel for rows of n elements, and the rows of its blocks.
template <class T, class F>
void with_softmax(int64_t n, const F& f) {
  if (n <= 4 * kWarp) return f(softmax_short_rows<T, 4>, softmax_short_rows_grad<T, 4>, kThreads / kWarp);
  if (n <= 16 * kWarp) return f(softmax_short_rows<T, 16>, softmax_short_rows_grad<T, 16>, kThreads / kWarp);
  if (n <= 32 * kWarp) return f(softmax_short_rows<T, 32>, softmax_short_rows_grad<T, 32>, kThreads / kWarp);
  f(softmax_rows<T>, softmax_rows_grad<T>, 1);
}

std::unique_ptr<Kernel> make_softmax(const OpView& view) {
  return with_float(view.read(0).dtype, [&]<class T>() {
    const Shape shape = view.read(0).shape;
    view.expect_count(view.write(0), shape.count());
    const sdk::KeyRules rules{shape.last(), view.integer("causal") != 0, view.integer("window")};
    const int64_t queries = shape.rank() > 1 ? shape[shape.rank() - 2] : 1;
    return kernel_of([x = view.in<T>(0), y = view.out<T>(0), rows = shape.rows(), queries, rules,
                      log = view.integer("log") != 0](cudaStream_t stream) {
      with_softmax<T>(rules.keys, [&](auto forward, auto, int rows_of_block) {
        launch(forward, blocks_for(rows, rows_of_block), kThreads, 0, stream, x, y, rows, queries, rules, log);
      });
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
      with_softmax<T>(n, [&](auto, auto backward, int rows_of_block) {
        launch(backward, blocks_for(rows, rows_of_block), kThreads, 0, stream, y, dy, dx, rows, n, log);
      });
    });
  });
}

// Adds up along the middle of [outer, n, inner], a thread for each of the others.
struct Column {
  int64_t begin, step;
  __device__ Column(int64_t column, int64_t n, int64_t inner, bool reverse) {
    const int64_t outer = column / inner;
    begin = outer * n * inner + column - outer * inner + (reverse ? (n - 1) * inner : 0);
    step = reverse ? -inner : inner;
  }
};
template <class T>
__global__ void cumulate(const T* x, T* y, int64_t columns, int64_t n, int64_t inner, bool reverse) {
  for (int64_t i = first_item(); i < columns; i += item_stride()) {
    const Column column(i, n, inner, reverse);
    double sum = 0;
#pragma unroll 4
    for (int64_t step = 0; step < n; ++step) {
      const int64_t at = column.begin + step * column.step;
      sum += static_cast<double>(widen(x[at]));
      y[at] = narrow<T>(static_cast<Wide<T>>(sum));
    }
  }
}
// Adds up few long columns: a block has a column, of which it adds kThreads elements at a time.
template <class T>
__global__ void __launch_bounds__(kThreads)
    cumulate_long(const T* x, T* y, int64_t columns, int64_t n, int64_t inner, bool reverse) {
  __shared__ double sums[kThreads / kWarp];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
  for (int64_t i = blockIdx.x; i < columns; i += gridDim.x) {
    const Column column(i, n, inner, reverse);
    double before = 0;
    for (int64_t first = 0; first < n; first += kThreads) {
      const int64_t at = column.begin + (first + thread) * column.step;
      double sum = first + thread < n ? static_cast<double>(widen(x[at])) : 0.0;
#pragma unroll
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const double other = __shfl_up_sync(kAllLanes, sum, distance);
        if (lane >= distance) sum += other;
      }
      if (lane == kWarp - 1) sums[warp] = sum;
      __syncthreads();
      double all = 0, earlier = 0;
#pragma unroll
      for (int w = 0; w < kThreads / kWarp; ++w) {
        earlier += w < warp ? sums[w] : 0.0;
        all += sums[w];
      }
      if (first + thread < n) y[at] = narrow<T>(static_cast<Wide<T>>(before + earlier + sum));
      before += all;
      __syncthreads();
    }
  }
}
constexpr int64_t kManyColumns = 1 << 15;  // as many threads fill a large GPU

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
      const bool is_long = n >= kThreads && columns < kManyColumns;
      launch(is_long ? cumulate_long<T> : cumulate<T>, blocks_for(columns, is_long ? 1 : kThreads), kThreads, 0, stream,
             x, y, columns, n, inner, reverse);
    });
  });
}

const KernelFamily kFamily = {{"pointwise", make_pointwise},
                              {"softmax", make_softmax},
                              {"softmax_grad", make_softmax_grad},
                              {"cumsum", make_cumsum}};

}  // namespace
}  // namespace prun::cuda
