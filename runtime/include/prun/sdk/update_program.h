// The program of the op pointwise_update, an optimizer that a plan defines (prun.optimizer), as its kernels run it.
//
//   inputs: x0 gradient, x1 parameter, x2, .. states; then learning rate, weight decay, and the update's number from 1
//
// Surprising fact: numbers that are the same for all elements, such as 1 - beta^t, are computed once per update in f64
// and rounded once, so that an f32 update is as exact as that of a built-in optimizer.
#pragma once
#include <algorithm>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "prun/sdk/pointwise.h"

namespace prun::sdk {

inline constexpr int kMostUpdateStates = 4, kMostUpdateNumbers = 64, kUpdateSettings = 3;

struct SharedInstruction {  // without std::array, for device code
  Pointwise code = Pointwise::add;
  PointwiseOperand operands[3];
};

struct UpdateProgram {
  int inputs = 0;                         // tensors: gradient, parameter, states
  std::vector<SharedInstruction> shared;  // of the settings x0 (learning rate), x1 (weight decay), x2 (number)
  std::vector<PointwiseOperand> values;   // settings, results of `shared` and numbers that the elements' program reads
  PointwiseProgram elements;              // input i >= inputs is values[i - inputs]; it has no number
  std::vector<int> results;               // of each write, parameter and states: an instruction of `elements`
};

// Returns the program of a text; nullopt if it is not one. `results`: an instruction for each write.
inline std::optional<UpdateProgram> parse_update(std::string_view text, int inputs, std::span<const int64_t> results) {
  const auto whole = parse_pointwise(text, inputs + kUpdateSettings);
  if (!whole || inputs < 2 || inputs > 2 + kMostUpdateStates || std::ssize(results) != inputs - 1) return std::nullopt;
  UpdateProgram program;
  program.inputs = inputs;
  std::vector<PointwiseOperand> place;  // of each instruction: a result of `shared` or of `elements`
  std::vector<bool> is_shared;
  const auto is_result = [&](size_t n) {
    return std::find(results.begin(), results.end(), static_cast<int64_t>(n)) != results.end();
  };
  const auto shared = [&](const PointwiseOperand& operand) {
    return operand.kind == PointwiseOperand::number ||
           (operand.kind == PointwiseOperand::input ? operand.index >= inputs : is_shared[operand.index]);
  };
  // Returns the operand in terms of `shared`.
  const auto in_shared = [&](PointwiseOperand operand) {
    if (operand.kind == PointwiseOperand::input) operand.index -= inputs;
    return operand.kind == PointwiseOperand::result ? place[operand.index] : operand;
  };
  const auto in_elements = [&](const PointwiseOperand& operand) {
    if (!shared(operand)) return operand.kind == PointwiseOperand::result ? place[operand.index] : operand;
    const PointwiseOperand value = in_shared(operand);
    auto at = std::find(program.values.begin(), program.values.end(), value);
    if (at == program.values.end()) at = program.values.insert(at, value);
    return PointwiseOperand{PointwiseOperand::input, inputs + static_cast<int>(at - program.values.begin()), 0};
  };
  for (size_t n = 0; n < whole->size(); ++n) {
    PointwiseInstruction one = (*whole)[n];
    const int operands = function_of(one.code).operands;
    const bool alike = !is_result(n) && std::all_of(one.operands.begin(), one.operands.begin() + operands, shared);
    for (int o = 0; o < operands; ++o)
      one.operands[o] = alike ? in_shared(one.operands[o]) : in_elements(one.operands[o]);
    const size_t number = alike ? program.shared.size() : program.elements.size();
    place.push_back({PointwiseOperand::result, static_cast<int>(number), 0});
    is_shared.push_back(alike);
    if (alike)
      program.shared.push_back({one.code, {one.operands[0], one.operands[1], one.operands[2]}});
    else
      program.elements.push_back(one);
  }
  if (program.values.size() > kMostUpdateNumbers) return std::nullopt;
  for (const int64_t result : results) {
    if (result < 0 || result >= std::ssize(*whole)) return std::nullopt;
    program.results.push_back(place[result].index);
  }
  return program;
}

// Computes `count` values of an update. `results`: scratch, an element for each instruction of `shared`.
PRUN_HOST_DEVICE inline void update_values(const SharedInstruction* shared, int instructions,
                                           const PointwiseOperand* values, int count, double learning_rate,
                                           double weight_decay, double number, double* results, double* to) {
  const double settings[kUpdateSettings] = {learning_rate, weight_decay, number};
  const auto value = [&](const PointwiseOperand& operand) {
    return operand.kind == PointwiseOperand::input    ? settings[operand.index]
           : operand.kind == PointwiseOperand::result ? results[operand.index]
                                                      : operand.value;
  };
  for (int n = 0; n < instructions; ++n) {
    const SharedInstruction& one = shared[n];
    results[n] = pointwise_value(one.code, value(one.operands[0]), value(one.operands[1]), value(one.operands[2]));
  }
  for (int i = 0; i < count; ++i) to[i] = value(values[i]);
}

}  // namespace prun::sdk
