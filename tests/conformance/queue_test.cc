// Item 11: queue-ordered transports, on the queues of a CUDA runtime: work keeps its position among a program's own,
// queues do not wait for each other, and test reports later errors. Other transports skip these tests.
#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <numeric>
#include <thread>

#include "comm/collectives/call.h"
#include "comm/transport/job_state.h"
#include "comm/transport/plugin.h"
#include "comm/transport/transport_session.h"
#include "tests/conformance/suite.h"

namespace prun::testing {
namespace {

using Stream = void*;

// The runtime that the plugin uses: its option cudart, or the system's. Declared by hand, because prun builds without
// CUDA.
struct Runtime {
  int (*stream_create)(Stream*, unsigned);
  int (*synchronize)(Stream);
  int (*host_function)(Stream, void (*)(void*), void*);
  int (*malloc)(void**, size_t);
  int (*host_alloc)(void**, size_t, unsigned);
  int (*copy)(void*, const void*, size_t, int, Stream);
  int (*begin_capture)(Stream, int);
  int (*end_capture)(Stream, void**);
  int (*instantiate)(void**, void*, unsigned long long);
  int (*launch)(void*, Stream);

  Runtime() {
    const std::string& options = suite().transport_options;
    size_t at = options.find("cudart=");
    std::string file =
        at == std::string::npos ? "libcudart.so" : options.substr(at + 7, options.find(',', at) - at - 7);
    void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw Error(Exit::transport, fmt::format("no CUDA runtime for the queues: {}", dlerror()));
    auto bind = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) throw Error(Exit::transport, fmt::format("{} has no {}", file, name));
    };
    bind(stream_create, "cudaStreamCreateWithFlags");
    bind(synchronize, "cudaStreamSynchronize");
    bind(host_function, "cudaLaunchHostFunc");
    bind(malloc, "cudaMalloc");
    bind(host_alloc, "cudaHostAlloc");
    bind(copy, "cudaMemcpyAsync");
    bind(begin_capture, "cudaStreamBeginCapture");
    bind(end_capture, "cudaStreamEndCapture");
    bind(instantiate, "cudaGraphInstantiateWithFlags");
    bind(launch, "cudaGraphLaunch");
  }
};

void expect_ok(int error, const char* what) {
  if (error != 0) throw Error(Exit::transport, fmt::format("{}: CUDA error {}", what, error));
}

// Blocks a queue until the test opens it: later work cannot have run before, and a call that waits for it would
// deadlock.
struct Gate {
  std::atomic<bool> open{false};
  static void wait(void* gate) {
    while (!static_cast<Gate*>(gate)->open) usleep(100);
  }
};

constexpr size_t kItems = 1000;

// A rank with queues that calls the plugin's own functions. Its allocations end with the process.
struct Queued {
  LocalBootstrap& bootstrap;
  TransportSession& session;
  Runtime cuda;
  int rank, ranks;
  uint64_t sequence = 0;

