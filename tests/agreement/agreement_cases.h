// Cases for every compute op, on which each device's kernels are compared with the reference device.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "ir/program.h"

namespace prun {

struct Slot {
  std::optional<Dtype> dtype;  // nullopt: the dtype under test
  Shape shape;
  double low = -1, high = 1;  // range of its random values; integers are below `high`
};

struct OpLine {
  const char* kind;
  std::vector<TensorId> reads, writes;
  Attrs attrs = {};
};

struct Case {
  std::string name;
  std::vector<Slot> slots;
  OpLine op;
  std::vector<OpLine> before = {};  // executed by the reference
  double tolerance = 1e-6;          // in f32, relative to the value plus the tensor's root mean square
  bool bf16 = true;
  std::vector<OpLine> apart = {};  // ops that it fuses, whose results it equals bitwise on every device
  bool leaves = false;  // a later round of experts: slots, the first result, of an expert without a token may remain
};

std::vector<Case> matrix_cases();
std::vector<Case> attention_cases();
std::vector<Case> attend_cases();
std::vector<Case> attention_block_cases();
std::vector<Case> decode_cases();
std::vector<Case> row_cases();
std::vector<Case> moe_cases();
std::vector<Case> pointwise_cases();
std::vector<Case> arithmetic_cases();
std::vector<Case> window_cases();
std::vector<Case> piece_cases();
std::vector<Case> view_cases();
std::vector<Case> training_cases();
std::vector<Case> source_cases();
std::vector<Case> all_cases();

}  // namespace prun
