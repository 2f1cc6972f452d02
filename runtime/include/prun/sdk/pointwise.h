// The program of the op `pointwise`, and the layout of its inputs.
//
//   "mul x0 1.702; sigmoid r0; mul x0 r1"    x0: the first input, r0: the first result, 1.702: a number
//
// The last result is the op's output. Surprising fact: a comparison gives 1 or 0 in the dtype of its operands.
#pragma once
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "prun/sdk/operand_view.h"

#if defined(__CUDACC__)
#define PRUN_HOST_DEVICE __host__ __device__
#else
#define PRUN_HOST_DEVICE
#endif

namespace prun::sdk {

// X(function, number of operands)
// clang-format off
#define PRUN_POINTWISE_FUNCTIONS(X) \
  X(add, 2) X(sub, 2) X(mul, 2) X(div, 2) X(pow, 2) X(minimum, 2) X(maximum, 2) \
  X(less, 2) X(less_equal, 2) X(equal, 2) X(where, 3) \
  X(exp, 1) X(log, 1) X(sqrt, 1) X(rsqrt, 1) X(abs, 1) X(sign, 1) X(sin, 1) X(cos, 1) \
  X(sigmoid, 1) X(tanh, 1) X(softplus, 1) X(relu, 1)
// clang-format on

enum class Pointwise : uint8_t {
#define PRUN_ONE(name, operands) name,
  PRUN_POINTWISE_FUNCTIONS(PRUN_ONE)
#undef PRUN_ONE
};

struct PointwiseFunction {
  std::string_view name;
  int operands;
};
inline constexpr PointwiseFunction kPointwiseFunctions[] = {
#define PRUN_ONE(name, operands) {#name, operands},
    PRUN_POINTWISE_FUNCTIONS(PRUN_ONE)
#undef PRUN_ONE
};
inline constexpr const PointwiseFunction& function_of(Pointwise code) {
  return kPointwiseFunctions[static_cast<size_t>(code)];
}

struct PointwiseOperand {
  enum Kind : uint8_t { input, result, number };
  Kind kind = number;
  int index = 0;     // input or result
  double value = 0;  // number
  bool operator==(const PointwiseOperand&) const = default;
};

struct PointwiseInstruction {
  Pointwise code = Pointwise::add;
  std::array<PointwiseOperand, 3> operands;
  bool operator==(const PointwiseInstruction&) const = default;
};

using PointwiseProgram = std::vector<PointwiseInstruction>;
inline constexpr int kMostPointwiseInputs = 8, kMostPointwiseInstructions = 256, kMostPointwiseDims = 8;

inline std::string pointwise_text(const PointwiseProgram& program) {
  std::string text;
  for (const PointwiseInstruction& one : program) {
    if (!text.empty()) text += "; ";
    text += function_of(one.code).name;
    for (int i = 0; i < function_of(one.code).operands; ++i) {
      const PointwiseOperand& operand = one.operands[i];
      char digits[32];
      char* end = operand.kind == PointwiseOperand::number
                      ? std::to_chars(digits, digits + sizeof digits, operand.value).ptr
                      : std::to_chars(digits, digits + sizeof digits, operand.index).ptr;
      text += operand.kind == PointwiseOperand::input ? " x" : operand.kind == PointwiseOperand::result ? " r" : " ";
      text.append(digits, end);
    }
  }
  return text;
}

// Returns the program of a text over `inputs` inputs; nullopt if the text is not a program. `problem` receives why.
inline std::optional<PointwiseProgram> parse_pointwise(std::string_view text, int inputs,
                                                       std::string* problem = nullptr) {
  PointwiseProgram program;
  const auto fail = [&](std::string why) -> std::optional<PointwiseProgram> {
    if (problem != nullptr) *problem = std::move(why);
    return std::nullopt;
  };
  const auto next_word = [](std::string_view& rest) {
    while (rest.starts_with(' ')) rest.remove_prefix(1);
    const std::string_view word = rest.substr(0, rest.find(' '));
    rest.remove_prefix(word.size());
    return word;
  };
  while (!text.empty()) {
    std::string_view rest = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(text.size(), rest.size() + 1));
    PointwiseInstruction one;
    const std::string_view name = next_word(rest);
    size_t code = 0;
    while (code < std::size(kPointwiseFunctions) && kPointwiseFunctions[code].name != name) ++code;
    if (code == std::size(kPointwiseFunctions)) return fail("there is no function '" + std::string(name) + "'");
    one.code = static_cast<Pointwise>(code);
    for (int i = 0; i < kPointwiseFunctions[code].operands; ++i) {
      const std::string_view word = next_word(rest);
      PointwiseOperand& operand = one.operands[i];
      const char* const end = word.data() + word.size();
      if (word.starts_with('x') || word.starts_with('r')) {
        operand.kind = word[0] == 'x' ? PointwiseOperand::input : PointwiseOperand::result;
        const int most = word[0] == 'x' ? inputs : static_cast<int>(program.size());
        const auto read = std::from_chars(word.data() + 1, end, operand.index);
        if (read.ec != std::errc() || read.ptr != end || operand.index < 0 || operand.index >= most)
          return fail("there is no operand '" + std::string(word) + "'");
      } else {
        const auto read = std::from_chars(word.data(), end, operand.value);
        if (word.empty() || read.ec != std::errc() || read.ptr != end)
          return fail(std::string(name) + " has no operand '" + std::string(word) + "'");
      }
    }
    if (!next_word(rest).empty()) return fail(std::string(name) + " has too many operands");
    program.push_back(one);
  }
  if (program.empty()) return fail("it has no instruction");
  if (program.size() > kMostPointwiseInstructions) return fail("it has more than 256 instructions");
  return program;
}