  Stream stream() {
    Stream made = nullptr;
    expect_ok(cuda.stream_create(&made, 1), "a stream");  // 1: does not wait for the default stream
    return made;
  }
  float* device() {
    void* memory = nullptr;
    expect_ok(cuda.malloc(&memory, kItems * sizeof(float) * static_cast<size_t>(ranks)), "device memory");
    return static_cast<float*>(memory);
  }
  float* pinned(float value) {
    void* memory = nullptr;
    expect_ok(cuda.host_alloc(&memory, kItems * sizeof(float), 0), "pinned memory");
    std::fill_n(static_cast<float*>(memory), kItems, value);
    return static_cast<float*>(memory);
  }
  void copy(void* to, const void* from, Stream queue) {
    expect_ok(cuda.copy(to, from, kItems * sizeof(float), 4, queue), "a copy");  // 4: direction by address
  }
  prun_comm* communicator(int lane) {
    prun_comm* comm = nullptr;
    prun_result result = empty_result();
    prun_status status =
        session.table().comm_create(session.ctx(), all_ranks(ranks).data(), ranks, lane, &comm, &result);
    for (double start = now_s(); status == PRUN_OK || status == PRUN_AGAIN;) {
      status = session.table().comm_test(session.ctx(), comm, &result);
      if (status == PRUN_OK) return comm;
      if (now_s() - start > 20) break;
    }
    session.fail(status, result, "making a communicator");
  }
  prun_status start(prun_comm* comm, CollKind kind, const float* send, float* recv, Stream queue, prun_req** req,
                    size_t count = kItems) {
    CollCall call;
    call.kind = kind;
    call.count = static_cast<int64_t>(count);
    prun_coll_params params{};
    params.size = sizeof params;
    params.kind = static_cast<int>(kind);
    params.dtype = PRUN_F32;
    params.send = send;
    params.recv = recv;
    params.count = count;
    params.sequence = sequence++;
    params.fingerprint = pack_fingerprint(call);
    prun_result result = empty_result();
    prun_status status = session.table().coll(session.ctx(), comm, &params, {PRUN_MEM_CUDA, queue}, req, &result);
    if (status != PRUN_OK && status != PRUN_ENOTSUP) session.fail(status, result, "enqueueing");
    return status;
  }
  prun_req* sum(prun_comm* comm, const float* send, float* recv, Stream queue) {
    prun_req* req = nullptr;
    if (start(comm, CollKind::all_reduce, send, recv, queue, &req) != PRUN_OK)
      throw Error(Exit::transport, "no all_reduce of its own");
    return req;
  }
  void wait(prun_req* req) {
    prun_result result = empty_result();
    prun_status status = session.wait(req, 0, result);
    if (status != PRUN_OK) session.fail(status, result, "waiting");
  }
  bool pending(prun_req* req) {
    prun_result result = empty_result();
    return session.table().test(session.ctx(), req, &result) == PRUN_AGAIN;
  }
  float total() const { return static_cast<float>(ranks * (ranks + 1) / 2); }  // of rank + 1
};

std::string all_are(const float* values, float want, const char* what) {
  for (size_t i = 0; i < kItems; ++i)
    if (values[i] != want) return fmt::format("{}: element {} is {}, not {}", what, i, values[i], want);
  return "";
}

std::vector<RankReport> run_queued(const LocalJob& job, const std::function<std::string(Queued&)>& body) {
  return run_ranks(job, [&](LocalBootstrap& bootstrap) -> std::string {
    set_job(&bootstrap, job.ranks);
    WorldOptions options = suite().options(bootstrap);
    TransportSession session(load_named(options.transport, options.plugin_dirs), options);
    join_and_connect(session, options, bootstrap);
    Queued queued{bootstrap, session, {}, bootstrap.rank(), job.ranks};
    std::string text = body(queued);
    if (text.empty() && job.abort_on_death) bootstrap.barrier();
    return text;
  });
}
std::vector<RankReport> run_queued(int ranks, const std::function<std::string(Queued&)>& body) {
  LocalJob job;
  job.ranks = ranks;
  return run_queued(job, body);
}

class Queue : public ::testing::Test {
 protected:
  void SetUp() override {
    if (load_named(suite().transport, suite().plugin_dirs).table.queue_ordered == 0)
      GTEST_SKIP() << "not queue-ordered";
  }
};

TEST_F(Queue, OrderIsKept) {
  EXPECT_EQ(failures(run_queued(3,
                                [](Queued& q) -> std::string {
                                  Stream queue = q.stream();
                                  float *in = q.device(), *out = q.device();
                                  float *late = q.pinned(static_cast<float>(q.rank + 1)), *result = q.pinned(-1);
                                  Gate gate;
                                  q.copy(in, result, queue);  // input of the sum if the order is lost
                                  q.cuda.host_function(queue, Gate::wait, &gate);
                                  q.copy(in, late, queue);
                                  prun_comm* comm = q.communicator(1);
                                  prun_req* req = q.sum(comm, in, out, queue);
                                  q.copy(result, out, queue);
                                  if (!q.pending(req)) return "ended before its turn";
                                  gate.open = true;
                                  q.wait(req);
                                  q.cuda.synchronize(queue);
                                  return all_are(result, q.total(), "the sum");
                                })),
            "");
}

