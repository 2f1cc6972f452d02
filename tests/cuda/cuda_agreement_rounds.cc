// Later rounds of dropless experts on the cuda device: most have no token, and then an op costs its launches and writes
// nothing, because a round's slots are up to a gigabyte. Rows without a token are not read, because no op has written
// them.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/agreement/agreement.h"
#include "tests/agreement/case_family.h"
#include "tests/cuda/cuda_agreement.h"

namespace prun {
namespace {

constexpr double kBefore = 7;  // in all elements of a result before the op

struct Rounds {
  int64_t experts, sources, size, width, hidden, tokens, k;
  int64_t slots() const { return sources * size; }
};

// Tensors of the ops below. `filled` counts the same number of tokens in each run of slots.
std::vector<Case> cases_of(const Rounds& s, double filled) {
  std::vector<Case> out;
  Family f(out, {{"x joined", {T, {1, s.tokens, s.width}}},
                 {"places", {I32, {s.tokens, s.k}, 0, static_cast<double>(s.size)}},
                 {"weights dweights", {F32, {s.tokens, s.k}}},
                 {"filled", {I32, {s.experts, s.sources}, filled, filled + 1}},
                 {"y dy", {T, {s.experts, s.slots(), s.width}}},
                 {"packed", {T, {s.sources, s.experts, s.size, s.width}}},
                 {"wide gate dwide dgate dup", {T, {s.experts, s.slots(), s.hidden}}},
                 {"w", {T, {s.experts, s.width, s.hidden}}},
                 {"sum", {F32, {s.experts, s.width, s.hidden}}}});
  Attrs round = make_attrs({{"round", 1}, {"experts", s.experts}, {"capacity", s.slots()}});
  round.set("batch", int64_t{1}), round.set("tokens", s.tokens);
  f.add("dispatch", {"dispatch x places > y", round});
  f.add("combine", {"combine y places weights joined > joined", round});
  f.add("combine_grad", {"combine_grad y places weights joined dweights > dy dweights", round});
  f.add("dispatch_grad", {"dispatch_grad places dy x > x", round});
  f.add("pack_rows", {"pack_rows y filled > packed", round});
  f.add("unpack_rows", {"unpack_rows packed filled > y", round});
  f.add("expert_linear", {"expert_linear y w filled > wide", round});
  f.add("expert_activation", {"expert_activation wide filled > dwide", round});
  f.add("expert_activation of two", {"expert_activation gate wide filled > dwide", round});
  Attrs sum = round;
  sum.set("sum", int64_t{1});
  f.add("sum of slots", {"expert_activation gate wide filled > dwide", sum});
  f.add("expert_activation_grad", {"expert_activation_grad wide dwide filled > dgate", round});
  f.add("expert_activation_grad of two", {"expert_activation_grad gate wide dwide filled > dgate dup", round});
  f.add("expert_linear_dx", {"expert_linear_dx dwide w filled > dy", round});
  f.add("expert_linear_dw_add", {"expert_linear_dw_add y dwide filled sum > sum", round});
  return out;
}

TEST(CudaAgreement, ARoundWithoutATokenChangesNothing) {
  // All tokens of an expert are in round 0. Tensor cores take the sizes unless they are odd.
  for (const int64_t odd : {0, 1}) {
    const Rounds s{4, 2, 150, 32 + odd, 64 + odd, 300, 2};
    for (const Case& c : cases_of(s, static_cast<double>(s.size)))
      for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
        SCOPED_TRACE(c.name + " in " + std::string(dtype_name(dtype)));
        OpList list(cuda());
        for (const Slot& slot : c.slots) list.tensor({slot.dtype.value_or(dtype), slot.shape});
        list.op(c.op.kind, c.op.reads, c.op.writes, c.op.attrs);
        list.make();
        for (size_t i = 0; i < c.slots.size(); ++i) {
          const Slot& slot = c.slots[i];
          const bool is_integer = slot.dtype == Dtype::i32;
          list.set(static_cast<int>(i),
                   std::vector<double>(element_count(slot.shape), is_integer ? std::floor(slot.low) : kBefore));
        }
        list.run();
        for (const TensorId id : c.op.writes)
          for (const double value : list.get(id)) ASSERT_EQ(value, kBefore) << "tensor " << id.index();
      }
  }
}

// Tokens of sources that begin within a tile, and sums over rows that skip from source to source. Rows without a token
// have random numbers, which count as zeros for the reference.
TEST(CudaAgreement, RowsWithoutATokenAreZerosForTheGemms) {
  for (const Rounds& s : {Rounds{3, 4, 50, 32, 64, 300, 2}, Rounds{3, 4, 50, 33, 65, 300, 2},
                          Rounds{2, 1, 300, 136, 136, 300, 2}, Rounds{5, 3, 7, 40, 24, 300, 2}}) {
    std::vector<Case> cases;
    Family f(cases, {{"filled", {I32, {s.experts, s.sources}, 0, static_cast<double>(s.size * 5 / 2)}},
                     {"y dy", {T, {s.experts, s.slots(), s.width}}},
                     {"wide", {T, {s.experts, s.slots(), s.hidden}}},
                     {"w", {T, {s.experts, s.width, s.hidden}}},
                     {"dw sum", {F32, {s.experts, s.width, s.hidden}}}});
    for (const int64_t number : {0, 1}) {
      Attrs round = make_attrs({{"round", number}});
      round.set("routed", 0.1);
      const bool leaves = number > 0;
      f.add("expert_linear", {"expert_linear y w filled > wide", round}, 3e-6).leaves = leaves;
      f.add("expert_linear_dx", {"expert_linear_dx wide w filled > dy", round}, 3e-6).leaves = leaves;
      f.add("expert_linear_dw", {"expert_linear_dw y wide filled > dw", round}, 3e-6);
      f.add("expert_linear_dw_add", {"expert_linear_dw_add y wide filled sum > dw", round}, 3e-6);
      f.add("expert_linear_dw_add in place", {"expert_linear_dw_add y wide filled dw > dw", round}, 3e-6);
    }
    for (const Case& c : cases)
      for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
        if (dtype == Dtype::f32 || s.width % 8 == 0 || c.op.attrs.integer("round") > 0)
          expect_agreement(c, cuda(), dtype, {.runs = 2});
  }
}

// In a later round only the slots of experts that have a token are written, those without one as zeros.
TEST(CudaAgreement, ARoundWritesTheSlotsOfExpertsWithATokenAlone) {
  constexpr int64_t kSize = 20;
  for (const int64_t width : {32, 33})
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      OpList list(cuda());
      const Shape slotted{3, 2 * kSize, width};
      const int filled = list.tensor({Dtype::i32, {3, 2}}), x = list.tensor({dtype, slotted});
      const int sum = list.tensor({dtype, slotted}), product = list.tensor({dtype, slotted});
      const int w = list.tensor({dtype, {3, width, width}}), packed = list.tensor({dtype, {2, 3, kSize, width}});
      const int unpacked = list.tensor({dtype, slotted});
      Attrs round = make_attrs({{"round", 1}}), adds = round;
      adds.set("sum", int64_t{1});
      list.op("expert_activation", {x, x, filled}, {sum}, adds);
      list.op("expert_linear", {x, w, filled}, {product}, round);
      list.op("unpack_rows", {packed, filled}, {unpacked}, round);
      list.make();
      list.set(filled, {20, 5, 20, 23, 0, 0});  // expert 1 has 3 tokens in the slots of its second source
      for (const int id : {x, w, packed, sum, product, unpacked})
        list.set(id, std::vector<double>(list.get(id).size(), id == x || id == w || id == packed ? 1 : kBefore));
      list.run();
      for (const auto& [id, value] : {std::pair(sum, 2.0), {product, static_cast<double>(width)}, {unpacked, 1.0}}) {
        const std::vector<double> found = list.get(id);
        for (size_t i = 0; i < found.size(); ++i) {
          const auto row = static_cast<int64_t>(i) / width, expert = row / (2 * kSize), place = row % (2 * kSize);
          const bool has_token = place >= kSize && place < kSize + 3;
          const double wanted = expert != 1 ? kBefore : has_token || id == sum ? value : 0;
          ASSERT_EQ(found[i], wanted) << "tensor " << id << ", row " << row << ", " << dtype_name(dtype);
        }
      }
    }
}

// A GEMM that sums over rows writes zeros if no row has a token.
TEST(CudaAgreement, ASumOverNoRowsIsZero) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    OpList list(cuda());
    const int x = list.tensor({dtype, {2, 40, 16}}), dy = list.tensor({dtype, {2, 40, 24}});
    const int filled = list.tensor({Dtype::i32, {2, 1}}), dw = list.tensor({Dtype::f32, {2, 16, 24}});
    list.op("expert_linear_dw", {x, dy, filled}, {dw}, make_attrs({{"round", 1}}));
    list.make();
    for (const int id : {x, dy}) list.set(id, std::vector<double>(list.get(id).size(), std::nan("")));
    list.set(filled, {40, 12});
    list.run();
    for (const double value : list.get(dw)) ASSERT_EQ(value, 0) << dtype_name(dtype);
  }
}

}  // namespace
}  // namespace prun
