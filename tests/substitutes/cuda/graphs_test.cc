// Tests streams, events and captures of the substitute: they order only the work that CUDA orders, and they refuse what
// CUDA refuses.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

namespace {

// Records the numbers of host functions, after a delay if they should be late.
class Notes {
 public:
  void note(cudaStream_t stream, int number, int delay_ms = 0) {
    auto* one = new One{this, number, delay_ms};
    EXPECT_EQ(cudaLaunchHostFunc(
                  stream, [](void* data) { static_cast<One*>(data)->run(); }, one),
              cudaSuccess);
  }
  std::vector<int> take() {
    std::lock_guard lock(mutex_);
    return std::exchange(numbers_, {});
  }

 private:
  struct One {  // never freed: a graph runs it often
    Notes* notes;
    int number, delay_ms;
    void run() {
      if (delay_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
      std::lock_guard lock(notes->mutex_);
      notes->numbers_.push_back(number);
    }
  };
  std::mutex mutex_;
  std::vector<int> numbers_;
};

class Graphs : public testing::Test {
 protected:
  void SetUp() override {
    for (cudaStream_t* stream : {&a_, &b_})
      ASSERT_EQ(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking), cudaSuccess);
    for (cudaEvent_t* event : {&fork_, &join_})
      ASSERT_EQ(cudaEventCreateWithFlags(event, cudaEventDisableTiming), cudaSuccess);
  }
  void TearDown() override {
    cudaDeviceSynchronize();
    for (cudaStream_t stream : {a_, b_}) cudaStreamDestroy(stream);
    for (cudaEvent_t event : {fork_, join_}) cudaEventDestroy(event);
  }
  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed) {
    ASSERT_EQ(cudaStreamBeginCapture(a_, mode), cudaSuccess);
  }
  cudaError_t end() {
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(a_, &graph);
    if (error != cudaSuccess) {
      EXPECT_EQ(graph, nullptr);
      return error;
    }
    EXPECT_EQ(cudaGraphInstantiate(&exec_, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return error;
  }
  void order(cudaEvent_t event, cudaStream_t from, cudaStream_t to) {
    ASSERT_EQ(cudaEventRecord(event, from), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(to, event, 0), cudaSuccess);
  }
  void launch() {
    ASSERT_EQ(cudaGraphLaunch(exec_, a_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(a_), cudaSuccess);
  }
  void destroy() { ASSERT_EQ(cudaGraphExecDestroy(exec_), cudaSuccess); }

  cudaStream_t a_ = nullptr, b_ = nullptr;
  cudaEvent_t fork_ = nullptr, join_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
  Notes notes_;
};

TEST_F(Graphs, EventsOrderStreams) {
  notes_.note(a_, 1, 5);
  order(fork_, a_, b_);
  notes_.note(b_, 2);
  ASSERT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_EQ(notes_.take(), (std::vector{1, 2}));
}

TEST_F(Graphs, ACaptureSpreadsAndIsReplayed) {
  begin();
  notes_.note(a_, 1, 3);
  order(fork_, a_, b_);
  notes_.note(b_, 2, 3);
  order(join_, b_, a_);
  notes_.note(a_, 3);
  ASSERT_EQ(end(), cudaSuccess);
  EXPECT_EQ(notes_.take(), std::vector<int>());
  for (int i = 0; i < 3; ++i) {
    launch();
    EXPECT_EQ(notes_.take(), (std::vector{1, 2, 3}));
  }
  notes_.note(b_, 4);  // b is an ordinary stream again
  ASSERT_EQ(cudaStreamSynchronize(b_), cudaSuccess);
  EXPECT_EQ(notes_.take(), std::vector{4});
  destroy();
}

__global__ void meet(int* mine, int* other) {
  atomicAdd(mine, 1);
  while (atomicAdd(other, 0) == 0) __nanosleep(1000);
}

// Branches without an edge run concurrently: each waits for the other. External events are visible to the host.
TEST_F(Graphs, BranchesRunTogether) {
  int* flags = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&flags), 8), cudaSuccess);
  ASSERT_EQ(cudaMemset(flags, 0, 8), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);  // cudaMemset is asynchronous
  begin();
  order(fork_, a_, b_);
  for (cudaStream_t stream : {a_, b_}) {
    cudaLaunchConfig_t config{};
    config.gridDim = config.blockDim = 1;
    config.stream = stream;
    ASSERT_EQ(cudaLaunchKernelEx(&config, meet, stream == a_ ? flags : flags + 1, stream == a_ ? flags + 1 : flags),
              cudaSuccess);
  }
  cudaEvent_t seen = nullptr;
  ASSERT_EQ(cudaEventCreate(&seen), cudaSuccess);
  ASSERT_EQ(cudaEventRecordWithFlags(seen, b_, cudaEventRecordExternal), cudaSuccess);
  order(join_, b_, a_);
  ASSERT_EQ(end(), cudaSuccess);
  launch();
  EXPECT_EQ(cudaEventQuery(seen), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(seen), cudaSuccess);
  destroy();
  ASSERT_EQ(cudaFree(flags), cudaSuccess);
}

