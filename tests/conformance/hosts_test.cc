// Groups over several hosts, one transport inside and one between: a short grid of collectives, bitwise reductions, and
// the errors when ranks differ, die or stop on another host.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <thread>

#include "comm/transport/host_map.h"
#include "comm/transport/transport_session.h"
#include "tests/conformance/case.h"
#include "tests/conformance/rank_bodies.h"
#include "tests/conformance/several_hosts.h"

namespace prun::testing {
namespace {

// Ranks per host, and whether hosts are namespaces. Without permission (root, iproute2) made-up hosts replace them, and
// the test reports it.
struct Setting {
  std::vector<int> ranks_of_host;
  bool real = false;
};
void PrintTo(const Setting& s, std::ostream* out) {
  *out << fmt::format("{}{}", fmt::join(s.ranks_of_host, "+"), s.real ? " in namespaces" : "");
}

const Namespaces* namespaces() {
  static const std::unique_ptr<Namespaces> cable = [] {
    if (Namespaces::permitted()) return std::make_unique<Namespaces>();
    fprintf(stderr,
            "network namespaces are not permitted here: hosts are made up, and their ranks talk over AF_UNIX\n");
    return std::unique_ptr<Namespaces>();
  }();
  return cable.get();
}

HostsJob job_of(const Setting& setting) {
  HostsJob job;
  job.ranks_of_host = setting.ranks_of_host;
  job.namespaces = setting.real ? namespaces() : nullptr;
  return job;
}

constexpr CollKind kKinds[] = {CollKind::all_reduce, CollKind::all_gather, CollKind::reduce_scatter,
                               CollKind::broadcast,  CollKind::reduce,     CollKind::gather,
                               CollKind::scatter,    CollKind::all_to_all};

bool reduces(CollKind kind) {
  return kind == CollKind::all_reduce || kind == CollKind::reduce || kind == CollKind::reduce_scatter;
}
bool whole(CollKind kind) {
  return kind == CollKind::all_reduce || kind == CollKind::reduce || kind == CollKind::broadcast;
}
double tolerance_of(const CollCall& call) {
  if (call.redop != RedOp::avg || !reduces(call.kind)) return 0;
  return call.dtype == Dtype::bf16 ? 0.008 : call.dtype == Dtype::f32 ? 2e-7 : 4e-16;
}

constexpr size_t kEnough = 1500;  // characters of error text

// Runs every kind x type x operation x count; roots, places and kinds of memory alternate. Brief: two types, no large
// counts.
std::string run_grid(Rank& rank, const std::vector<int>& members, bool brief = false) {
  if (std::find(members.begin(), members.end(), rank.index) == members.end()) return "";
  Communicator& group = rank.world.communicator(members, 0);
  const int n = group.size();
  std::string failed;
  int turn = 0;
  for (CollKind kind : kKinds) {
    for (Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::i32, Dtype::u8}) {
      for (RedOp op : {RedOp::sum, RedOp::avg, RedOp::max, RedOp::prod}) {
        if (!reduces(kind) && op != RedOp::sum) continue;
        for (int64_t count : {0, 1, n - 1, n + 1, 1003, 70001, 700001}) {
          // Large counts test slices and pieces, not types.
          if (count > 1003 && (dtype != Dtype::f32 || op == RedOp::max)) continue;
          if (count > 70001 && op != RedOp::sum) continue;
          if (brief && (count > 70001 || (dtype != Dtype::f32 && dtype != Dtype::bf16) || op == RedOp::prod)) continue;
          ++turn;
          Case c;
          c.call.kind = kind;
          c.call.dtype = dtype;
          c.call.redop = op;
          c.call.count = whole(kind) ? count : count > 1003 ? count / n : count;
          c.call.root = whole(kind) && kind != CollKind::all_reduce             ? turn % n
                        : kind >= CollKind::gather && kind <= CollKind::scatter ? turn % n
                                                                                : 0;
          c.in_place = has_in_place(kind) && turn % 3 == 0;
          c.in_arena = turn / 2 % 2 == 0;
          c.misaligned = turn % 5 == 0 ? 1 : 0;
          c.pattern = pattern_for(op);
          c.tolerance = tolerance_of(c.call);
          failed += run_case(rank, group, c);
          if (failed.size() > kEnough) return failed.substr(0, kEnough);
        }
      }
    }
  }
  return failed;
}

std::string run_rank_order(Rank& rank, const std::vector<int>& members) {
  Communicator& group = rank.world.communicator(members, 0);
  const int n = group.size();
  std::string failed;
  int turn = 0;
  for (CollKind kind : {CollKind::all_reduce, CollKind::reduce_scatter, CollKind::reduce}) {
    for (Dtype dtype : {Dtype::f32, Dtype::f64, Dtype::bf16}) {
      for (RedOp op : {RedOp::sum, RedOp::avg, RedOp::prod}) {
        for (int64_t count : {1, 7, 1000, 66000, 900000}) {
          if (count > 1000 && (op == RedOp::prod || dtype != Dtype::f32)) continue;
          if (count > 66000 && (n < 4 || op != RedOp::sum)) continue;
          Case c;
          c.call.kind = kind;
          c.call.dtype = dtype;
          c.call.redop = op;
          c.call.count = kind == CollKind::reduce_scatter ? std::max<int64_t>(1, count / n) : count;
          c.call.root = kind == CollKind::reduce ? turn % n : 0;
          c.call.rank_order = true;
          c.pattern = Pattern::real;
          c.in_arena = turn++ % 2 == 0;
          c.in_place = turn % 3 == 0;
          failed += run_case(rank, group, c);
          if (failed.size() > kEnough) return failed.substr(0, kEnough);
        }
      }
    }
  }
  return failed;
}

// all_gather_v with empty members, all_to_all_v, and a ring of messages.
std::string run_counted(Rank& rank) {
  Communicator& all = rank.world.communicator(all_ranks(rank.size), 0);
  const int n = rank.size, me = rank.index;
  for (int64_t scale : {0, 1, 30000})
    if (const std::string wrong = counts_per_member(rank, scale); !wrong.empty()) return wrong;
  for (int64_t bytes : {8, 3 << 20}) {
    std::vector<char> out(static_cast<size_t>(bytes), static_cast<char>(me)), in(out.size());
    for (int step : {1, n - 1}) {
      all.send_recv((me + step) % n, out.data(), bytes, (me + n - step) % n, in.data(), bytes);
      if (in != std::vector<char>(in.size(), static_cast<char>((me + n - step) % n))) return "a ring of messages";
    }
  }
  return "";
}

class SeveralHosts : public ::testing::TestWithParam<Setting> {};

TEST_P(SeveralHosts, CollectivesGiveWhatTheReferenceGives) {
  EXPECT_EQ(failures(run_on_hosts(job_of(GetParam()), [](Rank& rank) { return run_grid(rank, all_ranks(rank.size)); })),
            "");
}
TEST_P(SeveralHosts, RankOrderIsTheReference) {
  EXPECT_EQ(
      failures(run_on_hosts(job_of(GetParam()), [](Rank& rank) { return run_rank_order(rank, all_ranks(rank.size)); })),
      "");
}
TEST_P(SeveralHosts, CountsPerMemberAndMessages) {
  EXPECT_EQ(failures(run_on_hosts(job_of(GetParam()), run_counted)), "");
}

INSTANTIATE_TEST_SUITE_P(Hosts, SeveralHosts,
                         ::testing::Values(Setting{{4, 4}, true}, Setting{{3, 1, 2}}, Setting{{2, 2, 2}}));

// Members in an order that alternates between hosts, in reverse, and subsets; groups within one host, and with one rank
// per host.
TEST(HostsGroups, InAnyOrder) {
  EXPECT_EQ(failures(run_on_hosts(job_of({{2, 2}, true}),
                                  [](Rank& rank) -> std::string {
                                    std::string failed;
                                    for (const std::vector<int>& members : std::vector<std::vector<int>>{
                                             {0, 2, 1, 3}, {3, 2, 1, 0}, {0, 1, 3}, {0, 1}, {1, 2}}) {
                                      if (std::find(members.begin(), members.end(), rank.index) == members.end())
                                        continue;
                                      failed += run_grid(rank, members, true) + run_rank_order(rank, members);
                                    }
                                    return failed;
                                  })),
            "");
}

TEST(HostsGroups, ByEveryAlgorithm) {
  for (const char* algorithm : {"gather", "direct", "ring"}) {
    HostsJob job = job_of({{2, 2}});
    job.algorithm = algorithm;
    EXPECT_EQ(failures(run_on_hosts(job, [](Rank& rank) { return run_grid(rank, all_ranks(rank.size), true); })), "")
        << algorithm;
  }
}

// More than any transport sends without credit from its receiver, while ranks mostly wait inside their hosts.
TEST(HostsGroups, ManySmallOnes) {
  EXPECT_EQ(failures(run_on_hosts(job_of({{2, 2}, true}),
                                  [](Rank& rank) -> std::string {
                                    Communicator& all = rank.world.communicator(all_ranks(4), 0);
                                    for (int i = 0; i < 3000; ++i) all_reduce(all, 4);
                                    return "";
                                  })),
            "");
}

TEST(HostsGroups, BarrierHoldsEverybodyBack) {
  EXPECT_EQ(failures(run_on_hosts(job_of({{2, 2}, true}),
                                  [](Rank& rank) -> std::string {
                                    Communicator& all = rank.world.communicator(all_ranks(4), 0);
                                    for (int late = 0; late < 4; ++late) {
                                      double arrived = rank.index == late ? (usleep(3000), now_s()) : 0;
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
                                      if (left < last) return fmt::format("left the barrier before rank {} came", late);
                                    }
                                    return "";
                                  })),
            "");
}

// A group's transport is that of its ranks' hosts: traffic inside a host uses no other.
TEST(HostsChoice, AutoTakesOneTransportInsideAndOneBetween) {
  for (bool real : {false, true}) {
    EXPECT_EQ(
        failures(run_on_hosts(
            job_of({{2, 2}, real}),
            [](Rank& rank) { return rank.world.transport_name() == "shm+socket" ? "" : rank.world.transport_name(); })),
        "");
  }
  EXPECT_EQ(failures(run_on_hosts(
                job_of({{1, 1}}),
                [](Rank& rank) { return rank.world.transport_name() == "socket" ? "" : rank.world.transport_name(); })),
            "");
}

// Two launcher nodes on one machine are one host.
TEST(HostsChoice, HostsAreMeasured) {
  LocalJob job;
  job.ranks = 4;
  EXPECT_EQ(failures(run_ranks(job,
                               [](LocalBootstrap& bootstrap) -> std::string {
                                 WorldOptions options = suite().options(bootstrap);
                                 options.transport = "auto";
                                 options.local_ranks = 2;
                                 options.local_rank %= 2;
                                 auto world = World::open(options, bootstrap);
                                 world->connect();
                                 all_reduce(world->communicator(all_ranks(4), 0), 10);
                                 bootstrap.barrier();
                                 return world->transport_name() == "shm" ? "" : world->transport_name();
                               })),
            "");
}

TEST(HostsChoice, ATransportOfOneHostIsRefusedOnTwo) {
  HostsJob job = job_of({{2, 2}});
  job.transport = "shm";
  job.local.abort_on_death = false;
  for (const RankReport& report : run_on_hosts(job, [](Rank&) { return "opened"; })) {
    EXPECT_EQ(report.text,
              "Exit 2: transport shm reaches ranks of one host only, and these are on 2: ranks 0-1 | 2-3; use auto, or "
              "shm+NAME for another one between hosts");
  }
}

TEST(HostsChoice, OptionsMayNameTheirTransport) {
  EXPECT_EQ(failures(run_on_hosts(job_of({{2, 2}}), [](Rank&) { return ""; })), "");
  LocalJob local;
  local.ranks = 2;
  local.abort_on_death = false;
  auto refused = [&](const std::string& options_text) {
    return run_ranks(local,
                     [&](LocalBootstrap& bootstrap) -> std::string {
                       WorldOptions options = suite().options(bootstrap);
                       options.transport = "socket";
                       options.transport_options = options_text;
                       World::open(options, bootstrap);
                       return "opened";
                     })[0]
        .text;
  };
  EXPECT_EQ(refused("shm.small=64,socket.crc=1,eager=4096"), "opened");
  EXPECT_EQ(refused("sokcet.crc=1").find("Exit 2: unknown transport 'sokcet' (did you mean 'socket'?)"), 0u);
  EXPECT_EQ(refused("socket.crcs=1"), "Exit 2: transport socket: socket has no option 'crcs' (did you mean 'crc'?)");
}

// Each rank of another host differs once.
TEST(HostsFaults, CallsThatDifferAreNamed) {
  struct Difference {
    CollKind common, deviant;
    int64_t count;
    const char *common_text, *deviant_text;
  };
  for (const Difference& d :
       {Difference{CollKind::all_reduce, CollKind::all_reduce, 101, "all_reduce f32[100] sum",
                   "all_reduce f32[101] sum"},
        Difference{CollKind::all_gather, CollKind::broadcast, 100, "all_gather f32[100]", "broadcast f32[100] root 0"},
        Difference{CollKind::reduce_scatter, CollKind::barrier, 100, "reduce_scatter f32[100] sum", "barrier"},
        Difference{CollKind::all_reduce, CollKind::all_reduce, 70100, "all_reduce f32[100] sum",
                   "all_reduce f32[70100] sum"}}) {
    for (int deviant : {1, 2, 3}) {
      HostsJob job = job_of({{2, 2}});
      job.deadline_s = 10;
      auto reports = run_on_hosts(job, [&](Rank& rank) -> std::string {
        Communicator& all = rank.world.communicator(all_ranks(4), 0);
        std::vector<float> a(300000), b(300000);
        all_reduce(all, 10);
        CollCall call;
        call.kind = rank.index == deviant ? d.deviant : d.common;
        call.count = rank.index == deviant ? d.count : 100;
        call.send = a.data();
        call.recv = b.data();
        all.run(call);
        all_reduce(all, 10);  // reports the error to a rank that finished before it could be detected
        return "was given data";
      });
      const std::string texts = failures(reports);
      EXPECT_EQ(texts.find("was given data"), std::string::npos) << texts;
      EXPECT_NE(texts.find("Exit 12: "), std::string::npos) << texts;
      EXPECT_NE(texts.find(d.common_text), std::string::npos) << texts;
      EXPECT_NE(texts.find(fmt::format("rank {} called {}", deviant, d.deviant_text)), std::string::npos) << texts;
      for (const RankReport& report : reports) EXPECT_LT(report.seconds, 5) << texts;
    }
  }
}

class KilledElsewhere : public ::testing::TestWithParam<int64_t> {};
TEST_P(KilledElsewhere, IsNamed) {
  for (bool told : {true, false}) {
    HostsJob job = job_of({{2, 2}, true});
    job.local.abort_on_death = told;
    job.local.timeout_s = 15;
    job.deadline_s = 2;
    auto reports = run_on_hosts(job, [](Rank& rank) -> std::string {
      Communicator& all = rank.world.communicator(all_ranks(4), 0);
      for (int i = 0;; ++i) {
        if (rank.index == 3 && i == 5) kill(getpid(), SIGKILL);
        all_reduce(all, GetParam(), i % 2 == 0);
      }
    });
    EXPECT_EQ(reports[3].status, 128 + SIGKILL);
    int named = 0;
    for (size_t r = 0; r < 3; ++r) {
      named += reports[r].text.find("rank 3") != std::string::npos ? 1 : 0;
      EXPECT_TRUE(!told || reports[r].text.find("rank 3") != std::string::npos)
          << "rank " << r << ": " << reports[r].text;
      EXPECT_LT(reports[r].seconds - reports[3].seconds, job.deadline_s + 1) << reports[r].text;
    }
    // Rank 2 shares its host, rank 1 its position; rank 0 may only report the rank that it waits for.
    EXPECT_GE(named, 1) << failures(reports);
    EXPECT_NE(reports[2].text.find("rank 3"), std::string::npos) << reports[2].text;
  }
}
INSTANTIATE_TEST_SUITE_P(InAnAllReduce, KilledElsewhere, ::testing::Values(10, 200000));

TEST(HostsFaults, AStoppedRankIsAHang) {
  HostsJob job = job_of({{2, 2}, true});
  job.deadline_s = 1;
  job.local.timeout_s = job.deadline_s + 2;
  auto reports = run_on_hosts(job, [](Rank& rank) -> std::string {
    Communicator& all = rank.world.communicator(all_ranks(4), 0);
    all_reduce(all, 10);
    if (rank.index == 2) raise(SIGSTOP);
    all_reduce(all, 10);
    return "went on";
  });
  const std::string texts = failures(reports);
  EXPECT_NE(texts.find("no progress for 1.0 s, waiting for rank"), std::string::npos) << texts;
  EXPECT_NE(texts.find("waiting for rank 2"), std::string::npos) << texts;
  EXPECT_EQ(texts.find("went on"), std::string::npos) << texts;
  for (int r : {0, 1, 3}) EXPECT_LT(reports[static_cast<size_t>(r)].seconds, job.deadline_s + 1.5) << texts;
}

TEST(HostsFaults, AbortEndsWhatIsUnderWay) {
  HostsJob job = job_of({{2, 2}, true});
  job.local.abort_on_death = false;
  EXPECT_EQ(failures(run_on_hosts(job, [](Rank& rank) { return aborted_under_way(rank, 2, 100000); })), "");
}

TEST(Hosts, AreGroupedByWhatTheyCallThemselves) {
  HostMap hosts = group_by_host({"a", "a", "b", "a", "b"});
  EXPECT_EQ(hosts.text(), "ranks 0-1, 3 | 2, 4");
  EXPECT_EQ(hosts.with(3), (std::vector<int>{0, 1, 3}));
  EXPECT_FALSE(hosts.same(1, 2));
  EXPECT_NE(this_host().find(" net "), std::string::npos);
}

TEST(Hosts, RanksOfMessagesAreFilledIn) {
  const std::vector<int> members = {4, 5, 6, 7};
  std::vector<int> named;
  EXPECT_EQ(fill_ranks("waiting for rank #1", members, &named), "waiting for rank 5");
  EXPECT_EQ(named, std::vector<int>{5});
  EXPECT_EQ(fill_ranks("ranks #0, #2, #3 and rank #1 (pid 2)", members), "ranks 4, 6, 7 and rank 5 (pid 2)");
  EXPECT_EQ(fill_ranks("#", members), "#");
  EXPECT_EQ(fill_ranks("rank #9, #1 of 2 ranks left, not rank 3", members), "rank #9, 5 of 2 ranks left, not rank 3");
}

}  // namespace
}  // namespace prun::testing
