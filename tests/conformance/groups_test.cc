// Items 5 and 6: groups of every shape, many at once, and several active in several threads.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>
#include <thread>

#include "comm/transport/job_state.h"
#include "comm/transport/plugin.h"
#include "comm/transport/transport_session.h"
#include "tests/conformance/case.h"

namespace prun::testing {
namespace {

// Runs reductions whose results identify the group. Returns "" or the error.
std::string try_group(Rank& rank, const std::vector<int>& ranks, int lane) {
  if (std::find(ranks.begin(), ranks.end(), rank.index) == ranks.end()) return "";
  Communicator& group = rank.world.communicator(ranks, lane);
  if (ranks[static_cast<size_t>(group.index())] != rank.index) return "index\n";
  std::string failed;
  for (CollKind kind : {CollKind::all_reduce, CollKind::all_gather, CollKind::broadcast, CollKind::reduce_scatter}) {
    Case c;
    c.call.kind = kind;
    c.call.count = 300;
    c.call.root = kind == CollKind::broadcast ? group.size() - 1 : 0;
    failed += run_case(rank, group, c);
  }
  return failed;
}

TEST(Groups, OverlappingReversedAndSingle) {
  EXPECT_EQ(failures(run_connected(5,
                                   [](Rank& rank) {
                                     std::string failed;
                                     const std::vector<std::vector<int>> groups = {
                                         {0, 1, 2}, {2, 3, 4}, {1, 3},    {4, 3, 2, 1, 0},
                                         {0},       {3},       {3, 0, 4}, {0, 1, 2, 3, 4}};
                                     for (int repeat = 0; repeat < 3; ++repeat) {
                                       for (const std::vector<int>& group : groups) failed += try_group(rank, group, 0);
                                     }
                                     return failed;
                                   })),
            "");
}

TEST(Groups, SameRanksOnManyLanes) {
  EXPECT_EQ(failures(run_connected(3,
                                   [](Rank& rank) {
                                     std::string failed;
                                     for (int lane = 0; lane < 64; ++lane) failed += try_group(rank, {0, 1, 2}, lane);
                                     for (int lane = 63; lane >= 0; --lane) failed += try_group(rank, {0, 1, 2}, lane);
                                     return failed;
                                   })),
            "");
}

// Messages between neighbours of a ring, as pipelines send them, with empty ones in one direction for some ranks.
TEST(Groups, SendAndReceive) {
  EXPECT_EQ(failures(run_connected(4,
                                   [](Rank& rank) -> std::string {
                                     Communicator& all = rank.world.communicator(all_ranks(4), 0);
                                     const int next = (rank.index + 1) % 4, previous = (rank.index + 3) % 4;
                                     for (int64_t count : {0, 1, 40, 100000}) {
                                       std::vector<int> out(static_cast<size_t>(count), rank.index),
                                           in(static_cast<size_t>(count), -1);
                                       all.send_recv(next, out.data(), count * 4, previous, in.data(), count * 4);
                                       if (std::any_of(in.begin(), in.end(), [&](int x) { return x != previous; }))
                                         return fmt::format("ring of {}", count);
                                       if (rank.index % 2 == 0)
                                         all.send_recv(next, out.data(), count * 4, -1, nullptr, 0);
                                       else
                                         all.send_recv(-1, nullptr, 0, previous, in.data(), count * 4);
                                       if (rank.index % 2 == 1 &&
                                           std::any_of(in.begin(), in.end(), [&](int x) { return x != previous; }))
                                         return "one way";
                                     }
                                     return "";
                                   })),
            "");
}

TEST(Groups, BytesSentAreThoseOfAGoodSchedule) {
  EXPECT_EQ(failures(run_connected(4,
                                   [](Rank& rank) -> std::string {
                                     Communicator& all = rank.world.communicator(all_ranks(4), 0);
                                     Case c;
                                     c.call.kind = CollKind::reduce_scatter;
                                     c.call.count = 25000;
                                     std::string failed = run_case(rank, all, c);
                                     int64_t scattered = all.bytes_sent();
                                     c.call.kind = CollKind::all_reduce;
                                     c.call.count = 100000;
                                     failed += run_case(rank, all, c);
                                     int64_t reduced = all.bytes_sent() - scattered;
                                     // 3/4 of 400,000 bytes, and twice that; slices are rounded to cache lines.
                                     if (std::abs(scattered - 300000) > 256)
                                       return fmt::format("reduce_scatter sent {}", scattered);
                                     if (std::abs(reduced - 600000) > 512)
                                       return fmt::format("all_reduce sent {}", reduced);
                                     return failed;
                                   })),
            "");
}

// Tests the plugin itself, because the core keeps its groups as long as the world.
TEST(Groups, CreatedAndFreed) {
  const int times = suite().whole ? 10000 : 300;
  LocalJob job;
  job.ranks = 2;
  job.timeout_s = 300;
  auto reports = run_ranks(job, [times](LocalBootstrap& bootstrap) -> std::string {
    set_job(&bootstrap, 2);
    WorldOptions options = suite().options(bootstrap);
    TransportSession session(load_named(options.transport, options.plugin_dirs), options);
    join_and_connect(session, options, bootstrap);
    const prun_transport& table = session.table();
    const int ranks[] = {0, 1};
    for (int i = 0; i < times && table.comm_create != nullptr; ++i) {
      prun_comm* comm = nullptr;
      prun_result result = empty_result();
      prun_status status = table.comm_create(session.ctx(), ranks, 2, 1 + i % 50000, &comm, &result);
      if (status == PRUN_ENOTSUP) break;
      const double end = now_s() + 10;
      while (status == PRUN_OK && table.comm_test != nullptr && now_s() < end) {
        status = table.comm_test(session.ctx(), comm, &result);
        if (status != PRUN_AGAIN) break;
        status = PRUN_OK;
      }
      if (status != PRUN_OK || comm == nullptr) return fmt::format("group {}: {}", i, status_text(status, result));
      bootstrap.barrier();
      if (table.comm_free != nullptr) table.comm_free(session.ctx(), comm);
    }
    bootstrap.barrier();
    return "";
  });
  EXPECT_EQ(failures(reports), "");
}

// Any order of calls is legal if it is equal for all members of a stream's groups: here a random one per seed, on three
// streams of four ranks, with overlapping groups and pauses that differ between ranks.
TEST(Groups, RandomPlansInSeveralThreads) {
  for (unsigned seed = 0; seed < (suite().whole ? 25u : 3u); ++seed) {
    EXPECT_EQ(failures(run_connected(
                  4,
                  [seed](Rank& rank) -> std::string {
                    constexpr int kStreams = 3, kCalls = 60;
                    const std::vector<std::vector<int>> shapes = {{0, 1, 2, 3}, {0, 1}, {2, 3}, {3, 1, 0}, {1, 2}};
                    std::map<std::pair<int, size_t>, Communicator*> groups;
                    for (int stream = 0; stream < kStreams; ++stream) {
                      for (size_t shape = 0; shape < shapes.size(); ++shape) {
                        const std::vector<int>& ranks = shapes[shape];
                        if (std::count(ranks.begin(), ranks.end(), rank.index) != 0)
                          groups[{stream, shape}] = &rank.world.communicator(ranks, stream);
                      }
                    }
                    std::vector<std::string> failed(kStreams);
                    std::vector<std::thread> threads;
                    for (int stream = 0; stream < kStreams; ++stream) {
                      threads.emplace_back([&, stream] {
                        std::string& text = failed[static_cast<size_t>(stream)];
                        std::mt19937 plan(seed * 10 + static_cast<unsigned>(stream)),
                            pauses(seed * 100 + static_cast<unsigned>(rank.index));
                        try {
                          for (int i = 0; i < kCalls && text.empty(); ++i) {
                            Case c;
                            size_t shape = plan() % shapes.size();
                            c.call.kind = static_cast<CollKind>(plan() % 8);
                            c.call.count = static_cast<int64_t>(plan() % 7 == 0 ? plan() % 60000 : plan() % 600);
                            bool rooted = c.call.kind == CollKind::broadcast || c.call.kind == CollKind::reduce ||
                                          c.call.kind == CollKind::gather || c.call.kind == CollKind::scatter;
                            unsigned root = plan() % static_cast<unsigned>(shapes[shape].size());
                            c.call.root = rooted ? static_cast<int>(root) : 0;
                            auto group = groups.find({stream, shape});
                            if (group == groups.end()) continue;
                            if (pauses() % 8 == 0) usleep(pauses() % 500);
                            text += run_case(rank, *group->second, c);
                          }
                        } catch (const std::exception& error) {
                          text = fmt::format("seed {}, stream {}: {}", seed, stream, error.what());
                        }
                      });
                    }
                    for (std::thread& thread : threads) thread.join();
                    return failed[0] + failed[1] + failed[2];
                  })),
              "");
  }
}

TEST(Groups, SeveralThreadsAtATime) {
  EXPECT_EQ(failures(run_connected(
                3,
                [](Rank& rank) -> std::string {
                  constexpr int kThreads = 3;
                  std::vector<Communicator*> groups;
                  for (int t = 0; t < kThreads; ++t)
                    groups.push_back(&rank.world.communicator(t == 1 ? std::vector<int>{2, 1, 0} : all_ranks(3), t));
                  std::vector<std::string> failed(kThreads);
                  std::vector<std::thread> threads;
                  for (int t = 0; t < kThreads; ++t) {
                    threads.emplace_back([&, t] {
                      const CollKind kinds[] = {CollKind::all_reduce, CollKind::all_gather, CollKind::reduce_scatter,
                                                CollKind::all_to_all, CollKind::broadcast};
                      try {
                        for (int i = 0; i < 60 && failed[static_cast<size_t>(t)].empty(); ++i) {
                          Case c;
                          c.call.kind = kinds[static_cast<size_t>(i * (t + 1)) % 5];
                          c.call.count = (i * 37 + t * 11) % 900 + (i % 20 == 0 ? 40000 : 0);
                          c.call.root = c.call.kind == CollKind::broadcast ? i % 3 : 0;
                          failed[static_cast<size_t>(t)] += run_case(rank, *groups[static_cast<size_t>(t)], c);
                        }
                      } catch (const std::exception& error) {
                        failed[static_cast<size_t>(t)] = fmt::format("thread {}: {}", t, error.what());
                      }
                    });
                  }
                  for (std::thread& thread : threads) thread.join();
                  return failed[0] + failed[1] + failed[2];
                })),
            "");
}

}  // namespace
}  // namespace prun::testing
