// The verdict on a failed job, from reports of ranks: which report outweighs which, and how far a hang is traced.
#include "launch/blame.h"

#include <gtest/gtest.h>

namespace prun {
namespace {

constexpr auto kNow = Clock::time_point(std::chrono::seconds(1000));

Failure report(int rank, Weight weight, int code, int peer = -1) {
  Failure failure;
  failure.rank = rank;
  failure.weight = weight;
  failure.code = code;
  failure.peer = peer;
  failure.what = "rank " + std::to_string(rank) + " told";
  return failure;
}

Failure judge(const std::vector<Failure>& reports, const std::vector<RankWaits>& waits = {}, int returned = -1) {
  Blame blame;
  for (const Failure& each : reports) blame.add(each, kNow);
  blame.add(waits);
  return blame.judge([&](int rank) { return rank == returned; }, "plan.lua");
}

RankWaits at(int rank, std::vector<int> awaited, char state = 'S') {
  RankWaits waits;
  waits.rank = rank;
  waits.awaited = std::move(awaited);
  waits.state = state;
  waits.name = {.rank = rank, .pid = 7, .host = "host"};
  return waits;
}

const Failure kLeft = report(0, Weight::bystander, 14), kSilent = report(1, Weight::silent_exit, 10),
              kLost1 = report(2, Weight::symptom, 14, 1), kLost2 = report(1, Weight::symptom, 14, 2),
              kJoin = report(3, Weight::symptom, 13), kWaits = report(4, Weight::waited, 11),
              kCorrupt = report(5, Weight::observed, 17), kMismatch = report(6, Weight::observed, 12),
              kKilled = report(1, Weight::killed, 10);

struct Row {
  const char* name;
  std::vector<Failure> reports;
  int rank, code;
};
void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

class Weighed : public testing::TestWithParam<Row> {};

TEST_P(Weighed, TheCauseIsFound) {
  const Row& row = GetParam();
  const Failure cause = judge(row.reports);
  EXPECT_EQ(cause.rank, row.rank) << cause.what;
  EXPECT_EQ(cause.code, row.code) << cause.what;
}

INSTANTIATE_TEST_SUITE_P(
    All, Weighed,
    testing::Values(Row{"BystanderAlone", {kLeft}, 0, 14}, Row{"SilentExitBeforeBystander", {kLeft, kSilent}, 1, 10},
                    Row{"SymptomBeforeSilentExit", {kSilent, kJoin}, 3, 13},
                    Row{"WhoIsLostHasGoneSilently", {kSilent, kLost1}, 1, 10},
                    Row{"WhoIsLostWasKilled", {kLost1, kKilled}, 1, 10},
                    Row{"ObservationBeforeSymptom", {kLost1, kCorrupt}, 5, 17},
                    Row{"ObservationBeforeWaiting", {kWaits, kMismatch}, 6, 12},
                    Row{"DeathBeforeObservation", {kCorrupt, kKilled}, 1, 10},
                    Row{"FirstOfEqualWeight", {kCorrupt, kMismatch}, 5, 17}, Row{"LostPeerThatLives", {kLost1}, 2, 17},
                    Row{"BothEndsOfALink", {kLost2, kLost1}, 1, 17},
                    Row{"AtSecondHand", {report(7, Weight::symptom, 14, 2), kLost1, kLost2}, 2, 17},
                    Row{"LostToARankWithAnError", {kLost1, report(1, Weight::observed, 20)}, 1, 20}),
    [](const auto& row) { return row.param.name; });

TEST(Blame, ALostLinkIsNamedByItsEnds) {
  const Failure link = judge({kLost1});
  EXPECT_EQ(link.what, "the link between rank 2 and rank 1 is lost; both still ran");
  EXPECT_EQ(link.evidence, "rank 2 told");
}

TEST(Blame, APeerThatHasReturnedIsNoLostLink) { EXPECT_EQ(judge({kLost1}, {}, 1).code, 14); }

TEST(Blame, WaitsForBetter) {
  Blame blame;
  EXPECT_EQ(blame.due(), Clock::time_point::max());
  blame.add(kLeft, kNow);
  EXPECT_EQ(blame.due(), kNow + settles_in(Weight::bystander));
  blame.add(kLost1, kNow);
  EXPECT_EQ(blame.due(), kNow + settles_in(Weight::symptom));
  blame.add(kSilent, kNow + std::chrono::milliseconds(50));
  EXPECT_EQ(blame.due(), kNow + settles_in(Weight::symptom)) << "what is less does not put it off";
  blame.add(kKilled, kNow);
  EXPECT_EQ(blame.due(), kNow);
}

// A mesh of 2 x 2: rows {0, 1} and {2, 3}, columns {0, 2} and {1, 3}.
struct Hang {
  const char* name;
  std::vector<RankWaits> ranks;
  int told;
  std::optional<int> culprit;
  std::vector<int> path;
};
void PrintTo(const Hang& hang, std::ostream* out) { *out << hang.name; }

class Followed : public testing::TestWithParam<Hang> {};

TEST_P(Followed, ToTheEnd) {
  const Hang& hang = GetParam();
  std::vector<int> path;
  EXPECT_EQ(who_holds_up(hang.told, hang.ranks, &path), hang.culprit);
  EXPECT_EQ(path, hang.path);
}

INSTANTIATE_TEST_SUITE_P(
    All, Followed,
    testing::Values(
        Hang{"Itself", {at(0, {})}, 0, 0, {0}},
        Hang{"OverTwoAxes", {at(0, {1}), at(1, {3}), at(2, {3}), at(3, {}, 'T')}, 0, 3, {0, 1, 3}},
        Hang{"StoppedBeforeIdle", {at(0, {1, 2}), at(1, {}), at(2, {3}), at(3, {}, 'T')}, 0, 3, {0, 2, 3}},
        Hang{"StoppedInTheMidstOfAWait", {at(0, {1}), at(1, {2}, 'T'), at(2, {3}), at(3, {2})}, 0, 1, {0, 1}},
        Hang{"NearestIdle", {at(0, {1}), at(1, {2}), at(2, {}), at(3, {})}, 0, 2, {0, 1, 2}},
        Hang{"EachOther", {at(0, {1}), at(1, {0})}, 0, std::nullopt, {0, 1, 0}},
        Hang{"EachOtherBesideAStoppedOne", {at(0, {1}), at(1, {0}), at(2, {}, 'T')}, 0, 2, {}},
        Hang{"LauncherThatDoesNotAnswer", {at(0, {1}), at(1, {5})}, 0, std::nullopt, {0, 1, 5}}),
    [](const auto& hang) { return hang.param.name; });

TEST(Blame, AHangNamesWhoHoldsItUp) {
  const Failure hang = judge({kWaits}, {at(4, {1}), at(1, {3}), at(3, {}, 'T')});
  EXPECT_EQ(hang.code, 11);
  EXPECT_EQ(hang.what, "rank 3 is stopped (SIGSTOP, Ctrl-Z or a debugger): the others wait for it");
  EXPECT_EQ(hang.who, "rank 3 on host, pid 7");
  EXPECT_EQ(hang.evidence, "rank 4 waits for 1, 1 for 3; rank 4 told");
}

TEST(Blame, WhoLookedForItselfKeepsItsWords) {
  EXPECT_EQ(judge({kWaits}, {at(4, {}), at(3, {}, 'T')}).what, "rank 4 told");
}

}  // namespace
}  // namespace prun