TEST_F(Queue, TwoDoNotWaitForEachOther) {
  EXPECT_EQ(failures(run_queued(2,
                                [](Queued& q) -> std::string {
                                  Stream held = q.stream(), free = q.stream();
                                  float *in = q.device(), *out = q.device(), *other = q.device();
                                  float *mine = q.pinned(static_cast<float>(q.rank + 1)), *result = q.pinned(-1);
                                  prun_comm *first = q.communicator(1), *second = q.communicator(2);
                                  q.copy(in, mine, free);
                                  q.cuda.synchronize(free);
                                  Gate gate;
                                  q.cuda.host_function(held, Gate::wait, &gate);
                                  prun_req* behind = q.sum(first, in, out, held);
                                  q.sequence = 0;
                                  q.wait(q.sum(second, in, other, free));
                                  q.copy(result, other, free);
                                  q.cuda.synchronize(free);
                                  if (!q.pending(behind)) return "ended before its turn";
                                  gate.open = true;
                                  q.wait(behind);
                                  return all_are(result, q.total(), "the other queue's sum");
                                })),
            "");
}

// Two ranks start their kernels in opposite orders, so the device must hold both at once.
TEST_F(Queue, TwoWorkAtTheSameTime) {
  LocalJob job;
  job.ranks = 2;
  job.timeout_s = 20;
  EXPECT_EQ(failures(run_queued(job,
                                [](Queued& q) -> std::string {
                                  Stream one = q.stream(), other = q.stream();
                                  float *in = q.device(), *out = q.device(), *more = q.device();
                                  float *mine = q.pinned(static_cast<float>(q.rank + 1)), *result = q.pinned(-1);
                                  prun_comm *first = q.communicator(1), *second = q.communicator(2);
                                  q.copy(in, mine, one);
                                  q.cuda.synchronize(one);
                                  Gate gate;
                                  if (q.rank == 0) gate.open = true;
                                  q.cuda.host_function(one, Gate::wait, &gate);
                                  prun_req* early = q.sum(first, in, out, one);
                                  for (const double start = now_s(); now_s() - start < 0.05;)  // until rank 0's runs
                                    if (!q.pending(early)) return "ended without the other rank";
                                  q.sequence = 0;
                                  q.wait(q.sum(second, in, more, other));
                                  gate.open = true;
                                  q.wait(early);
                                  q.copy(result, out, one);
                                  q.cuda.synchronize(one);
                                  return all_are(result, q.total(), "the sum");
                                })),
            "");
}

// Reductions, messages and a gather, each on the previous result, without waits in between.
TEST_F(Queue, ResultsFeedWhatComesNext) {
  EXPECT_EQ(failures(run_queued(
                3,
                [](Queued& q) -> std::string {
                  Stream queue = q.stream();
                  float *in = q.device(), *sum = q.device(), *got = q.device(), *all = q.device();
                  float *mine = q.pinned(static_cast<float>(q.rank + 1)), *result = q.pinned(-1);
                  prun_comm* comm = q.communicator(1);
                  const int next = (q.rank + 1) % q.ranks, previous = (q.rank + q.ranks - 1) % q.ranks;
                  const size_t bytes = kItems * sizeof(float);
                  q.copy(in, mine, queue);
                  prun_req *summed = q.sum(comm, in, sum, queue), *sent = nullptr, *gathered = nullptr;
                  const prun_p2p ops[] = {{1, previous, 1, got, bytes, PRUN_MEM_CUDA, nullptr},
                                          {0, next, 1, q.rank == 0 ? sum : in, bytes, PRUN_MEM_CUDA, nullptr}};
                  prun_result said = empty_result();
                  if (q.session.table().batch(q.session.ctx(), ops, 2, {PRUN_MEM_CUDA, queue}, &sent, &said) != 0)
                    return said.message;
                  if (q.start(comm, CollKind::all_gather, got, all, queue, &gathered) != PRUN_OK)
                    return "no all_gather of its own";
                  q.copy(result, all + kItems * static_cast<size_t>(next), queue);
                  for (prun_req* req : {gathered, sent, summed}) q.wait(req);
                  q.cuda.synchronize(queue);
                  // The data of `next` is from this rank.
                  const float want = q.rank == 0 ? q.total() : static_cast<float>(q.rank + 1);
                  return all_are(result, want, "what went around");
                })),
            "");
}

