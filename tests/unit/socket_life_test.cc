// Opening, options, closing without leaks, and several threads on one context.
#include <dirent.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "tests/unit/socket_world.h"

namespace {

using namespace socket_world;

int entries(const char* directory) {
  int count = 0;
  DIR* const dir = ::opendir(directory);
  while (::readdir(dir) != nullptr) ++count;
  ::closedir(dir);
  return count;
}

std::string open_message(const char* options, const char* interface_name = nullptr) {
  prun_open_params params = {sizeof params, 0, 2, 0, 1, options, {1}, "test", interface_name};
  prun_result result{};
  result.size = sizeof result;
  prun_ctx* ctx = nullptr;
  const prun_status status = load()->open(&params, &ctx, &result);
  if (status == PRUN_OK) load()->close(ctx);
  return status == PRUN_OK ? "ok" : (status == PRUN_EINVAL ? "" : "not EINVAL: ") + std::string(result.message);
}

TEST(SocketLife, OptionsAreChecked) {
  EXPECT_EQ(open_message("congestion=cubic,connections=2,crc=0,unix=1,eager=1024,chunk=65536,buffer=0"), "ok");
  EXPECT_EQ(open_message("conections=2"), "socket has no option 'conections' (did you mean 'connections'?)");
  EXPECT_EQ(open_message("speed=2"),
            "socket has no option 'speed' (one of: ahead, buffer, chunk, congestion, connections, crc, eager, encrypt, "
            "link_timeout, unix, ports)");
  EXPECT_EQ(open_message("crc=2"), "socket option crc=2: must be auto, 0 or 1");
  EXPECT_EQ(open_message("chunk=x"), "socket option chunk=x: must be 4096 .. 1073741824 bytes");
  EXPECT_EQ(open_message("unix"), "socket option unix has no value; it must be 0 or 1");
  EXPECT_EQ(open_message("", "nosuch0").find("there is no network interface 'nosuch0' (there are: lo"), 0u);
}

std::string congestion_of(int fd) {
  char name[32] = "";
  socklen_t length = sizeof name - 1;
  const int found = ::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length);
  return found == 0 ? name : "";
}

// Accepted connections inherit the listener's congestion control; a later change would keep the pacing of the system's.
TEST(SocketLife, ListensWithTheCongestionControlOfAHost) {
  const int plain = ::socket(AF_INET, SOCK_STREAM, 0);
  const std::string other = congestion_of(plain) == "reno" ? "cubic" : "reno";
  ::close(plain);
  const std::string options = "unix=0,congestion=" + other;
  prun_open_params params = {sizeof params, 0, 2, 0, 2, options.c_str(), {1}, "test", nullptr};
  prun_result result{};
  result.size = sizeof result;
  prun_ctx* ctx = nullptr;
  ASSERT_EQ(load()->open(&params, &ctx, &result), PRUN_OK) << result.message;
  int listening = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    int listens = 0, domain = 0;
    socklen_t length = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0) continue;
    if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain == AF_UNIX) continue;
    ++listening;
    EXPECT_EQ(congestion_of(fd), other);
  }
  EXPECT_EQ(listening, 1);
  load()->close(ctx);
}

TEST(SocketLife, OpensAndClosesAThousandTimesWithoutLeaks) {
  open_message("");
  const int descriptors = entries("/proc/self/fd"), threads = entries("/proc/self/task");
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(open_message(i % 2 ? "" : "unix=0"), "ok");
  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
  EXPECT_EQ(entries("/proc/self/task"), threads);
}

TEST(SocketLife, ConnectsAndClosesAgainWithoutLeaks) {
  for (const int end : fork_ranks(2, "unix=0", [](Rank& me) {
         int descriptors = 0;
         for (int i = 0; i < 20; ++i) {
           me.start();
           char in = 0, out = 'x';
           me.run({recv_op(1 - me.rank, &in, 1), send_op(1 - me.rank, &out, 1)});
           me.close();
           me.meet();  // the next round's addresses overwrite the current ones
           if (i == 0) descriptors = entries("/proc/self/fd");
         }
         RANK_CHECK(entries("/proc/self/fd") == descriptors);
       }))
    EXPECT_EQ(end, 0);
}

