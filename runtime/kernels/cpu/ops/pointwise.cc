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
  int gated = -1;  // the input x of x·sigmoid(x·number) as the program's result
};

struct Plan {
  std::vector<Step> steps;
  std::vector<float> numbers;
  int inputs = 0, tiles = 0;
};

// The number of inputs, without the tensor of which the op writes a part.
size_t inputs_of(const OpView& view) { return view.reads() - (view.attrs().integer("continues") != 0 ? 1 : 0); }
Shape shape_of(const OpView& view) {
  return view.attrs().has("whole") ? view.attrs().integers("shape") : view.write(0).shape;
}

// One or more instructions that a loop computes at once. `result`: the number of the last one.
struct Chained {
  size_t result = 0;
  PointwiseLoop loops[2] = {};  // to floats, and to the output's type
  std::vector<Operand> operands;
  bool is_gate = false;
};

// Joins sums, multiplications and sigmoids to the multiplication after them, if nothing else reads their results.
template <class T>
class Chains {
 public:
  explicit Chains(const sdk::PointwiseProgram& program) : program_(program), uses_(program.size(), 0) {
    for (const auto& one : program)
      for (int o = 0; o < sdk::function_of(one.code).operands; ++o)
        if (one.operands[o].kind == Operand::result) ++uses_[one.operands[o].index];
  }

  std::vector<Chained> all() const {
    std::vector<Chained> list;
    for (size_t n = 0; n < program_.size(); ++n)
      if (Chained one; gate(n, one) || product(n, one) || alone(n, one)) {
        list.push_back(std::move(one));
        n = list.back().result;
      }
    return list;
  }

 private:
  static constexpr bool kRough = std::is_same_v<T, bf16>;
  bool is(size_t n, sdk::Pointwise code) const { return n < program_.size() && program_[n].code == code; }
  const Operand* operands(size_t n) const { return program_[n].operands.data(); }
  bool reads(const Operand& operand, size_t n) const {
    return operand.kind == Operand::result && operand.index == static_cast<int>(n);
  }
  // Returns the other operand of the multiplication `m`, if it is the only reader of instruction `n`.
  const Operand* factor(size_t n, size_t m) const {
    if (!is(m, sdk::Pointwise::mul) || uses_[n] != 1) return nullptr;
    for (const int o : {0, 1})
      if (reads(operands(m)[o], n)) return &operands(m)[1 - o];
    return nullptr;
  }
  void set(Chained& one, size_t result, PointwiseChain chain) const {
    one.result = result;
    one.loops[0] = pointwise_chain<float>(chain, kRough), one.loops[1] = pointwise_chain<T>(chain, kRough);
  }

  bool gate(size_t n, Chained& one) const {
    size_t sigmoid = n;
    if (is(n, sdk::Pointwise::mul) && is(n + 1, sdk::Pointwise::sigmoid) && uses_[n] == 1 &&
        reads(operands(n + 1)[0], n)) {
      one.operands = {operands(n)[0], operands(n)[1]};
      if (one.operands[0].kind == Operand::number) std::swap(one.operands[0], one.operands[1]);
      sigmoid = n + 1;
    } else if (is(n, sdk::Pointwise::sigmoid)) {
      one.operands = {operands(n)[0], {Operand::number, 0, 1}};
    } else {
      return false;
    }
    const Operand* const by = factor(sigmoid, sigmoid + 1);
    if (by == nullptr && sigmoid == n) return false;
    if (by != nullptr) one.operands.push_back(*by);
    one.is_gate = by != nullptr;
    set(one, sigmoid + (by == nullptr ? 0 : 1),
        by == nullptr ? PointwiseChain::sigmoid_of_product : PointwiseChain::gate);
    return true;
  }
  bool product(size_t n, Chained& one) const {
    const bool sum = is(n, sdk::Pointwise::add), difference = is(n, sdk::Pointwise::sub);
    if (!sum && !difference && !is(n, sdk::Pointwise::mul)) return false;
    const Operand* const by = factor(n, n + 1);
    if (by == nullptr) return false;
    one.operands = {operands(n)[0], operands(n)[1], *by};
    set(one, n + 1, sum ? PointwiseChain::sum : difference ? PointwiseChain::difference : PointwiseChain::product);
    return true;
  }
  bool alone(size_t n, Chained& one) const {
    const sdk::Pointwise code = program_[n].code;
    one = {n, {pointwise_loop<float>(code, kRough), pointwise_loop<T>(code, kRough)}, {}};
    one.operands.assign(operands(n), operands(n) + sdk::function_of(code).operands);
    return true;
  }

