// Tests the machine half of plugins/cuda on the substitute for CUDA: its functions' contracts in prun/device.h beyond
// the tests that queue_test has for every device, and which GPUs hardware.cc accepts.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "device/plugin_device.h"
#include "device/queue_device.h"
#include "plugins/cuda/device/hardware.h"

namespace prun {
namespace {

const prun_device& table() { return load_device_plugin({"cuda", PRUN_CUDA_DEVICE}); }

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.message();
  }
  return "no error";
}

TEST(CudaMachine, MemoryIsAligned) {
  QueueDevice device(table(), 0, "");
  for (const prun_place place : {PRUN_PLACE_DEVICE, PRUN_PLACE_PINNED})
    for (const int64_t bytes : {0, 1, 255, 4097})
      EXPECT_EQ(reinterpret_cast<uintptr_t>(DeviceMemory(device, bytes, place).get()) % 256, 0u) << bytes;
}

TEST(CudaMachine, OutOfMemorySaysHowMuchIsFree) {
  setenv("PRUN_SUBSTITUTE_MEMORY_MIB", "64", 1);
  QueueDevice device(table(), 0, "");
  const DeviceMemory some(device, 16 << 20, PRUN_PLACE_DEVICE);
  const std::string message = message_of([&] { DeviceMemory(device, 60 << 20, PRUN_PLACE_DEVICE); });
  unsetenv("PRUN_SUBSTITUTE_MEMORY_MIB");
  EXPECT_NE(message.find("no 60.0 MiB on GPU 0"), std::string::npos) << message;
  EXPECT_NE(message.find("48.0 MiB of its 64.0 MiB are free"), std::string::npos) << message;
}

TEST(CudaMachine, OptionsAreChecked) {
  EXPECT_NE(
      message_of([] { QueueDevice(table(), 0, "tf64=1"); }).find("cuda has no option 'tf64' (did you mean 'tf32'?)"),
      std::string::npos);
  EXPECT_NE(message_of([] { QueueDevice(table(), 0, "cudnn=maybe"); }).find("cuda option cudnn=maybe: must be 0 or 1"),
            std::string::npos);
  EXPECT_EQ(message_of([] { QueueDevice(table(), 0, "cudnn=0,"); }), "no error");
  EXPECT_NE(message_of([] { QueueDevice(table(), 99, ""); }).find("there is no GPU 99"), std::string::npos);
}

TEST(CudaMachine, AnEventThatWasNeverRecordedIsReached) {
  QueueDevice device(table(), 0, "");
  const DeviceStream stream(device);
  const DeviceEvent event(device);
  EXPECT_TRUE(event.reached());
  event.hold(stream);
}

// The host can query an event that a captured graph records only if it is external; otherwise the query is an error.
TEST(CudaMachine, AnExternalEventOfAGraphIsSeenByTheHost) {
  QueueDevice device(table(), 0, "");
  DeviceStream stream(device);
  DeviceEvent first(device, true), last(device, true), inner(device);
  const DeviceMemory from(device, 4, PRUN_PLACE_PINNED), to(device, 4, PRUN_PLACE_PINNED);
  prun_graph* captured = nullptr;
  device.call("begin", [&](prun_result* r) { return table().capture_begin(device.get(), stream.get(), r); });
  first.record(stream, true);
  stream.copy(to.get(), from.get(), 4);
  inner.record(stream);
  last.record(stream, true);
  device.call("end", [&](prun_result* r) { return table().capture_end(device.get(), stream.get(), &captured, r); });
  DeviceGraph graph(device, captured);
  for (int i = 0; i < 2; ++i) {
    graph.launch(stream);
    stream.wait();
    EXPECT_TRUE(last.reached());
    EXPECT_GT(last.ms_since(first), 0);
  }
  EXPECT_NE(message_of([&] { inner.reached(); }).find("cudaErrorCapturedEvent"), std::string::npos);
  last.record(stream, true);  // it also works without a capture
  stream.wait();
  EXPECT_TRUE(last.reached());
}

