// How the socket plugin reports peers, sizes and disconnects: two to three forked ranks over AF_UNIX and over TCP. The
// conformance suite, which CMakeLists.txt runs with the same options, tests messages in general.
#include <gtest/gtest.h>

#include "tests/unit/socket_world.h"

namespace {

using namespace socket_world;

void expect_all_well(const std::vector<int>& ends) {
  for (size_t r = 0; r < ends.size(); ++r) EXPECT_EQ(ends[r], 0) << "rank " << r;
}

std::vector<char> pattern(size_t bytes, int seed) {
  std::vector<char> data(bytes + 1);
  uint32_t state = 12345u + static_cast<uint32_t>(seed) * 7919u;
  for (char& c : data) c = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
  data.resize(bytes);
  return data;
}

class SocketPlugin : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Ways, SocketPlugin,
                         testing::Values("", "unix=0", "unix=0,crc=0", "unix=0,connections=3", "eager=0,chunk=4096",
                                         "unix=0,encrypt=1", "ahead=1000000", "unix=0,ahead=1000000,connections=3"));

TEST_P(SocketPlugin, MismatchNamesBothSizesAndTheRank) {
  struct Case {
    size_t sent, received;
  };
  expect_all_well(fork_ranks(2, GetParam(), [&](Rank& me) {
    me.start();
    std::vector<char> memory(1 << 20);
    uint64_t lane = 0;
    for (const Case c : {Case{100, 200}, Case{100, 100000}, Case{100000, 100}, Case{100000, 200000}, Case{0, 1}}) {
      for (const bool receive_first : {false, true}) {
        ++lane;
        const bool first = receive_first == (me.rank == 0);
        char go = 0;
        if (!first) me.run({recv_op(1 - me.rank, &go, 1)});
        prun_req* request = me.batch(
            {me.rank == 0 ? recv_op(1, memory.data(), c.received, lane) : send_op(0, memory.data(), c.sent, lane)});
        if (first) me.run({send_op(1 - me.rank, &go, 1)});
        const prun_status status = me.wait(request, 5);
        if (me.rank == 1) {  // the small message has been sent before the receiver can reject it
          const bool unasked = c.sent < 100000 || std::string(me.params.options).find("ahead") != std::string::npos;
          RANK_CHECK(status == PRUN_EMISMATCH || (status == PRUN_OK && unasked), "status %d", status);
          continue;
        }
        RANK_CHECK(status == PRUN_EMISMATCH && me.result.culprit == 1, "status %d", status);
        const std::string expected = "rank #1 sends " + std::to_string(c.sent) + " bytes on lane " +
                                     std::to_string(lane) + " where rank #0 receives " + std::to_string(c.received) +
                                     " bytes";
        RANK_CHECK(me.result.message == expected, "%s", me.result.message);
      }
    }
  }));
}

TEST_P(SocketPlugin, KilledPeerIsNamed) {
  const std::vector<int> ends = fork_ranks(3, GetParam(), [&](Rank& me) {
    me.start();
    std::vector<char> memory(8 << 20);
    if (me.rank == 2) {
      me.batch({send_op(0, memory.data(), memory.size())});
      ::raise(SIGKILL);
    }
    const auto begin = std::chrono::steady_clock::now();
    const prun_status status = me.wait(me.batch({recv_op(2, memory.data(), memory.size())}), 10);
    RANK_CHECK(status == PRUN_EPEER && me.result.culprit == 2, "status %d culprit %d", status, me.result.culprit);
    RANK_CHECK(std::string(me.result.message).find("rank #2 is gone") == 0, "%s", me.result.message);
    RANK_CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(1));
    me.meet(1);
    const int peer = 1 - me.rank;  // the other ranks still communicate
    std::vector<char> in(100000), out = pattern(100000, me.rank);
    me.run({recv_op(peer, in.data(), in.size()), send_op(peer, out.data(), out.size())});
    RANK_CHECK(in == pattern(100000, peer));
  });
  EXPECT_EQ(ends[0], 0);
  EXPECT_EQ(ends[1], 0);
  EXPECT_EQ(ends[2], SIGKILL);
}

