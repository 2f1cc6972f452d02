// Ranks on different hosts: network namespaces joined by a veth pair. Needs root and iproute2; skipped otherwise.
#include <gtest/gtest.h>
#include <sched.h>

#include "plugins/socket/address.h"
#include "tests/unit/socket_world.h"

namespace {

using namespace socket_world;

void shell(const std::string& command) { RANK_CHECK(std::system(command.c_str()) == 0, "%s", command.c_str()); }

bool can_make_hosts() {
  return ::geteuid() == 0 && std::system("ip link show lo > /dev/null 2>&1") == 0 &&
         std::system("unshare -n true > /dev/null 2>&1") == 0;
}

// Runs two ranks, each in its own namespace, whose eth0 is 10.77.0.1 or 10.77.0.2.
void expect_all_well_on_two_hosts(const std::function<void(Rank&)>& body) {
  const std::vector<int> ends = fork_ranks(2, "", [&](Rank& me) {
    RANK_CHECK(::unshare(CLONE_NEWNET) == 0);
    me.params.local_rank = 0;
    me.params.local_ranks = 1;
    if (me.rank == 1) me.shared->flags[1] = ::getpid();
    me.meet();
    if (me.rank == 0)
      shell("ip link add eth0 type veth peer name eth0 netns " + std::to_string(me.shared->flags[1].load()));
    me.meet();
    shell("ip addr add 10.77.0." + std::to_string(me.rank + 1) +
          "/24 dev eth0 && ip link set eth0 up && ip link set lo up");
    me.meet();
    body(me);
  });
  for (size_t r = 0; r < ends.size(); ++r) EXPECT_EQ(ends[r], 0) << "rank " << r;
}

TEST(SocketHosts, TalkOverTheInterfaceThatWasGiven) {
  if (!can_make_hosts()) GTEST_SKIP() << "needs root and ip";
  expect_all_well_on_two_hosts([](Rank& me) {
    me.params.interface_name = "eth0";
    me.start();
    const auto* address = reinterpret_cast<const prun::socket::Address*>(me.shared->blobs[me.rank]);
    RANK_CHECK(address->family == 4 && address->ip[0] == 10 && address->ip[3] == me.rank + 1);
    RANK_CHECK(last_log.find("0 connections over unix, 1 over tcp") != std::string::npos, "%s", last_log.c_str());
    RANK_CHECK(last_log.find("far away") == std::string::npos);  // socket_far_test.py covers distant hosts
    std::vector<char> in(3 << 20), out(3 << 20, static_cast<char>(7 + me.rank));
    me.run({recv_op(1 - me.rank, in.data(), in.size()), send_op(1 - me.rank, out.data(), out.size())});
    RANK_CHECK(in == std::vector<char>(in.size(), static_cast<char>(8 - me.rank)));
    me.meet();
  });
}

TEST(SocketHosts, LoopbackIsNotEnough) {
  if (!can_make_hosts()) GTEST_SKIP() << "needs root and ip";
  expect_all_well_on_two_hosts([](Rank& me) {
    me.open();
    me.meet();
    RANK_CHECK(me.try_connect(5) == PRUN_EINVAL && me.result.culprit == 1 - me.rank, "%s", me.result.message);
    RANK_CHECK(std::string(me.result.message)
                       .find("is on another host but listens on loopback only: give the network "
                             "interface to use") != std::string::npos,
               "%s", me.result.message);
    me.meet();
  });
}

TEST(SocketHosts, AnInterfaceNeedsASecret) {
  if (!can_make_hosts()) GTEST_SKIP() << "needs root and ip";
  expect_all_well_on_two_hosts([](Rank& me) {
    me.params.interface_name = "eth0";
    std::memset(me.params.job_secret, 0, sizeof me.params.job_secret);
    RANK_CHECK(load()->open(&me.params, &me.ctx, &me.result) == PRUN_EINVAL);
    RANK_CHECK(std::string(me.result.message).find("a job secret is needed, and there is none") != std::string::npos,
               "%s", me.result.message);
    me.ctx = nullptr;
  });
}

// TCP_USER_TIMEOUT detects the break for a sender, keepalive for a pure receiver.
TEST(SocketHosts, PulledCableEndsBothSidesWithinSeconds) {
  if (!can_make_hosts()) GTEST_SKIP() << "needs root and ip";
  expect_all_well_on_two_hosts([](Rank& me) {
    me.params.interface_name = "eth0";
    me.start();
    std::vector<char> memory(64 << 20);
    if (me.rank == 0) shell("ip link set eth0 down");
    me.meet();
    const auto begin = std::chrono::steady_clock::now();
    prun_req* request = me.batch({me.rank == 1 ? send_op(0, memory.data(), 1000) : recv_op(1, memory.data(), 1000)});
    prun_status status = me.wait(request, 15);
    if (status == PRUN_OK)
      status = me.wait(me.batch({recv_op(0, memory.data(), 1)}), 15);  // the kernel accepted the bytes
    RANK_CHECK(status == PRUN_EPEER && me.result.culprit == 1 - me.rank, "status %d", status);
    RANK_CHECK(std::string(me.result.message).find("its connection over tcp failed: ") != std::string::npos, "%s",
               me.result.message);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    RANK_CHECK(seconds < 7, "%f s", seconds);
  });
}

}  // namespace
