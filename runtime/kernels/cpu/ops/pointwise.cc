// pointwise as an interpreter over tiles: each instruction is a vectorized loop over kTile floats, which fit in the L1
// cache, so that a program reads its inputs and writes its output once.
//
// Surprising fact: an instruction reads an f32 input in the output's order from the tensor itself; all other inputs and
// the numbers are first expanded into tiles.
#include "ir/pointwise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cpu/ops/elementwise.h"
#include "kernels/cpu/ops/pointwise_loops.h"

namespace prun::cpu {
namespace {

using Operand = sdk::PointwiseOperand;

constexpr int64_t kTile = kPointwiseTile, kBlock = kPointwiseBlock;

// An instruction over tiles: the numbers of its operands' and its result's tiles. Tiles: inputs, numbers, registers.
struct Step {
  PointwiseLoop loop;
  int operands[3] = {-1, -1, -1};
  int result = -1;
};

struct Plan {
  std::vector<Step> steps;
  std::vector<float> numbers;
  int inputs = 0, tiles = 0;
};

// Assigns tiles. A register's tile is free again after the last instruction that reads it, which may overwrite it.
template <class T>
Plan plan_of(const OpView& view) {
  Plan plan;
  plan.inputs = static_cast<int>(view.reads());
  const sdk::PointwiseProgram program = pointwise_program(view.attrs(), view.reads());
  std::vector<size_t> last(program.size(), program.size());
  const auto number_tile = [&](double value) {
    const auto as_float = static_cast<float>(value);
    for (size_t i = 0; i < plan.numbers.size(); ++i)
      if (std::bit_cast<uint32_t>(plan.numbers[i]) == std::bit_cast<uint32_t>(as_float))
        return plan.inputs + static_cast<int>(i);
    plan.numbers.push_back(as_float);
    return plan.inputs + static_cast<int>(plan.numbers.size()) - 1;
  };
  for (size_t n = 0; n < program.size(); ++n)
    for (int o = 0; o < sdk::function_of(program[n].code).operands; ++o) {
      const Operand& operand = program[n].operands[o];
      if (operand.kind == Operand::result) last[operand.index] = n;
      if (operand.kind == Operand::number) number_tile(operand.value);
    }
  const int first_register = plan.inputs + static_cast<int>(plan.numbers.size());
  std::vector<int> tile_of(program.size(), -1), free;
  int registers = 0;
  for (size_t n = 0; n < program.size(); ++n) {
    constexpr bool kRough = std::is_same_v<T, bf16>;
    Step step{n + 1 == program.size() ? pointwise_loop<T>(program[n].code, kRough)
                                      : pointwise_loop<float>(program[n].code, kRough)};
    for (int o = 0; o < sdk::function_of(program[n].code).operands; ++o) {
      const Operand& operand = program[n].operands[o];
      step.operands[o] = operand.kind == Operand::input    ? operand.index
                         : operand.kind == Operand::number ? number_tile(operand.value)
                                                           : tile_of[operand.index];
    }
    for (size_t m = 0; m < n; ++m)
      if (last[m] == n) free.push_back(tile_of[m]);
    if (free.empty()) free.push_back(first_register + registers++);
    tile_of[n] = step.result = free.back();
    free.pop_back();
    plan.steps.push_back(step);
  }
  plan.tiles = first_register + registers;
  return plan;
}

template <class T>
void widen_run(const T* from, float* to, int64_t n) {
  if constexpr (std::is_same_v<T, float>)
    std::memcpy(to, from, n * sizeof(float));
  else
    map_range([](auto x) PRUN_INLINED { return x; }, n, to, from);
}

// Writes the elements [at, at + n) of the output's order of an input that is not stored in that order to a tile.
template <class T>
void expand(const sdk::PointwiseLayout& layout, int k, const T* x, int64_t at, int64_t n, float* to) {
  const int inner = layout.dims - 1;
  const int64_t stride = layout.strides[k][inner];
  int64_t index[sdk::kMostPointwiseDims];
  for (int d = inner; d >= 0; --d) {
    index[d] = at % layout.sizes[d];
    at /= layout.sizes[d];
    x += index[d] * layout.strides[k][d];
  }
  for (int64_t done = 0; done < n;) {
    const int64_t run = std::min(n - done, layout.sizes[inner] - index[inner]);
    if (stride == 0)
      std::fill(to + done, to + done + run, static_cast<float>(widen(*x)));
    else if (stride == 1)
      widen_run(x, to + done, run);
    else
      for (int64_t i = 0; i < run; ++i) to[done + i] = static_cast<float>(widen(x[i * stride]));
    done += run;
    x -= index[inner] * stride;
    index[inner] = 0;
    for (int d = inner - 1; d >= 0; --d) {
      x += layout.strides[k][d];
      if (++index[d] < layout.sizes[d]) break;
      x -= layout.sizes[d] * layout.strides[k][d];
      index[d] = 0;
    }
  }
}

template <class T>
struct Interpreter {
  Plan plan;
  sdk::PointwiseLayout layout;
  std::vector<const T*> inputs;
  T* output;
  int64_t count;

