// Item 12: no collective writes outside its output or into an input, at odd offsets and sizes.
#include <gtest/gtest.h>

#include "tests/conformance/case.h"

namespace prun::testing {
namespace {

constexpr CollKind kKinds[] = {CollKind::all_reduce, CollKind::all_gather, CollKind::reduce_scatter,
                               CollKind::broadcast,  CollKind::reduce,     CollKind::gather,
                               CollKind::scatter,    CollKind::all_to_all};

std::string run_guarded(Rank& rank) {
  Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
  std::string failed;
  for (CollKind kind : kKinds) {
    for (int64_t count : {1, 5, 63, 4097, 30011}) {
      for (bool in_arena : {false, true}) {
        for (int64_t misaligned : {0, 1, 3}) {
          Case c;
          c.call.kind = kind;
          c.call.dtype = misaligned == 3 ? Dtype::u8 : Dtype::f32;
          c.call.count = count;
          c.call.root = 0;
          c.in_arena = in_arena;
          c.misaligned = misaligned;
          failed += run_case(rank, all, c);
        }
      }
    }
  }
  return failed;
}

TEST(Guards, NothingBesideTheBuffersIsWritten) {
  for (int ranks : {2, 3}) EXPECT_EQ(failures(run_connected(ranks, run_guarded)), "");
}

}  // namespace
}  // namespace prun::testing
