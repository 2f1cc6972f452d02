// Programs of the op pointwise (prun/sdk/pointwise.h) as the compiler changes them: derivatives and merging.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ir/attrs.h"
#include "ir/ids.h"
#include "ir/op_def.h"
#include "prun/sdk/pointwise.h"

namespace prun {

// Appends instructions to a program. Equal instructions are computed once; x·1, x + 0, x - 0 and x/1 are x.
class PointwiseBuilder {
 public:
  using Operand = sdk::PointwiseOperand;
  static Operand number(double value) { return {Operand::number, 0, value}; }
  static Operand input(int index) { return {Operand::input, index, 0}; }
  Operand add(sdk::Pointwise code, Operand a, Operand b = {}, Operand c = {});
  // Appends a program; `inputs` replaces its inputs. Returns its result.
  Operand append(const sdk::PointwiseProgram& program, const std::vector<Operand>& inputs);
  // Returns the instructions that `result` needs; the last one computes it.
  sdk::PointwiseProgram finish(Operand result);

 private:
  sdk::PointwiseProgram program_;
};

// Returns the program of a node; aborts if its text is none, because the op's shape rule has accepted it.
sdk::PointwiseProgram pointwise_program(const Attrs& attrs, size_t inputs);

// Returns the gradient by input `input` as a program over the same inputs and, as one more input, the gradient of the
// result; nullopt if it is 0 everywhere.
std::optional<sdk::PointwiseProgram> pointwise_derivative(const sdk::PointwiseProgram& program, int inputs, int input);

// Returns the program of an op that pointwise can compute (pointwise, add, mul, scale, relu, tanh); nullopt for others.
std::optional<sdk::PointwiseProgram> as_pointwise(const OpDef& op, const Attrs& attrs, size_t inputs);

// Removes inputs that the program does not read, and renumbers the others. `kept` receives their previous numbers.
void drop_unread_inputs(sdk::PointwiseProgram& program, int inputs, std::vector<int>& kept);

}  // namespace prun
