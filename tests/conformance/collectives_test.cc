// Item 3: every collective, dtype and operation, in and out of place, with counts at slice boundaries. Every case
// includes item 12: guards around buffers, unchanged inputs.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "tests/conformance/case.h"
#include "tests/conformance/rank_bodies.h"

namespace prun::testing {
namespace {

constexpr CollKind kKinds[] = {CollKind::all_reduce, CollKind::all_gather, CollKind::reduce_scatter,
                               CollKind::broadcast,  CollKind::reduce,     CollKind::gather,
                               CollKind::scatter,    CollKind::all_to_all};
constexpr Dtype kDtypes[] = {Dtype::f64, Dtype::f32, Dtype::bf16, Dtype::f16,
                             Dtype::i64, Dtype::i32, Dtype::i8,   Dtype::u8};
constexpr RedOp kOps[] = {RedOp::sum, RedOp::prod, RedOp::min, RedOp::max, RedOp::avg};

bool reduces(CollKind kind) {
  return kind == CollKind::all_reduce || kind == CollKind::reduce || kind == CollKind::reduce_scatter;
}
bool rooted(CollKind kind) {
  return kind == CollKind::reduce || kind == CollKind::broadcast || kind == CollKind::gather ||
         kind == CollKind::scatter;
}

// Returns the tolerance of an average whose sum is exact: one rounding more or less.
double tolerance_of(const CollCall& call) {
  if (call.redop != RedOp::avg || !reduces(call.kind)) return 0;
  return call.dtype == Dtype::bf16 ? 0.008 : call.dtype == Dtype::f16 ? 0.001 : call.dtype == Dtype::f32 ? 2e-7 : 4e-16;
}

// Rank counts far above the number of cores: only a part of the cases runs in CI.
bool thinned(int size) { return !suite().whole && (size == 7 || size == 16); }

std::vector<int64_t> counts(int size) {
  std::vector<int64_t> all = {0, 1, size - 1, size + 1, 1000, 5003};
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

// Runs every kind x dtype x op x count x place; roots and kinds of memory alternate, so that each occurs with all
// kinds.
std::string run_grid(Rank& rank) {
  Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
  std::string failed;
  int turn = 0;
  for (CollKind kind : kKinds) {
    for (Dtype dtype : kDtypes) {
      for (RedOp op : kOps) {
        if (!reduces(kind) && op != RedOp::sum) continue;
        if (thinned(rank.size) && dtype != Dtype::bf16) continue;
        for (int64_t count : counts(rank.size)) {
          if (count > 1000 && op != RedOp::sum) continue;
          for (int place = 0; place < (has_in_place(kind) ? 2 : 1); ++place) {
            ++turn;
            Case c;
            c.call.kind = kind;
            c.call.dtype = dtype;
            c.call.redop = op;
            c.call.count = count;
            c.call.root = rooted(kind) ? turn % rank.size : 0;
            c.in_place = place == 1;
            c.in_arena = turn / 2 % 2 == 0;
            c.misaligned = turn % 5 == 0 ? 1 : 0;
            c.pattern = pattern_for(op);
            c.tolerance = tolerance_of(c.call);
            failed += run_case(rank, all, c);
            if (failed.size() > 1500) return failed;
          }
        }
      }
    }
  }
  return failed;
}

// Large enough for several chunks per slice, with a short last slice.
std::string run_large(Rank& rank) {
  Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
  std::string failed;
  int turn = 0;
  for (CollKind kind : {CollKind::all_reduce, CollKind::reduce_scatter, CollKind::reduce}) {
    Case c;
    c.call.kind = kind;
    c.call.dtype = Dtype::bf16;
    c.call.redop = RedOp::min;
    c.call.count = kind == CollKind::reduce_scatter ? 50021 / rank.size : 50021;
    c.pattern = Pattern::nans;
    failed += run_case(rank, all, c);
  }
  for (CollKind kind : kKinds) {
    for (Dtype dtype : {Dtype::f32, Dtype::bf16}) {
      bool whole = kind == CollKind::all_reduce || kind == CollKind::broadcast || kind == CollKind::reduce;
      Case c;
      c.call.kind = kind;
      c.call.dtype = dtype;
      c.call.count = whole ? 400003 : 400003 / rank.size;
      c.call.root = rooted(kind) ? rank.size - 1 : 0;
      c.in_place = has_in_place(kind) && turn++ % 2 == 0;
      c.in_arena = true;
      failed += run_case(rank, all, c);
    }
  }
  return failed;
}

std::string run_sizes(Rank& rank) {
  Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
  std::string failed;
  int turn = 0;
  for (CollKind kind : kKinds) {
    for (RedOp op : {RedOp::sum, RedOp::avg, RedOp::max}) {
      for (int64_t count : {0, 3, 1000, 170001}) {
        if (op == RedOp::max && (count > 1000 || !reduces(kind))) continue;
        Case c;
        c.call.kind = kind;
        c.call.redop = op;
        c.pattern = pattern_for(op);
        c.call.count = count / (kind == CollKind::all_reduce ? 1 : rank.size);
        c.call.root = rooted(kind) ? turn % rank.size : 0;
        c.in_place = has_in_place(kind) && turn++ % 2 == 0;
        c.tolerance = tolerance_of(c.call);
        failed += run_case(rank, all, c);
      }
    }
  }
  return failed;
}

// Slices of one chunk and of several, with a short last one, in and out of place.
std::string run_turns(Rank& rank) {
  Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
  std::string failed;
  for (RedOp op : {RedOp::sum, RedOp::avg, RedOp::max}) {
    if (rank.size > 8 && op != RedOp::sum) break;  // every rank computes the inputs of all: 16 ranks take a minute
    for (int64_t count : {131072, 280001}) {
      for (bool in_place : {false, true}) {
        Case c;
        c.call.kind = CollKind::reduce_scatter;
        c.call.redop = op;
        c.pattern = pattern_for(op);
        c.call.count = count;
        c.in_place = in_place;
        c.tolerance = tolerance_of(c.call);
        failed += run_case(rank, all, c);
      }
    }
  }
  return failed;
}

std::string run_vectors(Rank& rank) {
  std::string failed;
  for (int64_t scale : {0, 1, 700}) failed += counts_per_member(rank, scale);
  return failed;
}

class Collectives : public ::testing::TestWithParam<int> {};

TEST_P(Collectives, GivesWhatTheReferenceGives) { EXPECT_EQ(failures(run_connected(GetParam(), run_grid)), ""); }
TEST_P(Collectives, LargeOnesInChunks) {
  if (thinned(GetParam())) GTEST_SKIP() << "large counts on 7 and 16 ranks: only in the whole suite";
  EXPECT_EQ(failures(run_connected(GetParam(), run_large)), "");
}
TEST_P(Collectives, WithCountsPerMember) { EXPECT_EQ(failures(run_connected(GetParam(), run_vectors)), ""); }

// Algorithms that the table would not choose at these sizes.
TEST_P(Collectives, ByEveryAlgorithm) {
  if (thinned(GetParam())) GTEST_SKIP() << "every algorithm on 7 and 16 ranks: only in the whole suite";
  for (const char* algorithm :
       {"gather", "bruck", "tree", "direct", "ring", "chain", "doubling", "halving", "pairwise"}) {
    ConnectedJob job;
    job.local.ranks = GetParam();
    job.algorithm = algorithm;
    EXPECT_EQ(failures(run_connected(job, run_sizes)), "") << algorithm;
  }
}

TEST_P(Collectives, ReduceScatterInTurns) {
  if (thinned(GetParam())) GTEST_SKIP() << "large counts on 7 and 16 ranks: only in the whole suite";
  ConnectedJob job;
  job.local.ranks = GetParam();
  job.algorithm = "pairwise";
  EXPECT_EQ(failures(run_connected(job, run_turns)), "");
}

TEST_P(Collectives, BarrierHoldsEverybodyBack) {
  EXPECT_EQ(failures(run_connected(GetParam(),
                                   [](Rank& rank) -> std::string {
                                     Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
                                     for (int round = 0; round < 20; ++round) {
                                       // The last rank to arrive records the time: no rank may leave before that.
                                       int late = round % rank.size;
                                       double arrived = rank.index == late ? (usleep(300), now_s()) : 0;
                                       CollCall call;
                                       all.run(call);
                                       double left = now_s(), last = 0;
                                       call.kind = CollKind::broadcast;
                                       call.dtype = Dtype::f64;
                                       call.root = late;
                                       call.count = 1;
                                       call.send = &arrived;
                                       call.recv = &last;
                                       all.run(call);
                                       if (left < last)
                                         return fmt::format("left the barrier {} us before rank {} came",
                                                            (last - left) * 1e6, late);
                                     }
                                     return "";
                                   })),
            "");
}

INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Values(1, 2, 3, 4, 5, 7, 8, 16));

}  // namespace
}  // namespace prun::testing