// Computes one instruction in R (float or double).
template <class R>
PRUN_HOST_DEVICE inline R pointwise_value(Pointwise code, R a, R b, R c) {
  switch (code) {
    case Pointwise::add:
      return a + b;
    case Pointwise::sub:
      return a - b;
    case Pointwise::mul:
      return a * b;
    case Pointwise::div:
      return a / b;
    case Pointwise::pow:
      return std::pow(a, b);
    case Pointwise::minimum:
      return a != a || a < b ? a : b;
    case Pointwise::maximum:
      return a != a || a > b ? a : b;
    case Pointwise::less:
      return a < b ? R(1) : R(0);
    case Pointwise::less_equal:
      return a <= b ? R(1) : R(0);
    case Pointwise::equal:
      return a == b ? R(1) : R(0);
    case Pointwise::where:
      return a != R(0) ? b : c;
    case Pointwise::exp:
      return std::exp(a);
    case Pointwise::log:
      return std::log(a);
    case Pointwise::sqrt:
      return std::sqrt(a);
    case Pointwise::rsqrt:
      return R(1) / std::sqrt(a);
    case Pointwise::abs:
      return a < R(0) ? -a : a;
    case Pointwise::sign:
      return a > R(0) ? R(1) : a < R(0) ? R(-1) : a;
    case Pointwise::sin:
      return std::sin(a);
    case Pointwise::cos:
      return std::cos(a);
    case Pointwise::sigmoid:
      return R(1) / (R(1) + std::exp(-a));
    case Pointwise::tanh:
      return std::tanh(a);
    case Pointwise::softplus:
      return (a > R(0) ? a : a != a ? a : R(0)) + std::log1p(std::exp(a > R(0) ? -a : a));
    case Pointwise::relu:
      return a < R(0) ? R(0) : a;
  }
  return a;
}

// The dims of the output after merging, the last one fastest, and each input's stride in elements (0: broadcast). The
// number after those of the inputs is the tensor that the output is a part of, if it is one.
struct PointwiseLayout {
  int dims = 0;
  int64_t sizes[kMostPointwiseDims] = {};
  int64_t strides[kMostPointwiseInputs + 1][kMostPointwiseDims] = {};
  int64_t offsets[kMostPointwiseInputs + 1] = {};  // of the first element that is read, or written
  bool whole[kMostPointwiseInputs + 1] = {};       // the tensor has the output's elements in their order
};