TEST(SocketLife, OlderAndNewerHostsAreUnderstood) {
  prun_open_params params = {sizeof params, 0, 1, 0, 1, "bad=1", {}, "test", nullptr};
  prun_ctx* ctx = nullptr;
  struct {
    prun_result result;
    char guard[16];
  } shorter{};
  std::memset(&shorter, 'x', sizeof shorter);
  shorter.result.size = offsetof(prun_result, message) + 20;  // as an older host passes it
  EXPECT_EQ(load()->open(&params, &ctx, &shorter.result), PRUN_EINVAL);
  EXPECT_STREQ(shorter.result.message, "socket has no optio");
  EXPECT_EQ(shorter.result.message[20], 'x');
  EXPECT_EQ(load()->open(&params, &ctx, nullptr), PRUN_EINVAL);
}

TEST(SocketLife, BrokenContractIsRefused) {
  for (const int end : fork_ranks(1, "", [](Rank& me) {
         me.start();
         char byte = 0;
         prun_req* req = nullptr;
         const auto refused = [&](prun_p2p op) {
           return load()->batch(me.ctx, &op, 1, {}, &req, &me.result) == PRUN_EINVAL;
         };
         RANK_CHECK(refused(send_op(1, &byte, 1)) && std::string(me.result.message) == "rank #1 of 1 is no peer");
         RANK_CHECK(refused(send_op(0, &byte, 1, 65536)));
         RANK_CHECK(refused(send_op(0, nullptr, 1)));
         prun_p2p cuda = send_op(0, &byte, 1);
         cuda.mem_kind = PRUN_MEM_CUDA;
         RANK_CHECK(refused(cuda));
         me.run({});  // an empty batch is allowed
         me.run({send_op(0, &byte, 0), recv_op(0, &byte, 0)});
       }))
    EXPECT_EQ(end, 0);
}

TEST(SocketLife, FourThreadsOnOneContext) {
  for (const char* options : {"", "unix=0,connections=2"})
    for (
        const int end : fork_ranks(2, options, [](Rank& me) {
          me.start();
          std::vector<std::thread> threads;
          for (int lane = 0; lane < 4; ++lane)
            threads.emplace_back([&me, lane] {
              Rank mine = me;  // has results of its own
              uint32_t state = static_cast<uint32_t>(lane) + 1;
              for (int i = 0; i < 100; ++i) {
                state = state * 1664525u + 1013904223u;
                const size_t bytes = (state >> 8) % (i % 10 == 0 ? 1 << 20 : 50000);
                std::vector<char> out(bytes + 1, static_cast<char>(i * 8 + lane * 2 + me.rank)), in(bytes + 1);
                mine.run({recv_op(1 - me.rank, in.data(), bytes, lane), send_op(1 - me.rank, out.data(), bytes, lane)});
                const std::vector<char> expected(bytes, static_cast<char>(i * 8 + lane * 2 + 1 - me.rank));
                RANK_CHECK(std::memcmp(in.data(), expected.data(), bytes) == 0, "lane %d round %d", lane, i);
              }
            });
          for (std::thread& thread : threads) thread.join();
          me.meet();
        }))
      EXPECT_EQ(end, 0) << options;
}

TEST(SocketLife, WaitDescriptorIsReadableWhenTestCanProgress) {
  for (const int end : fork_ranks(2, "", [](Rank& me) {
         me.start();
         char byte = 0;
         if (me.rank == 1) {
           me.meet();
           me.run({send_op(0, &byte, 1)});
           me.meet();
           return;
         }
         prun_req* request = me.batch({recv_op(1, &byte, 1)});
         RANK_CHECK(load()->test(me.ctx, request, &me.result) == PRUN_AGAIN);
         pollfd ready{load()->wait_fd(me.ctx), POLLIN, 0};
         RANK_CHECK(::poll(&ready, 1, 0) == 0);
         me.meet();
         RANK_CHECK(::poll(&ready, 1, 10000) == 1);
         RANK_CHECK(load()->test(me.ctx, request, &me.result) == PRUN_OK);
         me.meet();
       }))
    EXPECT_EQ(end, 0);
}

}  // namespace
