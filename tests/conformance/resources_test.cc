// Items 1 and 2: descriptors, threads and memory retained after closed connections and completed messages.
//
// Memory is measured four times, and only growth in every round is a leak, so that a pool may fill up once.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "comm/transport/transport_session.h"
#include "tests/conformance/raw.h"

namespace prun::testing {
namespace {

constexpr bool kOwnAllocator =  // of a sanitizer: malloc's statistics are 0, and freed memory remains mapped
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    true;
#else
    false;
#endif

int64_t entries_of(const char* folder) {
  std::error_code none;
  return std::distance(std::filesystem::directory_iterator(folder, none), {});
}

int64_t allocated_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

int64_t mapped_bytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

// Runs `once` `times` times in each of four rounds, after a warm-up round. Returns "" or the resource that grew in
// every round, memory by at least `least_bytes` per call.
std::string kept_in_rounds(int times, const std::string& what, const std::function<void()>& once, int64_t least_bytes) {
  constexpr int64_t kPage = 4096;
  struct Held {
    int64_t descriptors, threads, allocated, mapped;
  };
  const auto held = [] {
    return Held{entries_of("/proc/self/fd"), entries_of("/proc/self/task"), allocated_bytes(), mapped_bytes()};
  };
  std::array<Held, 5> seen{};
  for (Held& now : seen) {
    for (int i = 0; i < times; ++i) once();
    now = held();
  }
  const int64_t all = 4 * times;
  const auto grew = [&](int64_t Held::*kind, int64_t least) {
    for (size_t round = 1; round < seen.size(); ++round)
      if (seen[round].*kind - seen[round - 1].*kind < least) return false;
    return true;
  };
  const auto lost = [&](int64_t Held::*kind) { return seen.back().*kind - seen.front().*kind; };
  if (lost(&Held::descriptors) > 0 && grew(&Held::descriptors, 1))
    return fmt::format("the plugin kept {} descriptors open after {} {}", lost(&Held::descriptors), all, what);
  if (lost(&Held::threads) > 0 && grew(&Held::threads, 1))
    return fmt::format("the plugin left {} threads running after {} {}", lost(&Held::threads), all, what);
  if (kOwnAllocator) return "";
  if (grew(&Held::allocated, least_bytes * times))
    return fmt::format("the plugin leaked memory: {} bytes more after {} {}, {} bytes each", lost(&Held::allocated),
                       all, what, lost(&Held::allocated) / all);
  if (grew(&Held::mapped, kPage * times))
    return fmt::format("the plugin left memory mapped: {} bytes more after {} {}, {} bytes each", lost(&Held::mapped),
                       all, what, lost(&Held::mapped) / all);
  return "";
}

// Returns the growth that occurs in three attempts, because a library's threads may allocate at any time.
std::string kept_by(int times, const std::string& what, const std::function<void()>& once, int64_t least_bytes = 8) {
  std::string kept;
  for (int go = 0; go < 3; ++go) {
    kept = kept_in_rounds(times, what, once, least_bytes);
    if (kept.empty()) return "";
  }
  return kept;
}

TEST(Open, OpeningAndClosingLeavesNothing) {
  LocalJob job;
  job.timeout_s = 300;
  EXPECT_EQ(failures(run_ranks(job,
                               [](LocalBootstrap& bootstrap) {
                                 WorldOptions options = suite().options(bootstrap);
                                 options.ranks = options.local_ranks = 2;  // opened, never connected
                                 return kept_by(suite().whole ? 200 : 50, "times of open and close",
                                                [&] { World::open(options, bootstrap)->allocate(4096); });
                               })),
            "");
}

TEST(Open, ConnectingAndClosingLeavesNothing) {
  LocalJob job;
  job.ranks = 3;
  job.timeout_s = 300;
  const auto body = [](LocalBootstrap& bootstrap) {
    const WorldOptions options = suite().options(bootstrap);
    const auto once = [&] {
      const std::unique_ptr<TransportSession> session = open_raw(bootstrap, options);
      join_and_connect(*session, options, bootstrap);
      Raw raw{bootstrap, *session, bootstrap.rank(), bootstrap.ranks()};
      const int next = (raw.rank + 1) % raw.ranks, last = (raw.rank + raw.ranks - 1) % raw.ranks;
      int mine = raw.rank, theirs = -1;
      raw.run({Raw::recv(last, 0, &theirs, sizeof theirs), Raw::send(next, 0, &mine, sizeof mine)});
      bootstrap.barrier();
    };
    // Libraries such as UCX retain a few hundred bytes per peer.
    return kept_by(10, "times of connecting to two peers and closing", once, 1024);
  };
  EXPECT_EQ(failures(run_ranks(job, body)), "");
}

TEST(PointToPoint, MessagesLeaveNothing) {
  const auto body = [](Raw& raw) {
    std::vector<char> out(5000), in(out.size());
    return kept_by(500, "times of sending and receiving two messages", [&] {
      raw.run({Raw::recv(1 - raw.rank, 1, in.data(), 40), Raw::send(1 - raw.rank, 1, out.data(), 40)});
      raw.run({Raw::recv(1 - raw.rank, 2, in.data(), in.size()), Raw::send(1 - raw.rank, 2, out.data(), out.size())});
    });
  };
  EXPECT_EQ(run_raw(2, body), "");
}

}  // namespace
}  // namespace prun::testing