// Returns the output dim of each dim of an input: its dims are the last ones, or those in the bits of `mask` (>= 0).
inline std::vector<int> pointwise_places(size_t rank, size_t output_rank, int64_t mask) {
  std::vector<int> places;
  for (size_t d = 0; d < output_rank; ++d)
    if (mask < 0 ? d + rank >= output_rank : (mask >> d & 1) != 0) places.push_back(static_cast<int>(d));
  return places;
}

// `masks`: the attribute `over`, one for each input, or empty; `views`: the attribute `views`; `written`: the shape of
// the tensor that the output is a part of, empty = none. Shapes must fit (ir/ops/pointwise.cc).
inline PointwiseLayout pointwise_layout(std::span<const int64_t> output,
                                        const std::vector<std::span<const int64_t>>& inputs,
                                        std::span<const int64_t> masks, std::string_view views,
                                        std::span<const int64_t> written = {}) {
  std::vector<std::vector<int64_t>> strides;
  PointwiseLayout layout;
  const std::vector<OperandView> viewed = parse_operand_views(views).value_or(std::vector<OperandView>());
  std::vector<int64_t> in_order(output.size(), 0);
  for (size_t d = output.size(), stride = 1; d-- > 0; stride *= static_cast<size_t>(output[d]))
    if (output[d] != 1) in_order[d] = static_cast<int64_t>(stride);
  const size_t tensors = inputs.size() + (written.empty() ? 0 : 1);
  for (size_t k = 0; k < tensors; ++k) {
    std::vector<int64_t>& mine = strides.emplace_back(output.size(), 0);
    const OperandView* const view = view_of_operand(viewed, static_cast<int>(k));
    const std::span<const int64_t> stored = k < inputs.size() ? inputs[k] : written;
    if (const auto elements = view == nullptr ? std::nullopt : viewed_elements(*view, stored, output.size())) {
      mine = elements->strides;
      layout.offsets[k] = elements->offset;
    } else {
      const int64_t mask = masks.empty() || k >= inputs.size() ? -1 : masks[k];
      const std::vector<int> places = pointwise_places(stored.size(), output.size(), mask);
      int64_t stride = 1;
      for (size_t d = stored.size(); d-- > 0;) {
        if (stored[d] != 1) mine[places[d]] = stride;
        stride *= stored[d];
      }
    }
    layout.whole[k] = mine == in_order;
  }
  std::vector<size_t> kept;  // from the last dim: those that do not merge into the one after them
  for (size_t d = output.size(); d-- > 0;) {
    if (output[d] == 1) continue;
    bool merges = !kept.empty();
    for (size_t k = 0; k < tensors && merges; ++k) {
      const size_t last = kept.back();
      merges = strides[k][d] == strides[k][last] * layout.sizes[kept.size() - 1];
    }
    if (merges) {
      layout.sizes[kept.size() - 1] *= output[d];
      continue;
    }
    layout.sizes[kept.size()] = output[d];
    kept.push_back(d);
  }
  layout.dims = static_cast<int>(kept.size());
  for (int i = 0; i < layout.dims; ++i)
    for (size_t k = 0; k < tensors; ++k) layout.strides[k][i] = strides[k][kept[i]];
  for (int i = 0, j = layout.dims - 1; i < j; ++i, --j) {
    std::swap(layout.sizes[i], layout.sizes[j]);
    for (auto& mine : layout.strides) std::swap(mine[i], mine[j]);
  }
  return layout;
}

// Returns the position of element `at` of the output in input `k`, without its offset.
PRUN_HOST_DEVICE inline int64_t pointwise_position(const PointwiseLayout& layout, int k, int64_t at) {
  int64_t position = 0;
  for (int d = layout.dims - 1; d >= 0; --d) {
    position += at % layout.sizes[d] * layout.strides[k][d];
    at /= layout.sizes[d];
  }
  return position;
}

}  // namespace prun::sdk
