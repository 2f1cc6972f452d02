// Item 4: order-dependent reductions are bitwise identical on all ranks and in every run, and with rank_order identical
// to the reference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/conformance/case.h"

namespace prun::testing {
namespace {

constexpr CollKind kReductions[] = {CollKind::all_reduce, CollKind::reduce_scatter, CollKind::reduce};

std::string run_rank_order(Rank& rank) {
  Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
  std::string failed;
  for (CollKind kind : kReductions) {
    for (Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16}) {
      for (RedOp op : {RedOp::sum, RedOp::prod, RedOp::avg}) {
        for (int64_t count : {1, 7, 1000, 66000}) {
          if (count > 1000 && op != RedOp::sum) continue;
          for (bool in_arena : {false, true}) {
            Case c;
            c.call.kind = kind;
            c.call.dtype = dtype;
            c.call.redop = op;
            c.call.count = kind == CollKind::reduce_scatter ? std::max<int64_t>(1, count / rank.size) : count;
            c.call.root = kind == CollKind::reduce ? static_cast<int>(count) % rank.size : 0;
            c.call.rank_order = true;
            c.pattern = Pattern::real;
            c.in_arena = in_arena;
            failed += run_case(rank, all, c);
          }
        }
      }
    }
  }
  return failed;
}

// Integers wrap, and are exact in all 64 bits.
std::string run_edges(Rank& rank) {
  Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
  std::string failed;
  for (CollKind kind : kReductions) {
    for (Dtype dtype : {Dtype::i64, Dtype::i32, Dtype::i8, Dtype::u8}) {
      for (RedOp op : {RedOp::sum, RedOp::prod, RedOp::min, RedOp::max}) {
        Case c;
        c.call.kind = kind;
        c.call.dtype = dtype;
        c.call.redop = op;
        c.call.count = 501;
        c.pattern = Pattern::edge;
        failed += run_case(rank, all, c);
      }
    }
  }
  return failed;
}

std::string run_repeats(Rank& rank) {
  Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
  for (int64_t count : {1000, 100000}) {
    Bytes input = make_input(Dtype::f32, Pattern::real, rank.index, count, 99), first;
    for (int repeat = 0; repeat < (count > 1000 ? 10 : 100); ++repeat) {
      Bytes output(input.size());
      CollCall call;
      call.kind = CollKind::all_reduce;
      call.send = input.data();
      call.recv = output.data();
      call.count = count;
      all.run(call);
      if (repeat == 0) {
        first = output;
        // A bootstrap carries at most 8 KiB, so compare a hash.
        std::string hash = std::to_string(std::hash<std::string>()(std::string(output.begin(), output.end())));
        for (const std::string& other : rank.bootstrap.all_gather(hash)) {
          if (other != hash) return fmt::format("{} elements: ranks have different bits", count);
        }
      }
      if (output != first) return fmt::format("{} elements: repeat {} has other bits", count, repeat);
    }
  }
  return "";
}

// Where a communicator permits a call in parts, the parts are bitwise identical to the whole.
std::string run_parts(Rank& rank) {
  constexpr int64_t kCount = 150000, kPart = 64000;
  Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
  std::string failed;
  for (const CollKind kind : {CollKind::all_reduce, CollKind::reduce}) {
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      const Bytes input = make_input(dtype, Pattern::real, rank.index, kCount, 99);
      Bytes at_once(input.size()), in_parts(input.size());
      CollCall whole;
      whole.kind = kind;
      whole.dtype = dtype;
      whole.send = input.data();
      whole.recv = at_once.data();
      whole.count = kCount;
      CollCall part = whole;
      part.count = kPart;
      if (!all.divides(whole, part)) continue;
      all.run(whole);
      for (int64_t begin = 0; begin < kCount; begin += kPart) {
        part.count = std::min(kPart, kCount - begin);
        part.send = input.data() + begin * dtype_bytes(dtype);
        part.recv = in_parts.data() + begin * dtype_bytes(dtype);
        all.run(part);
      }
      if (in_parts != at_once) failed += fmt::format("{}: its parts have other bits\n", describe(whole));
    }
  }
  return failed;
}

class Bitwise : public ::testing::TestWithParam<int> {};
TEST_P(Bitwise, RankOrderIsTheReference) { EXPECT_EQ(failures(run_connected(GetParam(), run_rank_order)), ""); }
TEST_P(Bitwise, IntegersWrap) { EXPECT_EQ(failures(run_connected(GetParam(), run_edges)), ""); }
TEST_P(Bitwise, PartsAreTheWhole) { EXPECT_EQ(failures(run_connected(GetParam(), run_parts)), ""); }
TEST_P(Bitwise, SameOnAllRanksAndEveryTime) { EXPECT_EQ(failures(run_connected(GetParam(), run_repeats)), ""); }
INSTANTIATE_TEST_SUITE_P(Ranks, Bitwise, ::testing::Values(2, 3, 8));

}  // namespace
}  // namespace prun::testing