// A communicator of the core passes on a call's queue; device memory never reaches the core's own algorithms.
TEST_F(Queue, TheCoreHandsThemOn) {
  auto reports = run_connected(2, [](Rank& rank) -> std::string {
    Runtime cuda;
    Stream queue = nullptr;
    void *values = nullptr, *pinned = nullptr;
    expect_ok(cuda.stream_create(&queue, 1), "a stream");
    expect_ok(cuda.malloc(&values, kItems * sizeof(float)), "device memory");
    expect_ok(cuda.host_alloc(&pinned, kItems * sizeof(float), 0), "pinned memory");
    auto* mine = static_cast<float*>(pinned);
    std::fill_n(mine, kItems, static_cast<float>(rank.index + 1));
    expect_ok(cuda.copy(values, mine, kItems * sizeof(float), 4, queue), "a copy");
    CollCall call;
    call.kind = CollKind::all_reduce;
    call.send = call.recv = values;
    call.count = kItems;
    call.queue = {PRUN_MEM_CUDA, queue};
    Communicator& all = rank.world.communicator({0, 1}, 0);
    all.run(call);
    expect_ok(cuda.copy(mine, values, kItems * sizeof(float), 4, queue), "a copy");
    cuda.synchronize(queue);
    std::string wrong = all_are(mine, 3, "the sum");
    if (!wrong.empty()) return wrong;
    // Rank r sends member m r + 2m elements, numbered from 100·(r + 1) on; afterwards nothing.
    call.kind = CollKind::all_to_all_v;
    const int64_t r = rank.index, sent[] = {r, r + 2}, received[] = {2 * r, 2 * r + 1}, none[] = {0, 0};
    std::iota(mine, mine + kItems, static_cast<float>(100 * (r + 1)));
    expect_ok(cuda.copy(values, mine, kItems * sizeof(float), 4, queue), "a copy");
    call.counts = sent;
    call.recv_counts = received;
    call.recv = static_cast<float*>(values) + kItems / 2;
    all.run(call);
    call.counts = call.recv_counts = none;
    all.run(call);
    cuda.synchronize(queue);  // the queue reads `mine` until then
    std::fill_n(mine, kItems, 0.0f);
    expect_ok(cuda.copy(mine, call.recv, (4 * r + 1) * sizeof(float), 4, queue), "a copy");
    cuda.synchronize(queue);
    std::vector<float> wanted;
    for (int64_t m = 0; m < 2; ++m)
      for (int64_t i = 0; i < received[m]; ++i) wanted.push_back(static_cast<float>(100 * (m + 1) + r * m + i));
    wanted.resize(kItems);
    if (!std::equal(wanted.begin(), wanted.end(), mine)) return "all_to_all_v: other elements";
    call.kind = CollKind::all_gather_v;
    const int64_t counts[] = {1, 1};
    call.counts = counts;
    all.run(call);
    return "the core gathered it";
  });
  std::string texts = failures(reports);
  EXPECT_NE(texts.find("on a CUDA stream: "), std::string::npos) << texts;
  EXPECT_EQ(texts.find("the core gathered it"), std::string::npos) << texts;
  for (const char* wrong : {"the sum", "all_to_all_v: "}) EXPECT_EQ(texts.find(wrong), std::string::npos) << texts;
}