// An external event is pending from the launch on, not from the start of its work: the previous launch does not count.
TEST_F(Graphs, AnExternalEventIsOfTheLatestLaunch) {
  std::mutex gate;
  begin();
  const auto wait = [](void* at) { std::lock_guard lock(*static_cast<std::mutex*>(at)); };
  ASSERT_EQ(cudaLaunchHostFunc(a_, wait, &gate), cudaSuccess);
  ASSERT_EQ(cudaEventRecordWithFlags(fork_, a_, cudaEventRecordExternal), cudaSuccess);
  ASSERT_EQ(end(), cudaSuccess);
  for (int i = 0; i < 3; ++i) {
    std::unique_lock closed(gate);
    ASSERT_EQ(cudaGraphLaunch(exec_, a_), cudaSuccess);
    EXPECT_EQ(cudaEventQuery(fork_), cudaErrorNotReady);
    closed.unlock();
    EXPECT_EQ(cudaEventSynchronize(fork_), cudaSuccess);
  }
  destroy();
}

TEST_F(Graphs, AnEdgeThatIsMissingShows) {
  begin();
  order(fork_, a_, b_);
  for (int i = 0; i < 4; ++i) notes_.note(i % 2 == 0 ? a_ : b_, i);
  order(join_, b_, a_);
  ASSERT_EQ(end(), cudaSuccess);
  bool other_order = false;
  for (int i = 0; i < 200 && !other_order; ++i) {
    launch();
    const std::vector<int> seen = notes_.take();
    ASSERT_EQ(seen.size(), 4u);
    other_order = seen != std::vector{0, 1, 2, 3};
  }
  EXPECT_TRUE(other_order);
  destroy();
}

TEST_F(Graphs, AStreamThatWasNotJoined) {
  begin();
  order(fork_, a_, b_);
  notes_.note(b_, 1);
  EXPECT_EQ(end(), cudaErrorStreamCaptureUnjoined);
  begin();
  order(fork_, a_, b_);
  order(join_, b_, a_);
  notes_.note(b_, 1);  // after it has joined
  EXPECT_EQ(end(), cudaErrorStreamCaptureUnjoined);
}

TEST_F(Graphs, WhatACaptureForbids) {
  void* memory = nullptr;
  char pageable[4];
  begin(cudaStreamCaptureModeGlobal);
  EXPECT_EQ(cudaMalloc(&memory, 4), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin(cudaStreamCaptureModeThreadLocal);
  std::thread([&] { EXPECT_EQ(cudaMalloc(&memory, 4), cudaSuccess); }).join();
  EXPECT_EQ(end(), cudaSuccess);
  destroy();
  begin();
  EXPECT_EQ(cudaStreamSynchronize(a_), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin();
  EXPECT_EQ(cudaMemcpyAsync(memory, pageable, 4, cudaMemcpyDefault, a_), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  begin();
  ASSERT_EQ(cudaEventRecord(fork_, a_), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(fork_), cudaErrorCapturedEvent);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  ASSERT_EQ(cudaEventRecord(fork_, b_), cudaSuccess);
  begin();
  EXPECT_EQ(cudaStreamWaitEvent(a_, fork_, 0), cudaErrorStreamCaptureIsolation);
  EXPECT_EQ(end(), cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

TEST_F(Graphs, TimesBetweenEvents) {
  cudaEvent_t from = nullptr, to = nullptr;
  for (cudaEvent_t* event : {&from, &to}) ASSERT_EQ(cudaEventCreate(event), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(from, a_), cudaSuccess);
  notes_.note(a_, 1, 3);
  ASSERT_EQ(cudaEventRecord(to, a_), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(to), cudaSuccess);
  float ms = 0;
  ASSERT_EQ(cudaEventElapsedTime(&ms, from, to), cudaSuccess);
  EXPECT_GE(ms, 3);
  EXPECT_EQ(cudaEventElapsedTime(&ms, fork_, to), cudaErrorInvalidResourceHandle);  // made without times
  for (cudaEvent_t event : {from, to}) EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

using GraphsDeathTest = Graphs;
TEST_F(GraphsDeathTest, HandlesThatAreGone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto destroyed = [] {
    cudaEvent_t event = nullptr;
    cudaEventCreate(&event);
    cudaEventDestroy(event);
    cudaEventQuery(event);
  };
  EXPECT_DEATH(destroyed(), "an event is used that was destroyed, or never made");
}

}  // namespace
