// Put channels: one-sided transfers across pipeline stages. Plugins without put skip these tests.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <thread>

#include "comm/transport/job_state.h"
#include "comm/transport/plugin.h"
#include "tests/conformance/suite.h"

namespace prun::testing {
namespace {

constexpr int kLane = 40;
constexpr int64_t kFloats = 20000, kBytes = kFloats * 4;

class Puts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (load_named(suite().transport, suite().plugin_dirs).table.put == nullptr) GTEST_SKIP() << "no one-sided calls";
  }
};

// Both directions at once, one thread each, with reused slots.
TEST_F(Puts, ArriveInOrderBothWays) {
  auto reports = run_connected(2, [](Rank& rank) -> std::string {
    const int other = 1 - rank.index;
    PutChannel* channel = rank.world.put_channel(other, kLane);
    if (channel == nullptr) return "no channel";
    auto* places = reinterpret_cast<float*>(rank.arena);
    std::vector<float> mine(kFloats);
    std::string wrong;
    std::thread receiver([&] {
      for (int i = 0; i < 300; ++i) {
        channel->offer();
        channel->arrive(kBytes);
        const float* place = places + (i % 2) * kFloats;
        const float expected = static_cast<float>(1000 * other + i);
        if (place[0] != expected || place[kFloats - 1] != expected) wrong = fmt::format("put {}: {}", i, place[0]);
      }
    });
    for (int i = 0; i < 300; ++i) {
      std::fill(mine.begin(), mine.end(), static_cast<float>(1000 * rank.index + i));
      channel->put(mine.data(), kBytes, (i % 2) * kBytes);
    }
    receiver.join();
    if (channel->bytes_sent() != 300 * kBytes) wrong += fmt::format(" sent {}", channel->bytes_sent());
    return wrong;
  });
  EXPECT_EQ(failures(reports), "");
}

// A put waits until the receiver has offered its slot.
TEST_F(Puts, WaitForTheirPlace) {
  auto reports = run_connected(2, [](Rank& rank) -> std::string {
    PutChannel* channel = rank.world.put_channel(1 - rank.index, kLane);
    if (channel == nullptr) return "no channel";
    auto* place = reinterpret_cast<float*>(rank.arena);
    if (rank.index == 0) {
      std::vector<float> ones(kFloats, 1.0f);
      channel->put(ones.data(), kBytes, 0);
      return "";
    }
    for (int i = 0; i < 100; ++i) {
      if (place[0] != 0) return "written without an offer";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    channel->offer();
    channel->arrive(kBytes);
    return place[kFloats - 1] == 1 ? "" : "has not arrived";
  });
  EXPECT_EQ(failures(reports), "");
}

TEST_F(Puts, ADeadPeerAndAnAbsentOfferAreNamed) {
  for (const bool dies : {true, false}) {
    ConnectedJob job;
    job.local.ranks = 2;
    job.local.timeout_s = 15;
    job.deadline_s = 1;
    auto reports = run_connected(job, [dies](Rank& rank) -> std::string {
      PutChannel* channel = rank.world.put_channel(1 - rank.index, kLane);
      if (channel == nullptr) return "no channel";
      if (rank.index == 1 && dies) kill(getpid(), SIGKILL);
      if (rank.index == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1800));
        return "";
      }
      float one = 1;
      channel->put(&one, 4, 0);
      return "put without an offer";
    });
    EXPECT_NE(reports[0].text.find("rank 1"), std::string::npos) << reports[0].text;
    EXPECT_NE(reports[0].status, 0) << reports[0].text;
    EXPECT_LT(reports[0].seconds, 8) << reports[0].text;
    if (dies) continue;
    EXPECT_NE(reports[0].text.find("waiting for a place to put into"), std::string::npos) << reports[0].text;
  }
}

}  // namespace
}  // namespace prun::testing