// A plugin without capture returns PRUN_ENOTSUP.
TEST_F(Queue, AGraphRunsItAgain) {
  EXPECT_EQ(failures(run_queued(2,
                                [](Queued& q) -> std::string {
                                  Stream queue = q.stream();
                                  float *x = q.device(), *mine = q.pinned(static_cast<float>(q.rank + 1)),
                                        *result = q.pinned(-1);
                                  prun_comm* comm = q.communicator(1);
                                  q.wait(q.sum(comm, x, x, queue));  // connects the ranks
                                  q.copy(x, mine, queue);
                                  q.cuda.synchronize(queue);
                                  void *graph = nullptr, *program = nullptr;
                                  prun_req* req = nullptr;
                                  expect_ok(q.cuda.begin_capture(queue, 1), "capture");
                                  prun_status status = q.start(comm, CollKind::all_reduce, x, x, queue, &req);
                                  expect_ok(q.cuda.end_capture(queue, &graph), "the end of the capture");
                                  if (status == PRUN_ENOTSUP) return "";
                                  q.wait(req);  // nothing runs yet, so it does not wait
                                  q.copy(result, x, queue);
                                  q.cuda.synchronize(queue);
                                  if (result[0] != mine[0]) return "it ran while it was captured";
                                  expect_ok(q.cuda.instantiate(&program, graph, 0), "the graph");
                                  for (int i = 0; i < 3; ++i) expect_ok(q.cuda.launch(program, queue), "a launch");
                                  q.copy(result, x, queue);
                                  q.cuda.synchronize(queue);
                                  return all_are(result, 4 * q.total(), "three sums in a row");
                                })),
            "");
}

// Between launches other messages of this rank to itself use the plugin's buffers, which differ from the graph's.
TEST_F(Queue, AGraphRunsMessagesToItselfAgain) {
  EXPECT_EQ(failures(run_queued(2,
                                [](Queued& q) -> std::string {
                                  Stream queue = q.stream();
                                  float *x = q.device(), *y = q.device(), *other = q.device();
                                  float *value = q.pinned(0), *result = q.pinned(-1);
                                  const size_t bytes = kItems * sizeof(float);
                                  const auto enqueue = [&](const prun_p2p* ops, size_t n) {
                                    prun_req* req = nullptr;
                                    prun_result said = empty_result();
                                    const prun_status status = q.session.table().batch(
                                        q.session.ctx(), ops, n, {PRUN_MEM_CUDA, queue}, &req, &said);
                                    if (status != PRUN_OK && status != PRUN_ENOTSUP)
                                      q.session.fail(status, said, "enqueueing");
                                    if (status == PRUN_OK) q.wait(req);  // of a capture: nothing runs yet
                                    return status;
                                  };
                                  const auto to_itself = [&](float* from, float* to, bool in_one_batch) {
                                    const prun_p2p ops[] = {{0, q.rank, 1, from, bytes, PRUN_MEM_CUDA, nullptr},
                                                            {1, q.rank, 1, to, bytes, PRUN_MEM_CUDA, nullptr}};
                                    if (in_one_batch) return enqueue(ops, 2);
                                    const prun_status status = enqueue(ops, 1);
                                    return status == PRUN_OK ? enqueue(ops + 1, 1) : status;
                                  };
                                  for (const bool in_one_batch : {false, true}) {
                                    void *graph = nullptr, *program = nullptr;
                                    expect_ok(q.cuda.begin_capture(queue, 1), "capture");
                                    const prun_status status = to_itself(x, y, in_one_batch);
                                    expect_ok(q.cuda.end_capture(queue, &graph), "the end of the capture");
                                    if (status == PRUN_ENOTSUP) return "";
                                    expect_ok(q.cuda.instantiate(&program, graph, 0), "the graph");
                                    for (int round = 1; round <= 3; ++round) {
                                      std::fill_n(value, kItems, static_cast<float>(round));
                                      q.copy(x, value, queue);
                                      expect_ok(q.cuda.launch(program, queue), "a launch");
                                      q.copy(result, y, queue);
                                      q.cuda.synchronize(queue);
                                      if (std::string wrong = all_are(result, static_cast<float>(round), "the graph's");
                                          !wrong.empty())
                                        return wrong;
                                      to_itself(y, other, in_one_batch);
                                    }
                                  }
                                  return "";
                                })),
            "");
}

