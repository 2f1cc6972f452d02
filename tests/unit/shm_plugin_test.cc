// Specifics of the shared-memory transport: arenas next to other memory, groups that reuse blocks, access rights,
// waiting without CPU time, and ranks that end. The conformance suite tests messages and collectives in general.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "tests/unit/socket_world.h"

namespace {

using socket_world::fork_ranks;
using socket_world::load;
using socket_world::Rank;

void expect_clean(const std::vector<int>& ends) {
  for (size_t r = 0; r < ends.size(); r++) EXPECT_EQ(ends[r], 0) << "rank " << r;
}

prun_comm* make_comm(Rank& r, const std::vector<int>& ranks, int lane) {
  prun_comm* comm = nullptr;
  RANK_CHECK(load()->comm_create(r.ctx, ranks.data(), static_cast<int>(ranks.size()), lane, &comm, &r.result) ==
             PRUN_OK);
  prun_status status;
  while ((status = load()->comm_test(r.ctx, comm, &r.result)) == PRUN_AGAIN) ::sched_yield();
  RANK_CHECK(status == PRUN_OK, "comm_test: %d %s", status, r.result.message);
  return comm;
}

prun_coll_params sum_of(const float* send, float* recv, uint64_t count, uint64_t sequence) {
  prun_coll_params p{};
  p.size = sizeof p;
  p.kind = PRUN_ALL_REDUCE;
  p.dtype = PRUN_F32;
  p.send = send;
  p.recv = recv;
  p.count = count;
  p.rank_order = 1;
  p.sequence = sequence;
  return p;
}

prun_req* start(Rank& r, prun_comm* comm, const prun_coll_params& p) {
  prun_req* req = nullptr;
  const prun_status status = load()->coll(r.ctx, comm, &p, {}, &req, &r.result);
  RANK_CHECK(status == PRUN_OK, "coll: %d %s", status, r.result.message);
  return req;
}

double seconds(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

long open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

// If one member's buffers are outside its arena, all members use the chunks; the results are the same.
TEST(Shm, MembersWithAndWithoutArenas) {
  expect_clean(fork_ranks(3, "", [](Rank& r) {
    constexpr size_t kCount = 300001;
    RANK_CHECK(load()->open(&r.params, &r.ctx, &r.result) == PRUN_OK);
    void* arena = nullptr;
    RANK_CHECK(load()->mem_alloc(r.ctx, 2 * (kCount + 64) * 4, PRUN_MEM_HOST, &arena, nullptr, &r.result) == PRUN_OK);
    RANK_CHECK(reinterpret_cast<uintptr_t>(arena) % 64 == 0);
    r.shared->bytes[r.rank] = PRUN_MAX_ADDRESS;
    RANK_CHECK(load()->address(r.ctx, r.shared->blobs[r.rank], &r.shared->bytes[r.rank], &r.result) == PRUN_OK);
    r.meet();
    r.connect();
    prun_comm* comm = make_comm(r, {2, 0, 1}, 5);
    std::vector<float> own(2 * kCount);
    uint64_t sequence = 0;
    for (int foreign = -1; foreign < 3; foreign++) {
      float* send = r.rank == foreign ? own.data() : static_cast<float*>(arena);
      float* recv = r.rank == foreign ? own.data() + kCount : static_cast<float*>(arena) + kCount + 64;
      for (size_t i = 0; i < kCount; i++) send[i] = static_cast<float>(r.rank + 1) * static_cast<float>(i % 1000);
      RANK_CHECK(r.wait(start(r, comm, sum_of(send, recv, kCount, sequence++))) == PRUN_OK, "%s", r.result.message);
      for (size_t i = 0; i < kCount; i++)
        RANK_CHECK(recv[i] == 6.0f * static_cast<float>(i % 1000), "foreign %d element %zu", foreign, i);
    }
    load()->comm_free(r.ctx, comm);
    r.meet();
  }));
}

// More groups than blocks, one after another: with and without calls, in step with other groups or not.
TEST(Shm, BlocksOfFreedGroupsAreUsedAgain) {
  expect_clean(fork_ranks(2, "", [](Rank& r) {
    r.start();
    for (int i = 0; i < 700; i++) {
      prun_comm* comm = make_comm(r, {0, 1}, i % 3);
      for (uint64_t call = 0; call < static_cast<uint64_t>(i % 4); call++) {
        float x = static_cast<float>(r.rank + i), sum = 0;
        RANK_CHECK(r.wait(start(r, comm, sum_of(&x, &sum, 1, call))) == PRUN_OK);
        RANK_CHECK(sum == static_cast<float>(2 * i + 1), "group %d call %d", i, static_cast<int>(call));
      }
      load()->comm_free(r.ctx, comm);
    }
    r.meet();
  }));
}

TEST(Shm, AbortFromAnotherThreadEndsASleep) {
  expect_clean(fork_ranks(2, "", [](Rank& r) {
    r.start();
    prun_comm* comm = make_comm(r, {0, 1}, 0);
    if (r.rank == 0) {
      float x = 1, sum = 0;
      prun_req* req = start(r, comm, sum_of(&x, &sum, 1, 0));
      const double until = seconds(CLOCK_MONOTONIC) + 0.05;
      while (seconds(CLOCK_MONOTONIC) < until) RANK_CHECK(load()->test(r.ctx, req, &r.result) == PRUN_AGAIN);
      double called = 0;
      std::thread other([&] {
        called = seconds(CLOCK_MONOTONIC);
        load()->abort(r.ctx);
        load()->abort(r.ctx);
      });
      RANK_CHECK(r.wait(req) == PRUN_EABORTED);
      const double ended = seconds(CLOCK_MONOTONIC);
      other.join();
      RANK_CHECK(ended - called < 0.1, "%f s", ended - called);
    }
    r.meet();
  }));
}

TEST(Shm, ADeadMemberIsNamed) {
  const std::vector<int> ends = fork_ranks(3, "", [](Rank& r) {
    r.start();
    prun_comm* comm = make_comm(r, {0, 1, 2}, 0);
    r.meet();
    if (r.rank == 1) ::raise(SIGKILL);
    std::vector<float> x(100000, 1.0f);
    RANK_CHECK(r.wait(start(r, comm, sum_of(x.data(), x.data(), x.size(), 0))) == PRUN_EPEER);
    RANK_CHECK(r.result.culprit == 1, "%s", r.result.message);
    RANK_CHECK(r.wait(r.batch({socket_world::recv_op(1, x.data(), 8)})) == PRUN_EPEER);
    RANK_CHECK(r.result.culprit == 1, "%s", r.result.message);
    r.meet(1);
  });
  EXPECT_EQ(ends[0], 0);
  EXPECT_EQ(ends[1], SIGKILL);
  EXPECT_EQ(ends[2], 0);
}

TEST(Shm, AnotherSecretIsRefused) {
  expect_clean(fork_ranks(2, "", [](Rank& r) {
    if (r.rank == 1) r.params.job_secret[31] ^= 1;
    r.open();
    r.meet();
    // The higher rank connects and rejects the other's proof of the secret; the lower one keeps listening.
    const prun_status status = r.try_connect(r.rank == 1 ? 20 : 0.3);
    RANK_CHECK(status == (r.rank == 1 ? PRUN_EPEER : PRUN_AGAIN), "rank %d: %d %s", r.rank, status, r.result.message);
    r.meet();
  }));
}

// Returns a connected descriptor, or -1.
int connect_to(const char* name, int flags) {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  std::memcpy(a.sun_path + 1, name, std::strlen(name));
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + std::strlen(name));
  if (fd >= 0 && ::connect(fd, reinterpret_cast<sockaddr*>(&a), length) == 0) return fd;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  errno = error;
  return -1;
}

// Any user of the machine can fill the backlog while a rank is late.
TEST(Shm, AFullBacklogIsWaitedOut) {
  expect_clean(fork_ranks(2, "", [](Rank& r) {
    r.open();
    r.meet();
    std::vector<int> strangers;
    if (r.rank == 1) {
      rlimit files{};
      ::getrlimit(RLIMIT_NOFILE, &files);
      files.rlim_cur = files.rlim_max;
      ::setrlimit(RLIMIT_NOFILE, &files);
      const char* blob = r.shared->blobs[0];
      const char* name = static_cast<const char*>(::memmem(blob, r.shared->bytes[0], "prun-test-0-", 12));
      RANK_CHECK(name != nullptr);
      for (int fd; (fd = connect_to(name, SOCK_NONBLOCK)) >= 0;) strangers.push_back(fd);
      RANK_CHECK(errno == EAGAIN, "errno %d after %zu", errno, strangers.size());
      RANK_CHECK(r.try_connect(0.1) == PRUN_AGAIN, "%s", r.result.message);
    }
    r.meet();
    r.connect();
    r.meet();
    for (int fd : strangers) ::close(fd);
  }));
}

// A rank without CPU time for long is dropped like a stranger; here later connections push it out.
TEST(Shm, ARankThatWasDroppedDialsAgain) {
  expect_clean(fork_ranks(2, "", [](Rank& r) {
    r.open();
    r.meet();
    std::vector<int> strangers;
    if (r.rank == 1) {
      RANK_CHECK(r.try_connect(0.05) == PRUN_AGAIN, "%s", r.result.message);
      const char* blob = r.shared->blobs[0];
      const char* name = static_cast<const char*>(::memmem(blob, r.shared->bytes[0], "prun-test-0-", 12));
      RANK_CHECK(name != nullptr);
      for (int i = 0; i < 100; i++) strangers.push_back(connect_to(name, 0));
      RANK_CHECK(strangers.back() >= 0);
    }
    r.meet();
    r.connect();
    r.meet();
    if (r.rank == 0) RANK_CHECK(socket_world::last_log.find("dropped a connection") != std::string::npos);
    for (int fd : strangers) ::close(fd);
  }));
}

// The stranger's greeting is not a message of this protocol.
TEST(Shm, AStrangerIsDroppedAndTheJobGoesOn) {
  expect_clean(fork_ranks(2, "", [](Rank& r) {
    r.open();
    r.meet();
    int stranger = -1;
    if (r.rank == 1) {
      const char* blob = r.shared->blobs[0];
      const char* name = static_cast<const char*>(::memmem(blob, r.shared->bytes[0], "prun-test-0-", 12));
      RANK_CHECK(name != nullptr);
      stranger = connect_to(name, 0);
      RANK_CHECK(stranger >= 0);
      RANK_CHECK(::send(stranger, "GET / HTTP/1.0", 14, MSG_NOSIGNAL) == 14);
    }
    r.connect();
    r.meet();
    if (r.rank == 0) RANK_CHECK(socket_world::last_log.find("dropped a connection") != std::string::npos);
    char byte;
    if (r.rank == 1) RANK_CHECK(::recv(stranger, &byte, 1, 0) <= 0);
  }));
}

TEST(Shm, WaitingCostsLittle) {
  expect_clean(fork_ranks(2, "", [](Rank& r) {
    r.start();
    char byte = 0;
    if (r.rank == 0) {
      prun_req* req = r.batch({socket_world::recv_op(1, &byte, 1)});
      const double began = seconds(CLOCK_PROCESS_CPUTIME_ID), until = seconds(CLOCK_MONOTONIC) + 0.4;
      while (seconds(CLOCK_MONOTONIC) < until) RANK_CHECK(load()->test(r.ctx, req, &r.result) == PRUN_AGAIN);
      const double used = seconds(CLOCK_PROCESS_CPUTIME_ID) - began;
      RANK_CHECK(used < 0.04, "%f s of 0.4", used);
      r.shared->flags[0] = 1;
      RANK_CHECK(r.wait(req) == PRUN_OK);
    } else {
      while (r.shared->flags[0] == 0) ::usleep(1000);
      r.run({socket_world::send_op(0, &byte, 1)});
    }
    r.meet();
  }));
}

TEST(Shm, LifeLeavesNothing) {
  expect_clean(fork_ranks(1, "", [](Rank& r) {
    const long before = open_files();
    for (int i = 0; i < 1000; i++) {
      RANK_CHECK(load()->open(&r.params, &r.ctx, &r.result) == PRUN_OK);
      void* arena = nullptr;
      RANK_CHECK(load()->mem_alloc(r.ctx, 1 << 20, PRUN_MEM_HOST, &arena, nullptr, &r.result) == PRUN_OK);
      if (i % 3 > 0) {
        r.shared->bytes[0] = PRUN_MAX_ADDRESS;
        RANK_CHECK(load()->address(r.ctx, r.shared->blobs[0], &r.shared->bytes[0], &r.result) == PRUN_OK);
      }
      if (i % 3 == 2) r.connect();
      r.close();
    }
    RANK_CHECK(open_files() == before, "%ld files, then %ld", before, open_files());
  }));
}

TEST(Shm, OptionsThatItDoesNotKnow) {
  const std::pair<const char*, const char*> cases[] = {
      {"smal=2", "shm has no option 'smal' (did you mean 'small'?)"},
      {"small=12", "shm option small=12: must be 64 .. 65536 bytes"},
      {"huge=2", "shm option huge=2: must be 0 or 1"},
      {"small", "shm option small has no value; it must be 64 .. 65536 bytes"},
      {"chunk=1M", "shm option chunk=1M: must be 4096 .. 524288 bytes"},
      {"tune=1", "shm has no option 'tune' (one of: chunk, huge, small)"}};
  for (const auto& [options, message] : cases) {
    expect_clean(fork_ranks(1, options, [&](Rank& r) {
      RANK_CHECK(load()->open(&r.params, &r.ctx, &r.result) == PRUN_EINVAL);
      RANK_CHECK(std::string(r.result.message) == message, "%s", r.result.message);
    }));
  }
}

}  // namespace