TEST_P(SocketPlugin, OrderlyCloseIsNoErrorForWhatHasArrived) {
  if (std::string(GetParam()).find("eager=0") == 0) GTEST_SKIP() << "nothing arrives before it is asked for";
  expect_all_well(fork_ranks(2, GetParam(), [&](Rank& me) {
    me.start();
    std::vector<char> small = pattern(1000, 1), in(1000);
    if (me.rank == 1) {
      me.run({send_op(0, small.data(), small.size())});
      me.close();
      me.shared->flags[0] = 1;
      return;
    }
    while (me.shared->flags[0] == 0) ::sched_yield();
    me.run({recv_op(1, in.data(), in.size())});
    RANK_CHECK(in == small);
    RANK_CHECK(me.wait(me.batch({recv_op(1, in.data(), 1)})) == PRUN_EPEER && me.result.culprit == 1);
    RANK_CHECK(std::string(me.result.message) == "rank #1 has closed its side of the transport", "%s",
               me.result.message);
  }));
}

// Small messages without posted receives: the window lets 3 MiB leave the sender, but not 12 MiB.
TEST_P(SocketPlugin, SmallMessagesAreAheadByAWindow) {
  if (std::string(GetParam()).find("eager=0") == 0) GTEST_SKIP() << "its messages are large";
  constexpr int kFew = 192, kMany = 576;
  expect_all_well(fork_ranks(2, GetParam(), [&](Rank& me) {
    me.start();
    const std::vector<char> small = pattern(16 << 10, 1);
    std::vector<char> in(small.size());
    char go = 0;
    std::vector<prun_req*> requests;
    if (me.rank == 1) {
      const auto send = [&] { requests.push_back(me.batch({send_op(0, small.data(), small.size(), 1)})); };
      for (int i = 0; i < kFew; ++i) send();
      for (prun_req* request : requests) RANK_CHECK(me.wait(request, 5) == PRUN_OK, "a sender that is ahead waits");
      requests.clear();
      for (int i = 0; i < kMany; ++i) send();
      RANK_CHECK(me.wait(requests.back(), 0.2) == PRUN_AGAIN, "more than a window has left");
      me.run({send_op(0, &go, 1, 2)});
      for (prun_req* request : requests) RANK_CHECK(me.wait(request) == PRUN_OK);
      me.run({recv_op(0, &go, 1, 2)});
      return;
    }
    me.run({recv_op(1, &go, 1, 2)});  // also reads all messages that arrive
    for (int i = 0; i < kFew + kMany; ++i) {
      std::fill(in.begin(), in.end(), '\0');
      me.run({recv_op(1, in.data(), in.size(), 1)});
      RANK_CHECK(in == small, "message %d", i);
    }
    me.run({send_op(1, &go, 1, 2)});
  }));
}

TEST_P(SocketPlugin, BlameIsPassedOn) {
  expect_all_well(fork_ranks(3, GetParam(), [&](Rank& me) {
    me.start();
    char byte = 0;
    if (me.rank == 2) return;  // disconnects
    if (me.rank == 1) {        // detects that rank 2 is gone and disconnects too
      RANK_CHECK(me.wait(me.batch({recv_op(2, &byte, 1)})) == PRUN_EPEER && me.result.culprit == 2);
      return;
    }
    RANK_CHECK(me.wait(me.batch({recv_op(1, &byte, 1)})) == PRUN_EPEER);  // rank 0 communicates with rank 1 only
    RANK_CHECK(me.result.culprit == 2, "culprit %d: %s", me.result.culprit, me.result.message);
    RANK_CHECK(std::string(me.result.message) == "rank #2 is gone, as rank #1 found", "%s", me.result.message);
  }));
}

}  // namespace