TEST_F(Queue, ADeathAfterEnqueueingIsTold) {
  LocalJob job;
  job.ranks = 2;
  job.abort_on_death = false;
  auto reports = run_queued(job, [](Queued& q) -> std::string {
    Stream queue = q.stream();
    float *in = q.device(), *out = q.device();
    prun_comm* comm = q.communicator(1);
    q.wait(q.sum(comm, in, out, queue));
    if (q.rank == 1) kill(getpid(), SIGKILL);
    prun_req* req = q.sum(comm, in, out, queue);
    prun_result result = empty_result();
    prun_status status = q.session.wait(req, 0, result);
    return fmt::format("status {}, culprit {}: {}", static_cast<int>(status), result.culprit, result.message);
  });
  EXPECT_EQ(reports[0].text.rfind(fmt::format("status {}, culprit 1: ", static_cast<int>(PRUN_EPEER)), 0), 0u)
      << reports[0].text;
}

TEST_F(Queue, CallsThatDifferAreFoundBehindTheirBack) {
  auto reports = run_queued(2, [](Queued& q) -> std::string {
    Stream queue = q.stream();
    float *in = q.device(), *out = q.device();
    prun_comm* comm = q.communicator(1);
    q.wait(q.sum(comm, in, out, queue));
    prun_req* req = nullptr;
    q.start(comm, CollKind::all_reduce, in, out, queue, &req, kItems - static_cast<size_t>(q.rank));
    prun_result result = empty_result();
    prun_status status = q.session.wait(req, 0, result);
    return status == PRUN_EMISMATCH ? fmt::format("mismatch with {}", result.culprit)
                                    : fmt::format("status {}", static_cast<int>(status));
  });
  std::string texts = failures(reports);
  EXPECT_NE(texts.find("mismatch with "), std::string::npos) << texts;
  EXPECT_EQ(texts.find("status 0"), std::string::npos) << texts;
}

TEST_F(Queue, AbortEndsWhatIsEnqueued) {
  LocalJob job;
  job.ranks = 2;
  job.abort_on_death = false;
  EXPECT_EQ(failures(run_queued(job,
                                [](Queued& q) -> std::string {
                                  Stream queue = q.stream();
                                  float *in = q.device(), *out = q.device();
                                  prun_comm* comm = q.communicator(1);
                                  q.wait(q.sum(comm, in, out, queue));
                                  q.bootstrap.barrier();
                                  if (q.rank == 1) return q.bootstrap.barrier(), "";
                                  prun_req* req = q.sum(comm, in, out, queue);
                                  double before = now_s();
                                  std::thread([&] { q.session.abort(), q.session.abort(); }).join();
                                  double took = now_s() - before;
                                  prun_result result = empty_result();
                                  prun_status status = q.session.wait(req, 0, result);
                                  q.bootstrap.barrier();
                                  if (status != PRUN_EABORTED)
                                    return fmt::format("status {}", static_cast<int>(status));
                                  return took < 1 ? "" : fmt::format("abort took {:.1f} s", took);
                                })),
            "");
}

}  // namespace
}  // namespace prun::testing
