// Derivatives by reverse accumulation: each instruction adds to the adjoints of its operands. Adjoints that are 0
// everywhere are absent, so that 0·infinity never occurs for operands that do not matter.
#include "ir/pointwise.h"

#include <algorithm>

#include "base/error.h"
#include "ir/ops.h"

namespace prun {

using sdk::Pointwise;
using sdk::PointwiseInstruction;
using sdk::PointwiseProgram;
using Operand = sdk::PointwiseOperand;

namespace {

bool is(const Operand& operand, double value) { return operand.kind == Operand::number && operand.value == value; }

// Returns an operand to which the instruction is equal.
std::optional<Operand> shortened(const PointwiseInstruction& one) {
  const auto& [a, b, c] = one.operands;
  const bool numbers = a.kind == Operand::number && b.kind == Operand::number;
  switch (one.code) {
    case Pointwise::add:
      if (is(a, 0)) return b;
      if (is(b, 0)) return a;
      break;
    case Pointwise::sub:
      if (is(b, 0)) return a;
      break;
    case Pointwise::mul:
      if (is(a, 1)) return b;
      if (is(b, 1)) return a;
      break;
    case Pointwise::div:
      if (is(b, 1)) return a;
      break;
    default:
      return std::nullopt;
  }
  if (numbers) return PointwiseBuilder::number(sdk::pointwise_value(one.code, a.value, b.value, 0.0));
  return std::nullopt;
}

// The adjoints of a program's operands.
class Adjoints {
 public:
  Adjoints(PointwiseBuilder& builder, size_t results, int inputs)
      : builder_(builder), results_(results), inputs_(inputs) {}

  void contribute(const Operand& to, Operand adjoint) {
    if (to.kind == Operand::number || is(adjoint, 0)) return;
    std::optional<Operand>& known = of(to);
    known = known ? builder_.add(Pointwise::add, *known, adjoint) : adjoint;
  }
  std::optional<Operand>& of(const Operand& operand) {
    return operand.kind == Operand::input ? inputs_[operand.index] : results_[operand.index];
  }

