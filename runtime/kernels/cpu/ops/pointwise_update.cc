// pointwise_update: the update of an optimizer that the plan defines, interpreted over tiles as pointwise is.
//
// Surprising fact: results remain in tiles until the last instruction, because an instruction may read a parameter or
// state after its new value is known.
#include <algorithm>

#include "kernels/cpu/ops/pointwise_loops.h"
#include "kernels/cpu/ops/update_operands.h"
#include "prun/sdk/update_program.h"

namespace prun::cpu {
namespace {

constexpr int64_t kTile = kPointwiseTile, kBlock = kPointwiseBlock;

// An instruction over tiles. Tiles: inputs, values, results.
struct TileStep {
  PointwiseLoop loop;
  int operands[3] = {-1, -1, -1};
  int result = -1;
};

sdk::UpdateProgram program_of(const OpView& view) {
  const auto program = sdk::parse_update(view.attrs().text("program"), static_cast<int>(view.writes()) + 1,
                                         view.attrs().integers("results"));
  PRUN_CHECK(program.has_value(), view.attrs().text("program"));
  return *program;
}

struct TileProgram {
  sdk::UpdateProgram program;
  std::vector<TileStep> steps;
  int first_value = 0, tiles = 0;

  explicit TileProgram(const OpView& view) : program(program_of(view)) {
    first_value = program.inputs;
    const int values = static_cast<int>(program.values.size()), first_result = first_value + values;
    for (const sdk::PointwiseInstruction& one : program.elements) {
      TileStep step{pointwise_loop<float>(one.code, false)};
      for (int o = 0; o < sdk::function_of(one.code).operands; ++o)
        step.operands[o] =
            one.operands[o].index + (one.operands[o].kind == sdk::PointwiseOperand::result ? first_result : 0);
      step.result = first_result + static_cast<int>(steps.size());
      steps.push_back(step);
    }
    tiles = first_result + static_cast<int>(steps.size());
  }
  int result(size_t write) const {
    return first_value + static_cast<int>(program.values.size()) + program.results[write];
  }
  int64_t values_bytes() const {
    return round_up(static_cast<int64_t>(program.values.size() + program.shared.size() + 1) * 8, kAlignBytes);
  }
  int64_t tiles_bytes() const { return tiles * kTile * static_cast<int64_t>(sizeof(float)); }
};

// Threads that share an op's blocks; each has its own tiles.
int update_threads(const OpView& view) {
  const int64_t blocks = (view.read(1).count() + kBlock - 1) / kBlock;
  return static_cast<int>(std::clamp<int64_t>(blocks, 1, std::max(1, view.threads())));
}

int64_t workspace(const OpView& view) {
  const TileProgram plan(view);
  return update_threads(view) * (plan.tiles_bytes() + plan.values_bytes());
}

template <class T>
struct Updater {
  TileProgram plan;
  const float* grad;
  T* param;
  std::vector<float*> states;
  const float* clip = nullptr;
  const StepTable* table;
  std::vector<sdk::UpdateRange> ranges;

  // Fills the tiles of the values under the settings of a range. `values`: scratch.
  void settle(const sdk::UpdateRange& range, double* values, float* tiles, int64_t longest) const {
    const sdk::UpdateProgram& p = plan.program;
    double* to = values + p.shared.size();
    const int count = static_cast<int>(p.values.size());
    sdk::update_values(p.shared.data(), static_cast<int>(p.shared.size()), p.values.data(), count,
                       table->learning_rate * range.lr_factor, range.weight_decay,
                       static_cast<double>(table->update + 1), values, to);
    for (int i = 0; i < count; ++i) {
      float* tile = tiles + (plan.first_value + i) * kTile;
      std::fill(tile, tile + longest, static_cast<float>(to[i]));
    }
  }

  void run(int64_t begin, int64_t end, const Clip& factor, double* values, float* tiles) const {
    for (const sdk::UpdateRange& range : ranges) {
      const int64_t from = std::max(begin, range.begin), to = std::min(end, range.end);
      if (from >= to) continue;
      settle(range, values, tiles, std::min(kTile, to - from));
      for (int64_t first = from; first < to; first += kTile) update(first, std::min(kTile, to - first), factor, tiles);
    }
  }

  void update(int64_t first, int64_t n, const Clip& factor, float* tiles) const {
    const auto tile = [&](int number) { return tiles + number * kTile; };
    const auto operand = [&](int number) -> const float* {
      return number < 0                                 ? nullptr
             : number >= 2 && number < plan.first_value ? states[number - 2] + first
                                                        : tile(number);
    };
    for (int64_t i = 0; i < n; ++i) tile(0)[i] = factor.of(grad[first + i]), tile(1)[i] = load(param[first + i]);
    for (const TileStep& step : plan.steps)
      step.loop(operand(step.operands[0]), operand(step.operands[1]), operand(step.operands[2]), tile(step.result), n);
    for (int64_t i = 0; i < n; ++i) store(param[first + i], tile(plan.result(0))[i]);
    for (size_t s = 0; s < states.size(); ++s) std::copy_n(tile(plan.result(1 + s)), n, states[s] + first);
  }
};

template <class T>
std::unique_ptr<Kernel> make_pointwise_update(const OpView& view) {
  const int64_t n = view.read(1).count();
  Updater<T> u{TileProgram(view), view.in<float>(0),           view.out<T>(0), {}, nullptr,
               view.table(),      update_ranges_of(view, n, 0)};
  bool in_place = view.in<T>(1) == u.param;
  view.expect_count(view.read(0), n);
  for (size_t w = 1; w < view.writes(); ++w) {
    view.expect_count(view.read(1 + w), n), view.expect_count(view.write(w), n);
    u.states.push_back(view.out<float>(w));
    in_place = in_place && view.in<float>(1 + w) == u.states.back();
  }
  PRUN_CHECK(in_place, std::string(view.kind()) + " updates in place");
  if (view.reads() > 1 + view.writes()) u.clip = view.in<float>(1 + view.writes());
  const Scratch scratch = view.scratch(workspace(view));
  return kernel_of([u = std::move(u), n, threads = update_threads(view), scratch] {
    if (u.clip != nullptr && *u.clip < 0) return;
    const Clip factor(u.clip);
    parallel_for(threads, (n + kBlock - 1) / kBlock, [&](int64_t i, int thread) {
      const FlushSubnormals flush;
      std::byte* own = scratch.data + thread * (u.plan.tiles_bytes() + u.plan.values_bytes());
      u.run(i * kBlock, std::min(n, (i + 1) * kBlock), factor, reinterpret_cast<double*>(own),
            reinterpret_cast<float*>(own + u.plan.values_bytes()));
    });
  });
}

}  // namespace

const Family pointwise_update_kernels = {
    {"pointwise_update", PRUN_FLOAT_MAKER(read(1), make_pointwise_update<T>(view)), Accepts::floats, workspace}};

}  // namespace prun::cpu