  // Computes the elements [begin, end). `tiles`: scratch of plan.tiles tiles.
  void run(int64_t begin, int64_t end, float* tiles) const {
    const float* at[sdk::kMostPointwiseInputs + 4 * sdk::kMostPointwiseInstructions];
    for (int i = 0; i < plan.tiles; ++i) at[i] = tiles + i * kTile;
    const int64_t longest = std::min(kTile, end - begin);
    for (size_t i = 0; i < plan.numbers.size(); ++i) {
      float* tile = tiles + (plan.inputs + static_cast<int64_t>(i)) * kTile;
      std::fill(tile, tile + longest, plan.numbers[i]);
    }
    for (int64_t first = begin; first < end; first += kTile) {
      const int64_t n = std::min(kTile, end - first);
      for (int k = 0; k < plan.inputs; ++k) at[k] = input(k, first, n, tiles + k * kTile);
      for (size_t s = 0; s < plan.steps.size(); ++s) {
        const Step& step = plan.steps[s];
        const auto operand = [&](int o) { return step.operands[o] < 0 ? nullptr : at[step.operands[o]]; };
        const bool last = s + 1 == plan.steps.size();
        void* const result = last ? static_cast<void*>(output + first) : tiles + step.result * kTile;
        step.loop(operand(0), operand(1), operand(2), result, n);
      }
    }
  }

 private:
  const float* input(int k, int64_t first, int64_t n, float* tile) const {
    if (layout.whole[k]) {
      if constexpr (std::is_same_v<T, float>) return inputs[k] + first;
      widen_run(inputs[k] + first, tile, n);
    } else if (layout.dims == 0) {
      tile[0] = static_cast<float>(widen(inputs[k][0]));
    } else {
      expand(layout, k, inputs[k], first, n, tile);
    }
    return tile;
  }
};

int threads_of(const OpView& view) {
  const int64_t blocks = (view.write(0).count() + kBlock - 1) / kBlock;
  return static_cast<int>(std::clamp<int64_t>(blocks, 1, std::max(1, view.threads())));
}

int64_t workspace(const OpView& view) {
  return int64_t{threads_of(view)} * plan_of<float>(view).tiles * kTile * static_cast<int64_t>(sizeof(float));
}

template <class T>
std::unique_ptr<Kernel> make(const OpView& view) {
  Interpreter<T> interpreter{plan_of<T>(view), {}, {}, view.out<T>(0), view.write(0).count()};
  const std::vector<int64_t> masks = view.attrs().has("over") ? view.attrs().integers("over") : std::vector<int64_t>();
  std::vector<std::span<const int64_t>> shapes;
  for (size_t k = 0; k < view.reads(); ++k) {
    shapes.emplace_back(view.read(k).shape);
    interpreter.inputs.push_back(view.in<T>(k));
  }
  interpreter.layout = sdk::pointwise_layout(view.write(0).shape, shapes, masks, view.attrs().text("views"));
  for (size_t k = 0; k < view.reads(); ++k) interpreter.inputs[k] += interpreter.layout.offsets[k];
  const int threads = threads_of(view);
  const Scratch scratch = view.scratch(workspace(view));
  return kernel_of([interpreter = std::move(interpreter), threads, scratch] {
    const int64_t count = interpreter.count, blocks = (count + kBlock - 1) / kBlock;
    parallel_for(threads, blocks, [&](int64_t i, int thread) {
      float* tiles = reinterpret_cast<float*>(scratch.data) + int64_t{thread} * interpreter.plan.tiles * kTile;
      interpreter.run(i * kBlock, std::min(count, (i + 1) * kBlock), tiles);
    });
  });
}

}  // namespace

const Family pointwise_kernels = {{"pointwise", PRUN_FLOAT_MAKER(read(0), make<T>(view)), Accepts::floats, workspace}};

}  // namespace prun::cpu
