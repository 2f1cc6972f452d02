// pointwise_update: the update of an optimizer that the plan defines (prun/sdk/update_program.h), interpreted by each
// thread for its elements. The first thread of a block computes the numbers that all elements share, in f64 and in
// shared memory: the GPU reserves the stack of a kernel for all threads that it can run at once.
#include <algorithm>

#include "block.cuh"
#include "cuda/device/context.h"
#include "launch.h"
#include "prun/sdk/update_program.h"
#include "prun/sdk/update_ranges.h"
#include "update_operands.h"

namespace prun::cuda {
namespace {

constexpr int kThreads = 256, kBlocksPerMultiprocessor = 4;
constexpr int kMostUpdateRegisters =
    2 + sdk::kMostUpdateStates + sdk::kMostUpdateNumbers + sdk::kMostPointwiseInstructions;
constexpr int kFewUpdateRegisters = 48;

// An operand of `elements` is a register: tensors first, then values, then results.
struct UpdateCode {
  int inputs = 0, values = 0, shared_instructions = 0, instructions = 0;
  sdk::SharedInstruction shared[sdk::kMostPointwiseInstructions];
  sdk::PointwiseOperand value[sdk::kMostUpdateNumbers];
  uint8_t function[sdk::kMostPointwiseInstructions];
  uint16_t operands[sdk::kMostPointwiseInstructions][3];
  uint16_t results[1 + sdk::kMostUpdateStates];
};

template <class T>
struct UpdateTensors {
  const float* grad;
  T* param;
  float* state[sdk::kMostUpdateStates];
};

template <class T, int kRegisters>
__global__ void __launch_bounds__(kThreads)
    interpret_update(UpdateTensors<T> o, sdk::UpdateRange range, const UpdateCode* code, const float* clip,
                     const prun_step_values* table) {
  const float factor = clip != nullptr ? *clip : 1.0f;
  if (factor < 0) return;  // the step updates nothing
  __shared__ float numbers[sdk::kMostUpdateNumbers];
  __shared__ double results[sdk::kMostPointwiseInstructions], values[sdk::kMostUpdateNumbers];  // of one thread
  if (threadIdx.x == 0) {
    sdk::update_values(code->shared, code->shared_instructions, code->value, code->values,
                       table->learning_rate * range.lr_factor, range.weight_decay,
                       static_cast<double>(table->update + 1), results, values);
    for (int i = 0; i < code->values; ++i) numbers[i] = static_cast<float>(values[i]);
  }
  __syncthreads();
  float r[kRegisters];
  const int inputs = code->inputs, first = inputs + code->values;
  for (int i = 0; i < code->values; ++i) r[inputs + i] = numbers[i];
  for (int64_t i = range.begin + first_item(); i < range.end; i += item_stride()) {
    r[0] = o.grad[i] * factor, r[1] = widen(o.param[i]);
    for (int s = 2; s < inputs; ++s) r[s] = o.state[s - 2][i];
    for (int n = 0; n < code->instructions; ++n)
      r[first + n] = sdk::pointwise_value(static_cast<sdk::Pointwise>(code->function[n]), r[code->operands[n][0]],
                                          r[code->operands[n][1]], r[code->operands[n][2]]);
    o.param[i] = narrow<T>(r[code->results[0]]);
    for (int s = 2; s < inputs; ++s) o.state[s - 2][i] = r[code->results[s - 1]];
  }
}

UpdateCode update_code_of(const OpView& view) {
  UpdateCode code{};
  const auto program =
      sdk::parse_update(view.text("program"), static_cast<int>(view.writes()) + 1, view.integers("results"));
  view.expect(program.has_value(), "pointwise_update: the program is none");
  code.inputs = program->inputs;
  code.values = static_cast<int>(program->values.size());
  code.shared_instructions = static_cast<int>(program->shared.size());
  code.instructions = static_cast<int>(program->elements.size());
  std::copy(program->shared.begin(), program->shared.end(), code.shared);
  std::copy(program->values.begin(), program->values.end(), code.value);
  const int first = code.inputs + code.values;
  for (int n = 0; n < code.instructions; ++n) {
    const sdk::PointwiseInstruction& one = program->elements[n];
    code.function[n] = static_cast<uint8_t>(one.code);
    for (int o = 0; o < sdk::function_of(one.code).operands; ++o)
      code.operands[n][o] = static_cast<uint16_t>(one.operands[o].index +
                                                  (one.operands[o].kind == sdk::PointwiseOperand::result ? first : 0));
  }
  for (size_t w = 0; w < program->results.size(); ++w)
    code.results[w] = static_cast<uint16_t>(first + program->results[w]);
  return code;
}

template <class T>
std::unique_ptr<Kernel> make_of(const OpView& view) {
  const int64_t n = view.read(1).count();
  UpdateTensors<T> o{view.in<float>(0), view.out<T>(0), {}};
  view.expect_count(view.read(0), n);
  for (size_t w = 0; w < view.writes(); ++w) {
    view.expect_count(view.read(1 + w), n), view.expect_count(view.write(w), n);
    view.expect(view.read(1 + w).ptr == view.write(w).ptr, "it updates in place");
    if (w > 0) o.state[w - 1] = view.out<float>(w);
  }
  const float* clip = view.reads() > 1 + view.writes() ? view.in<float>(1 + view.writes()) : nullptr;
  const UpdateCode code = update_code_of(view);
  const bool few = code.inputs + code.values + code.instructions <= kFewUpdateRegisters;
  const std::shared_ptr<void> table = device_table(view.context(), &code, sizeof code);
  const unsigned most = view.context().multiprocessors() * kBlocksPerMultiprocessor;
  return kernel_of(
      [o, few, table, clip, most, ranges = update_ranges_of(view, n, 0), values = view.values()](cudaStream_t stream) {
        for (const sdk::UpdateRange& range : ranges)
          launch(few ? interpret_update<T, kFewUpdateRegisters> : interpret_update<T, kMostUpdateRegisters>,
                 blocks_for(range.end - range.begin, kThreads, most), kThreads, 0, stream, o, range,
                 static_cast<const UpdateCode*>(table.get()), clip, values);
      });
}

std::unique_ptr<Kernel> make_pointwise_update(const OpView& view) {
  return with_float(view.read(1).dtype, [&]<class T>() { return make_of<T>(view); });
}

const KernelFamily kFamily = {{"pointwise_update", make_pointwise_update}};

}  // namespace
}  // namespace prun::cuda
