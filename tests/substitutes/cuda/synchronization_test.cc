// Tests which calls of the substitute wait for the device, and which streams the legacy stream is ordered with, by the
// chapters "API synchronization behavior" and "Default stream" of CUDA's documentation.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace {

constexpr int kCount = 1000;
constexpr size_t kBytes = kCount * sizeof(int);

// A host function that waits until the test opens it.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    EXPECT_EQ(cudaLaunchHostFunc(
                  stream, [](void* open) { static_cast<std::atomic<bool>*>(open)->wait(false); }, &open_),
              cudaSuccess);
  }
  void open() {
    open_ = true;
    open_.notify_all();
  }
  bool is_open() const { return open_; }

 private:
  std::atomic<bool> open_{false};
};

class Synchronization : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&blocking_, cudaStreamDefault), cudaSuccess);
    for (int** memory : {&device_, &other_})
      ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(memory), kBytes), cudaSuccess);
    for (int** memory : {&pinned_, &second_})
      ASSERT_EQ(cudaHostAlloc(reinterpret_cast<void**>(memory), kBytes, 0), cudaSuccess);
    std::fill_n(pinned_, kCount, 7);
    std::fill_n(second_, kCount, 0);
    ASSERT_EQ(cudaMemset(device_, 0, kBytes), cudaSuccess);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  void TearDown() override {
    for (int* memory : {device_, other_}) EXPECT_EQ(cudaFree(memory), cudaSuccess);
    for (int* memory : {pinned_, second_}) EXPECT_EQ(cudaFreeHost(memory), cudaSuccess);
    for (cudaStream_t stream : {stream_, blocking_}) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
  // Returns whether this copy returns before the preceding work of its stream has ended.
  bool returns_at_once(void* to, const void* from) {
    Gate gate(stream_);
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      gate.open();
    });
    EXPECT_EQ(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDefault, stream_), cudaSuccess);
    const bool at_once = !gate.is_open();
    opener.join();
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return at_once;
  }

  cudaStream_t stream_ = nullptr, blocking_ = nullptr;
  int *device_ = nullptr, *other_ = nullptr, *pinned_ = nullptr, *second_ = nullptr;
};

TEST_F(Synchronization, CopiesBetweenHostMemoryWait) {
  std::vector<int> pageable(kCount);
  EXPECT_FALSE(returns_at_once(second_, pinned_));
  EXPECT_FALSE(returns_at_once(pageable.data(), pinned_));
  EXPECT_FALSE(returns_at_once(pageable.data(), device_));
  EXPECT_FALSE(returns_at_once(device_, pageable.data()));
  EXPECT_TRUE(returns_at_once(second_, device_));
  EXPECT_TRUE(returns_at_once(device_, pinned_));
  EXPECT_TRUE(returns_at_once(other_, device_));
  EXPECT_EQ(second_[0], 0);
  EXPECT_EQ(other_[kCount - 1], 7);
}

// Pageable memory is staged, so the source may change after the call has returned.
TEST_F(Synchronization, PageableMemoryIsStaged) {
  std::vector<int> pageable(kCount, 3);
  ASSERT_EQ(cudaMemcpyAsync(device_, pageable.data(), kBytes, cudaMemcpyDefault, stream_), cudaSuccess);
  std::fill(pageable.begin(), pageable.end(), 4);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(device_[0], 3);
  ASSERT_EQ(cudaMemcpy(device_, pageable.data(), kBytes, cudaMemcpyHostToDevice), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(device_[0], 4);
}

TEST_F(Synchronization, TheLegacyStreamIsOrderedWithBlockingStreamsOnly) {
  Gate gate(nullptr);
  ASSERT_EQ(cudaMemset(device_, 1, kBytes), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(second_, device_, kBytes, cudaMemcpyDefault, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(second_[0], 0) << "a non-blocking stream does not wait for the legacy stream";
  ASSERT_EQ(cudaMemcpyAsync(second_, device_, kBytes, cudaMemcpyDefault, blocking_), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(blocking_), cudaErrorNotReady);
  gate.open();
  ASSERT_EQ(cudaStreamSynchronize(blocking_), cudaSuccess);
  EXPECT_EQ(second_[0], 0x01010101);

  Gate before(blocking_);
  ASSERT_EQ(cudaMemsetAsync(device_, 2, kBytes, nullptr), cudaSuccess);
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  EXPECT_EQ(device_[0], 0x01010101) << "the legacy stream waits for blocking streams";
  before.open();
  ASSERT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess);
  EXPECT_EQ(device_[0], 0x02020202);
}

TEST_F(Synchronization, TheLegacyStreamSpoilsCapturesOfBlockingStreams) {
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(device_, 2, kBytes, nullptr), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(blocking_, cudaStreamCaptureModeRelaxed), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(device_, 2, kBytes, nullptr), cudaErrorStreamCaptureImplicit);
  EXPECT_EQ(cudaStreamEndCapture(blocking_, &graph), cudaErrorStreamCaptureInvalidated);
}

TEST_F(Synchronization, TheDeviceWaitsForStreamsThatWereDestroyed) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  Gate gate(stream);
  ASSERT_EQ(cudaMemcpyAsync(device_, pinned_, kBytes, cudaMemcpyDefault, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  std::thread opener([&] { gate.open(); });
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  opener.join();
  EXPECT_EQ(device_[0], 7);
}

// Such an event is an error outside the capture as well as inside, until it is recorded outside.
TEST_F(Synchronization, EventsOfACaptureAreNotAsked) {
  cudaEvent_t event = nullptr, early = nullptr;
  for (cudaEvent_t* made : {&event, &early}) ASSERT_EQ(cudaEventCreate(made), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(early, stream_), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  float ms = 0;
  EXPECT_EQ(cudaEventQuery(event), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventSynchronize(event), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaEventElapsedTime(&ms, early, event), cudaErrorCapturedEvent);
  EXPECT_EQ(cudaStreamWaitEvent(stream_, event, 0), cudaErrorCapturedEvent);
  ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&ms, early, event), cudaSuccess);
  for (cudaEvent_t made : {event, early}) EXPECT_EQ(cudaEventDestroy(made), cudaSuccess);
}

using SynchronizationDeathTest = Synchronization;
TEST_F(SynchronizationDeathTest, AHostFunctionCallsNothingOfCuda) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto call = [&](cudaHostFn_t function) {
    cudaLaunchHostFunc(stream_, function, device_);
    cudaStreamSynchronize(stream_);
  };
  EXPECT_DEATH(call([](void*) { cudaStreamQuery(nullptr); }), "a host function of a stream calls CUDA");
  EXPECT_DEATH(call([](void* memory) { cudaFree(memory); }), "a host function of a stream calls CUDA");
}

}  // namespace
