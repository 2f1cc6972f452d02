// Large messages that are sent before their receives are posted (plugins/socket/ahead.cc). Forked ranks of one host use
// the limit that normally applies to distant peers.
#include <gtest/gtest.h>

#include "tests/unit/socket_world.h"

namespace {

using namespace socket_world;

constexpr size_t kLarge = 300000;

void expect_all_well(const std::vector<int>& ends) {
  for (size_t r = 0; r < ends.size(); ++r) EXPECT_EQ(ends[r], 0) << "rank " << r;
}

std::vector<char> numbered(size_t bytes, int message) {
  std::vector<char> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i / 97 + i * 31 + static_cast<size_t>(message) * 7);
  return data;
}

class SocketAhead : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Ways, SocketAhead,
                         testing::Values("ahead=1000000", "ahead=1000000,unix=0", "ahead=1000000,unix=0,connections=3",
                                         "ahead=1000000,unix=0,encrypt=1"));

// The sender closes its context and exits before the receiver posts its receive.
TEST_P(SocketAhead, AMessageThatNobodyAskedForArrives) {
  expect_all_well(fork_ranks(2, GetParam(), [](Rank& me) {
    me.start();
    const std::vector<char> large = numbered(kLarge, 1);
    if (me.rank == 1) {
      me.run({send_op(0, large.data(), large.size())});
      me.close();
      return;
    }
    // The thread that tests a request also reads the connection; this request ends when the peer is gone.
    char never = 0;
    prun_req* const idle = me.batch({recv_op(1, &never, 1, 5)});
    while (me.wait(idle, 0.001) == PRUN_AGAIN) {
    }
    std::vector<char> in(kLarge);
    me.run({recv_op(1, in.data(), in.size())});
    RANK_CHECK(in == large);
  }));
}

TEST_P(SocketAhead, NoMoreThanTheLimitGoesOut) {
  expect_all_well(fork_ranks(2, GetParam(), [](Rank& me) {
    constexpr int kMessages = 8, kFit = 3;  // kFit messages of 300,000 bytes fit into 1,000,000
    me.start();
    std::vector<std::vector<char>> messages;
    for (int i = 0; i < kMessages; ++i) messages.push_back(numbered(kLarge, i));
    char byte = 0;
    if (me.rank == 1) {
      std::vector<prun_req*> sends;
      for (const auto& each : messages) sends.push_back(me.batch({send_op(0, each.data(), each.size())}));
      for (int i = 0; i < kFit; ++i) RANK_CHECK(me.wait(sends[i]) == PRUN_OK, "message %d", i);
      for (int i = kFit; i < kMessages; ++i) RANK_CHECK(me.wait(sends[i], 0.05) == PRUN_AGAIN, "message %d", i);
      me.run({send_op(0, &byte, 1, 5)});
      for (int i = kFit; i < kMessages; ++i) RANK_CHECK(me.wait(sends[i]) == PRUN_OK, "message %d", i);
      me.meet();
      return;
    }
    me.run({recv_op(1, &byte, 1, 5)});  // also reads the other messages
    std::vector<std::vector<char>> in(kMessages, std::vector<char>(kLarge));
    std::vector<prun_p2p> receives;
    for (auto& each : in) receives.push_back(recv_op(1, each.data(), each.size()));
    me.run(receives);
    RANK_CHECK(in == messages);
    me.meet();
  }));
}

// Receives are posted before, between and after the arrivals of pieces, many times.
TEST_P(SocketAhead, ReceivesMayComeAtAnyTime) {
  expect_all_well(fork_ranks(2, GetParam(), [](Rank& me) {
    me.start();
    const int peer = 1 - me.rank;
    for (int round = 0; round < 200; ++round) {
      const size_t bytes = 40000 + static_cast<size_t>(round) * 9973;
      const std::vector<char> out = numbered(bytes, me.rank + round);
      std::vector<char> in(bytes);
      if ((round + me.rank) % 3 == 0) ::usleep(static_cast<useconds_t>(round * 5));
      prun_req* const send = me.batch({send_op(peer, out.data(), bytes)});
      const bool sent = (round + me.rank) % 2 == 0 && me.wait(send, 0.0002) == PRUN_OK;
      prun_req* const receive = me.batch({recv_op(peer, in.data(), bytes)});
      RANK_CHECK(me.wait(receive) == PRUN_OK, "%s", me.result.message);
      RANK_CHECK(in == numbered(bytes, peer + round), "round %d", round);
      RANK_CHECK(sent || me.wait(send) == PRUN_OK, "%s", me.result.message);
    }
    me.meet();
  }));
}

// The sender dies after part of the message has arrived.
TEST_P(SocketAhead, WhatNeverCameIsNoMessage) {
  const std::vector<int> ends = fork_ranks(2, GetParam(), [](Rank& me) {
    me.start();
    std::vector<char> large(8 << 20);
    char byte = 0;
    if (me.rank == 1) {
      me.batch({send_op(0, large.data(), large.size())});
      me.run({send_op(0, &byte, 1, 5)});
      ::raise(SIGKILL);
    }
    me.run({recv_op(1, &byte, 1, 5)});
    ::usleep(20000);
    const prun_status status = me.wait(me.batch({recv_op(1, large.data(), large.size())}));
    RANK_CHECK(status == PRUN_EPEER && me.result.culprit == 1, "status %d: %s", status, me.result.message);
  });
  EXPECT_EQ(ends[0], 0);
  EXPECT_EQ(ends[1], SIGKILL);
}

}  // namespace