 private:
  PointwiseBuilder& builder_;
  std::vector<std::optional<Operand>> results_, inputs_;
};

// Adds to the adjoints of an instruction's operands. a, b, c: its operands in the builder's program; y: its result.
void derive(PointwiseBuilder& to, Adjoints& adjoints, const PointwiseInstruction& one, const std::array<Operand, 3>& in,
            const Operand& y, const Operand& dy) {
  const auto& [a, b, c] = in;
  const auto number = [](double value) { return PointwiseBuilder::number(value); };
  const auto mul = [&](Operand x, Operand z) { return to.add(Pointwise::mul, x, z); };
  const auto gives = [&](int operand, Operand adjoint) { adjoints.contribute(one.operands[operand], adjoint); };
  const auto wants = [&](int operand) { return one.operands[operand].kind != Operand::number; };
  switch (one.code) {
    case Pointwise::add:
      gives(0, dy), gives(1, dy);
      break;
    case Pointwise::sub:
      gives(0, dy);
      if (wants(1)) gives(1, mul(dy, number(-1)));
      break;
    case Pointwise::mul:
      if (wants(0)) gives(0, mul(dy, b));
      if (wants(1)) gives(1, mul(dy, a));
      break;
    case Pointwise::div:
      if (wants(0)) gives(0, to.add(Pointwise::div, dy, b));
      if (wants(1)) gives(1, mul(number(-1), to.add(Pointwise::div, mul(dy, y), b)));
      break;
    case Pointwise::pow:
      if (wants(0)) gives(0, mul(mul(dy, b), to.add(Pointwise::pow, a, to.add(Pointwise::sub, b, number(1)))));
      if (wants(1)) gives(1, mul(mul(dy, y), to.add(Pointwise::log, a)));
      break;
    case Pointwise::minimum:
    case Pointwise::maximum: {
      // Equal operands get half of the gradient each.
      const bool least = one.code == Pointwise::minimum;
      const Operand &first = least ? a : b, &second = least ? b : a;
      const Operand half = mul(dy, number(0.5));
      const Operand share = mul(half, to.add(Pointwise::add, to.add(Pointwise::less, first, second),
                                             to.add(Pointwise::less_equal, first, second)));
      if (wants(0)) gives(0, share);
      if (wants(1)) gives(1, to.add(Pointwise::sub, dy, share));
      break;
    }
    case Pointwise::where:
      if (wants(1)) gives(1, to.add(Pointwise::where, a, dy, number(0)));
      if (wants(2)) gives(2, to.add(Pointwise::where, a, number(0), dy));
      break;
    case Pointwise::less:
    case Pointwise::less_equal:
    case Pointwise::equal:
    case Pointwise::sign:
      break;  // constant almost everywhere
    case Pointwise::exp:
      gives(0, mul(dy, y));
      break;
    case Pointwise::log:
      gives(0, to.add(Pointwise::div, dy, a));
      break;
    case Pointwise::sqrt:
      gives(0, to.add(Pointwise::div, mul(dy, number(0.5)), y));
      break;
    case Pointwise::rsqrt:
      gives(0, mul(mul(dy, number(-0.5)), mul(y, mul(y, y))));
      break;
    case Pointwise::abs:
      gives(0, mul(dy, to.add(Pointwise::sign, a)));
      break;
    case Pointwise::sin:
      gives(0, mul(dy, to.add(Pointwise::cos, a)));
      break;
    case Pointwise::cos:
      gives(0, mul(mul(dy, number(-1)), to.add(Pointwise::sin, a)));
      break;
    case Pointwise::sigmoid:
      gives(0, mul(dy, mul(y, to.add(Pointwise::sub, number(1), y))));
      break;
    case Pointwise::tanh:
      gives(0, mul(dy, to.add(Pointwise::sub, number(1), mul(y, y))));
      break;
    case Pointwise::softplus:
      gives(0, mul(dy, to.add(Pointwise::sigmoid, a)));
      break;
    case Pointwise::relu:
      gives(0, to.add(Pointwise::where, to.add(Pointwise::less, number(0), a), dy, number(0)));
      break;
  }
}

}  // namespace

Operand PointwiseBuilder::add(Pointwise code, Operand a, Operand b, Operand c) {
  PointwiseInstruction one{code, {a, b, c}};
  for (int i = sdk::function_of(code).operands; i < 3; ++i) one.operands[i] = {};
  if (const std::optional<Operand> same = shortened(one)) return *same;
  const auto known = std::find(program_.begin(), program_.end(), one);
  if (known == program_.end()) {
    program_.push_back(one);
    return {Operand::result, static_cast<int>(program_.size()) - 1, 0};
  }
  return {Operand::result, static_cast<int>(known - program_.begin()), 0};
}

Operand PointwiseBuilder::append(const PointwiseProgram& program, const std::vector<Operand>& inputs) {
  std::vector<Operand> results;
  for (const PointwiseInstruction& one : program) {
    std::array<Operand, 3> in;
    for (int i = 0; i < 3; ++i) {
      const Operand& operand = one.operands[i];
      in[i] = operand.kind == Operand::input    ? inputs.at(operand.index)
              : operand.kind == Operand::result ? results.at(operand.index)
                                                : operand;
    }
    results.push_back(add(one.code, in[0], in[1], in[2]));
  }
  return results.back();
}

PointwiseProgram PointwiseBuilder::finish(Operand result) {
  // An input or a number becomes an instruction of its own, which `add` would shorten.
  if (result.kind != Operand::result)
    return PointwiseProgram{PointwiseInstruction{Pointwise::mul, {result, number(1), Operand{}}}};
  std::vector<int> now(program_.size(), -1);
  std::vector<bool> needed(program_.size(), false);
  needed[result.index] = true;
  for (int i = result.index; i >= 0; --i)
    for (const Operand& operand : program_[i].operands)
      if (needed[i] && operand.kind == Operand::result) needed[operand.index] = true;
  PointwiseProgram made;
  for (int i = 0; i <= result.index; ++i) {
    if (!needed[i]) continue;
    PointwiseInstruction one = program_[i];
    for (Operand& operand : one.operands)
      if (operand.kind == Operand::result) operand.index = now[operand.index];
    now[i] = static_cast<int>(made.size());
    made.push_back(one);
  }
  return made;
}

PointwiseProgram pointwise_program(const Attrs& attrs, size_t inputs) {
  std::string problem;
  std::optional<PointwiseProgram> program =
      sdk::parse_pointwise(attrs.text("program"), static_cast<int>(inputs), &problem);
  PRUN_CHECK(program.has_value(), problem);
  return std::move(*program);
}

std::optional<PointwiseProgram> pointwise_derivative(const PointwiseProgram& program, int inputs, int wanted) {
  PointwiseBuilder builder;
  std::vector<std::array<Operand, 3>> operands;
  std::vector<Operand> results;
  for (const PointwiseInstruction& one : program) {
    std::array<Operand, 3> in = one.operands;
    for (Operand& operand : in)
      if (operand.kind == Operand::result) operand = results[operand.index];
    operands.push_back(in);
    results.push_back(builder.add(one.code, in[0], in[1], in[2]));
  }
  Adjoints adjoints(builder, program.size(), inputs);
  const int last = static_cast<int>(program.size()) - 1;
  adjoints.contribute({Operand::result, last, 0}, PointwiseBuilder::input(inputs));
  for (int i = last; i >= 0; --i)
    if (const std::optional<Operand> dy = adjoints.of({Operand::result, i, 0}))
      derive(builder, adjoints, program[i], operands[i], results[i], *dy);
  const std::optional<Operand> gradient = adjoints.of(PointwiseBuilder::input(wanted));
  if (!gradient) return std::nullopt;
  return builder.finish(*gradient);
}

std::optional<PointwiseProgram> as_pointwise(const OpDef& op, const Attrs& attrs, size_t inputs) {
  const auto of = [](Pointwise code, Operand second = {}) {
    return PointwiseProgram{PointwiseInstruction{code, {PointwiseBuilder::input(0), second, Operand{}}}};
  };
  if (&op == &ops::pointwise) return pointwise_program(attrs, inputs);
  if (&op == &ops::add) return of(Pointwise::add, PointwiseBuilder::input(1));
  if (&op == &ops::mul) return of(Pointwise::mul, PointwiseBuilder::input(1));
  if (&op == &ops::relu) return of(Pointwise::relu);
  if (&op == &ops::tanh) return of(Pointwise::tanh);
  if (&op == &ops::scale && attrs.text("axis").empty())
    return of(Pointwise::mul, PointwiseBuilder::number(attrs.number("factor", 1)));
  return std::nullopt;
}

void drop_unread_inputs(PointwiseProgram& program, int inputs, std::vector<int>& kept) {
  std::vector<int> now(inputs, -1);
  kept.clear();
  for (int i = 0; i < inputs; ++i)
    for (const PointwiseInstruction& one : program)
      for (const Operand& operand : one.operands)
        if (operand.kind == Operand::input && operand.index == i && now[i] < 0) {
          now[i] = static_cast<int>(kept.size());
          kept.push_back(i);
        }
  for (PointwiseInstruction& one : program)
    for (Operand& operand : one.operands)
      if (operand.kind == Operand::input) operand.index = now[operand.index];
}

}  // namespace prun
