// A value is computed once for ops that cost the same, and again for ops that may not.
#include "ir/per_kind.h"

#include <gtest/gtest.h>

#include "ir/ops.h"

namespace prun {
namespace {

TEST(PerKind, OpsOfTwoMicrobatchesAreOfOneKind) {
  Program program;
  const auto tensor = [&](Dtype dtype, int64_t rows, Role role = Role::activation) {
    program.buffers.push_back({.role = role});
    program.tensors.push_back({.buffer = program.buffers.last(), .dtype = dtype, .shape = {rows, 8}});
    return program.tensors.last();
  };
  Attrs attrs;
  attrs.set("factor", int64_t{2});
  const auto op = [&](TensorId read, TensorId write, Phase phase = Phase::forward) {
    Op made;
    made.def = &ops::add;
    made.reads = {read};
    made.writes = {write};
    made.attrs = attrs;
    made.phase = phase;
    return made;
  };
  const TensorId x = tensor(Dtype::f32, 4);
  std::vector<Op> list;
  list.push_back(op(x, tensor(Dtype::f32, 4)));
  list.push_back(op(tensor(Dtype::f32, 4), tensor(Dtype::f32, 4)));  // like the first
  list.push_back(op(x, tensor(Dtype::bf16, 4)));
  list.push_back(op(tensor(Dtype::f32, 5), tensor(Dtype::f32, 4)));
  list.push_back(op(x, tensor(Dtype::f32, 4, Role::grad)));
  list.push_back(op(x, x));
  list.push_back(op(x, tensor(Dtype::f32, 4), Phase::backward));
  attrs.set("factor", int64_t{3});
  list.push_back(op(x, tensor(Dtype::f32, 4)));

  PerKind<int> numbers(program);
  int kinds = 0;
  std::vector<int> found;
  for (const Op& each : list) found.push_back(numbers.of(each, [&] { return kinds++; }));
  EXPECT_EQ(found, (std::vector<int>{0, 0, 1, 2, 3, 4, 5, 6}));
}

}  // namespace
}  // namespace prun