TEST(CudaMachine, HostMemoryOfOthersIsPinned) {
  QueueDevice device(table(), 0, "");
  std::vector<std::byte> memory(1 << 16);
  for (int i = 0; i < 2; ++i)  // the second time stands for another library's
    device.call("pin", [&](prun_result* r) { return table().pin(device.get(), memory.data(), memory.size(), r); });
  EXPECT_NE(message_of([&] {
              device.call("pin", [&](prun_result* r) { return table().pin(device.get(), nullptr, 1, r); });
            }).find("cudaHostRegister"),
            std::string::npos);
  for (int i = 0; i < 2; ++i) table().unpin(device.get(), memory.data());  // ignores memory that is not pinned
}

// close frees all remaining objects, in an order that CUDA accepts; the substitute ends the process if it is wrong.
TEST(CudaMachine, CloseFreesWhatIsLeft) {
  prun_dev* dev = nullptr;
  prun_stream* streams[2] = {};
  prun_event* event = nullptr;
  void* memory = nullptr;
  prun_result result{.size = sizeof(prun_result), .culprit = -1, .message = {}};
  const prun_device_params params{.size = sizeof(prun_device_params), .index = 1, .options = "", .log = nullptr};
  ASSERT_EQ(table().open(&params, &dev, &result), PRUN_OK) << result.message;
  for (prun_stream*& stream : streams) ASSERT_EQ(table().stream_create(dev, -1, &stream, &result), PRUN_OK);
  ASSERT_EQ(table().event_create(dev, 1, &event, &result), PRUN_OK);
  ASSERT_EQ(table().alloc(dev, 1 << 20, PRUN_PLACE_DEVICE, &memory, &result), PRUN_OK);
  ASSERT_EQ(table().zero(dev, streams[0], memory, 1 << 20, &result), PRUN_OK);
  ASSERT_EQ(table().event_record(dev, event, streams[0], 0, &result), PRUN_OK);
  ASSERT_EQ(table().event_wait(dev, streams[1], event, &result), PRUN_OK);
  uint64_t before = 0, after = 0, total = 0;
  table().memory_info(dev, &before, &total);
  table().close(dev);
  QueueDevice again(table(), 1, "");
  table().memory_info(again.get(), &after, &total);
  EXPECT_GE(after, before + (1 << 20));
}

TEST(CudaHardware, MachineCodeRunsOnItsFamilyAndPtxOnNewerOnes) {
  using prun::cuda::why_unusable;
  for (const int capability : {80, 86, 89, 90, 100, 120})
    EXPECT_EQ(why_unusable(capability, "80-real,90"), "") << capability;
  EXPECT_NE(why_unusable(75, "80-real,90").find("7.5 is below 8.0"), std::string::npos);
  EXPECT_NE(why_unusable(90, "80-real").find("-DPRUN_CUDA_ARCHITECTURES=90"), std::string::npos);
  EXPECT_NE(why_unusable(80, "90").find("was compiled for 90"), std::string::npos);
  EXPECT_EQ(why_unusable(90, "90a-real"), "");
  EXPECT_NE(why_unusable(100, "90a-real"), "");
  EXPECT_EQ(why_unusable(100, "90-virtual"), "");
  EXPECT_EQ(why_unusable(100, "native"), "");
}

TEST(CudaHardware, PeaksAreThoseOfDataSheets) {
  using prun::cuda::peak_flops_bf16;
  EXPECT_EQ(peak_flops_bf16("NVIDIA H200", 90, 132, 1.98e9), 989.4e12);
  EXPECT_EQ(peak_flops_bf16("NVIDIA H200 NVL", 90, 132, 1.98e9), 835.5e12);
  EXPECT_EQ(peak_flops_bf16("NVIDIA A100-SXM4-80GB", 80, 108, 1.41e9), 312e12);
  EXPECT_EQ(peak_flops_bf16("NVIDIA RTX A4000", 86, 48, 1.56e9), 0);  // not an A40
  EXPECT_EQ(peak_flops_bf16("something new", 80, 100, 1e9), 2048e11);
}

}  // namespace
}  // namespace prun
