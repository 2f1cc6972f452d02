// Ranks as forked processes over the socket plugin (or PRUN_TEST_PLUGIN), for its tests and benchmarks. Blobs are
// exchanged through shared anonymous memory, each rank runs a body, and the parent checks how the ranks ended.
//
// A failing rank prints the reason and exits with 1, because GoogleTest failures do not cross a fork.
#pragma once
#include <dlfcn.h>
#include <prun/transport.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#define RANK_CHECK(condition, ...)                                                \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: %s failed: ", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, " " __VA_ARGS__);                                      \
      std::fputc('\n', stderr);                                                   \
      ::_exit(1);                                                                 \
    }                                                                             \
  } while (0)

#ifndef PRUN_TEST_PLUGIN
#define PRUN_TEST_PLUGIN "socket"
#endif

namespace socket_world {

inline constexpr int kMaxRanks = 8;

struct Shared {  // zero-initialized
  char blobs[kMaxRanks][PRUN_MAX_ADDRESS];
  size_t bytes[kMaxRanks];
  std::atomic<int> arrived[64];  // one per barrier
  std::atomic<int> flags[16];    // for the tests
};

inline std::string last_log;
inline const prun_host* host() {
  static const double cores = [] {
    const char* text = std::getenv("PRUN_TEST_CORES_PER_RANK");
    return text ? std::atof(text) : 0.5;
  }();
  static const prun_host value = {sizeof(prun_host), PRUN_TRANSPORT_ABI, [](int, const char* text) { last_log = text; },
                                  [] { return 0; }, cores};
  return &value;
}

inline const prun_transport* load() {
  static const prun_transport* table = [] {
    void* library = ::dlopen(PRUN_PLUGIN_DIR "/" PRUN_TEST_PLUGIN ".so", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) std::fprintf(stderr, "%s\n", ::dlerror());
    RANK_CHECK(library != nullptr);
    return reinterpret_cast<prun_transport_entry>(::dlsym(library, "prun_transport_v1"))(host());
  }();
  return table;
}

struct Rank {
  int rank, ranks;
  Shared* shared;
  prun_open_params params{};
  prun_ctx* ctx = nullptr;
  prun_result result{};
  int meetings = 0;

  Rank(int r, int n, const char* options, Shared* s) : rank(r), ranks(n), shared(s) {
    params = {sizeof params, r, n, r, n, options, {}, "test", nullptr};
    std::memset(params.job_secret, 7, sizeof params.job_secret);
    result.size = sizeof result;
  }

  void meet(int absent = 0) {  // a barrier of all ranks but `absent`
    std::atomic<int>& counter = shared->arrived[meetings++];
    ++counter;
    while (counter < ranks - absent) ::sched_yield();
  }
  void open() {
    const prun_status status = load()->open(&params, &ctx, &result);
    RANK_CHECK(status == PRUN_OK, "%s", result.message);
    shared->bytes[rank] = PRUN_MAX_ADDRESS;
    RANK_CHECK(load()->address(ctx, shared->blobs[rank], &shared->bytes[rank], &result) == PRUN_OK);
  }
  prun_status try_connect(double seconds) {
    const void* blobs[kMaxRanks];
    for (int i = 0; i < ranks; ++i) blobs[i] = shared->blobs[i];
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    prun_status status;
    while ((status = load()->connect(ctx, blobs, shared->bytes, &result)) == PRUN_AGAIN &&
           std::chrono::steady_clock::now() < until)
      ::sched_yield();
    return status;
  }
  void connect() {
    const prun_status status = try_connect(20);
    RANK_CHECK(status == PRUN_OK, "rank %d: status %d %s", rank, status, result.message);
  }
  void start() {
    open();
    meet();
    connect();
  }
  void close() { load()->close(std::exchange(ctx, nullptr)); }

  prun_req* batch(const std::vector<prun_p2p>& ops) {
    prun_req* req = nullptr;
    const prun_status status = load()->batch(ctx, ops.data(), ops.size(), {}, &req, &result);
    RANK_CHECK(status == PRUN_OK, "batch: %d %s", status, result.message);
    return req;
  }
  prun_status wait(prun_req* req, double seconds = 20) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    prun_status status;
    while ((status = load()->test(ctx, req, &result)) == PRUN_AGAIN && std::chrono::steady_clock::now() < until) {
    }
    return status;
  }
  void run(const std::vector<prun_p2p>& ops) {
    const prun_status status = wait(batch(ops));
    RANK_CHECK(status == PRUN_OK, "rank %d: status %d culprit %d %s", rank, status, result.culprit, result.message);
  }
};

inline prun_p2p send_op(int to, const void* from, size_t bytes, uint64_t lane = 0) {
  return {0, to, lane, const_cast<void*>(from), bytes, PRUN_MEM_HOST, nullptr};
}
inline prun_p2p recv_op(int from, void* to, size_t bytes, uint64_t lane = 0) {
  return {1, from, lane, to, bytes, PRUN_MEM_HOST, nullptr};
}

// Forks the ranks and returns the wait status of each. `body` receives a rank that is not opened yet.
inline std::vector<int> fork_ranks(int ranks, const char* options, const std::function<void(Rank&)>& body) {
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* shared = static_cast<Shared*>(memory);
  std::vector<pid_t> pids;
  for (int r = 0; r < ranks; ++r) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(60);
      Rank rank(r, ranks, options, shared);
      body(rank);
      if (rank.ctx != nullptr) rank.close();
      std::fflush(stdout);
      ::_exit(0);
    }
    pids.push_back(pid);
  }
  std::vector<int> ends;
  for (const pid_t pid : pids) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    ends.push_back(status);
  }
  ::munmap(memory, sizeof(Shared));
  return ends;
}

}  // namespace socket_world