  const sdk::PointwiseProgram& program_;
  std::vector<int> uses_;
};

// Assigns tiles. A register's tile is free again after the last loop that reads it, which may overwrite it.
template <class T>
Plan plan_of(const OpView& view) {
  Plan plan;
  plan.inputs = static_cast<int>(inputs_of(view));
  const sdk::PointwiseProgram program = pointwise_program(view.attrs(), inputs_of(view));
  const std::vector<Chained> chains = Chains<T>(program).all();
  std::vector<size_t> last(program.size(), program.size());  // the last instruction of the loop
  const auto number_tile = [&](double value) {
    const auto as_float = static_cast<float>(value);
    for (size_t i = 0; i < plan.numbers.size(); ++i)
      if (std::bit_cast<uint32_t>(plan.numbers[i]) == std::bit_cast<uint32_t>(as_float))
        return plan.inputs + static_cast<int>(i);
    plan.numbers.push_back(as_float);
    return plan.inputs + static_cast<int>(plan.numbers.size()) - 1;
  };
  for (const Chained& one : chains)
    for (const Operand& operand : one.operands) {
      if (operand.kind == Operand::result) last[operand.index] = one.result;
      if (operand.kind == Operand::number) number_tile(operand.value);
    }
  const int first_register = plan.inputs + static_cast<int>(plan.numbers.size());
  std::vector<int> tile_of(program.size(), -1), free;
  int registers = 0;
  for (const Chained& one : chains) {
    const size_t n = one.result;
    Step step{one.loops[n + 1 == program.size() ? 1 : 0]};
    for (size_t o = 0; o < one.operands.size(); ++o) {
      const Operand& operand = one.operands[o];
      step.operands[o] = operand.kind == Operand::input    ? operand.index
                         : operand.kind == Operand::number ? number_tile(operand.value)
                                                           : tile_of[operand.index];
    }
    if (one.is_gate && n + 1 == program.size() && one.operands[1].kind == Operand::number &&
        step.operands[0] < plan.inputs && step.operands[0] == step.operands[2])
      step.gated = step.operands[0];
    for (size_t m = 0; m < n; ++m)
      if (last[m] == n && tile_of[m] >= 0) free.push_back(tile_of[m]);
    if (free.empty()) free.push_back(first_register + registers++);
    tile_of[n] = step.result = free.back();
    free.pop_back();
    plan.steps.push_back(step);
  }
  plan.tiles = first_register + registers + 1;  // the last one: a part of a tensor in the output's order
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

// Writes the elements [at, at + n) of the output's order into the tensor `y`, of which they are a part.
template <class T>
void scatter(const sdk::PointwiseLayout& layout, int k, const T* from, int64_t at, int64_t n, T* y) {
  const int inner = layout.dims - 1;
  for (int64_t done = 0; done < n;) {
    const int64_t first = inner < 0 ? 0 : (at + done) % layout.sizes[inner];
    const int64_t run = inner < 0 ? 1 : std::min(n - done, layout.sizes[inner] - first);
    T* const to = y + sdk::pointwise_position(layout, k, at + done);
    const int64_t stride = inner < 0 ? 1 : layout.strides[k][inner];
    if (stride == 1)
      std::memcpy(to, from + done, static_cast<size_t>(run) * sizeof(T));
    else
      for (int64_t i = 0; i < run; ++i) to[i * stride] = from[done + i];
    done += run;
  }
}

template <class T>
struct Interpreter {
  Plan plan;
  sdk::PointwiseLayout layout;
  std::vector<const T*> inputs;
  std::vector<bool> in_tiles;  // inputs that a step reads from tiles
  T* output;
  int64_t count;
  bool writes_part;  // of the tensor that begins at `output`
  // Whether a step reads an input from its tile, and not as it is stored.
  bool reads_tile(int k) const {
    return std::any_of(plan.steps.begin(), plan.steps.end(), [&](const Step& step) {
      return step.gated < 0 && std::count(std::begin(step.operands), std::end(step.operands), k) > 0;
    });
  }

  // Computes the elements [begin, end). `tiles`: scratch of plan.tiles tiles.
  void run(int64_t begin, int64_t end, float* tiles) const {
    const float* at[sdk::kMostPointwiseInputs + 4 * sdk::kMostPointwiseInstructions];
    for (int i = 0; i < plan.tiles; ++i) at[i] = tiles + i * kTile;
    T* const part = reinterpret_cast<T*>(tiles + (plan.tiles - 1) * kTile);
    const int64_t longest = std::min(kTile, end - begin);
    for (size_t i = 0; i < plan.numbers.size(); ++i) {
      float* tile = tiles + (plan.inputs + static_cast<int64_t>(i)) * kTile;
      std::fill(tile, tile + longest, plan.numbers[i]);
    }
    for (int64_t first = begin; first < end; first += kTile) {
      const int64_t n = std::min(kTile, end - first);
      for (int k = 0; k < plan.inputs; ++k)
        if (in_tiles[k]) at[k] = input(k, first, n, tiles + k * kTile);
      for (size_t s = 0; s < plan.steps.size(); ++s) {
        const Step& step = plan.steps[s];
        const auto operand = [&](int o) { return step.operands[o] < 0 ? nullptr : at[step.operands[o]]; };
        const bool last = s + 1 == plan.steps.size();
        void* const result = !last         ? tiles + step.result * kTile
                             : writes_part ? static_cast<void*>(part)
                                           : static_cast<void*>(output + first);
        if (step.gated >= 0)
          gate_of_input(inputs[step.gated] + first, operand(1), static_cast<T*>(result), n);
        else
          step.loop(operand(0), operand(1), operand(2), result, n);
      }
      if (writes_part) scatter(layout, plan.inputs, part, first, n, output);
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
  const int64_t blocks = (element_count(shape_of(view)) + kBlock - 1) / kBlock;
  return static_cast<int>(std::clamp<int64_t>(blocks, 1, std::max(1, view.threads())));
}

int64_t workspace(const OpView& view) {
  return int64_t{threads_of(view)} * plan_of<float>(view).tiles * kTile * static_cast<int64_t>(sizeof(float));
}

template <class T>
std::unique_ptr<Kernel> make(const OpView& view) {
  const size_t inputs = inputs_of(view);
  const Shape shape = shape_of(view);
  Interpreter<T> interpreter{plan_of<T>(view), {}, {}, {}, view.out<T>(0), element_count(shape), false};
  const std::vector<int64_t> masks = view.attrs().has("over") ? view.attrs().integers("over") : std::vector<int64_t>();
  std::vector<std::span<const int64_t>> shapes;
  for (size_t k = 0; k < inputs; ++k) {
    shapes.emplace_back(view.read(k).shape);
    interpreter.inputs.push_back(view.in<T>(k));
  }
  const Shape whole = view.attrs().integers("whole");
  interpreter.layout = sdk::pointwise_layout(shape, shapes, masks, view.attrs().text("views"), whole);
  for (size_t k = 0; k < inputs; ++k) interpreter.inputs[k] += interpreter.layout.offsets[k];
  for (Step& step : interpreter.plan.steps)
    if (step.gated >= 0 && !interpreter.layout.whole[step.gated]) step.gated = -1;
  for (size_t k = 0; k < inputs; ++k) interpreter.in_tiles.push_back(interpreter.reads_tile(static_cast<int>(k)));
  interpreter.output += interpreter.layout.offsets[inputs];
  interpreter.writes_part = !whole.empty() && !interpreter.layout.whole[inputs];
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
