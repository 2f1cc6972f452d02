// The device ABI as the CPU implements it: stream order, graphs and errors; also run under the sanitizers. The suite of
// `prun conform` (tests/conformance/device) has the tests for all devices.
#include "device/queue_device.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "device/plugin_device.h"
#include "kernels/devices.h"

namespace prun {
namespace {

using Floats = std::vector<float>;

class QueueDeviceTest : public testing::Test {
 protected:
  QueueDeviceTest() {
    opened_ = open_device("cpu-queue");
    device_.emplace(*opened_->queue(), 0, "");
    ones_.assign(kCount, 1.0f);
  }
  // y = factor·x over kCount floats.
  DeviceKernel scale(const DeviceMemory& x, const DeviceMemory& y, double factor) {
    const int64_t dims[] = {kCount};
    const prun_tensor from{x.get(), dims, 1, PRUN_F32}, to{y.get(), dims, 1, PRUN_F32};
    const prun_attr attr{.name = "factor", .type = PRUN_ATTR_NUMBER, .number = factor};
    prun_op op{.size = sizeof(prun_op),
               .kind = "scale",
               .reads = &from,
               .n_reads = 1,
               .writes = &to,
               .n_writes = 1,
               .attrs = &attr,
               .n_attrs = 1,
               .threads = 1};
    op.share = [](const void*, const char*, int64_t* index, int64_t* of) { *index = 0, *of = 1; };
    return DeviceKernel(*device_, op);
  }
  DeviceMemory memory() { return DeviceMemory(*device_, kBytes, PRUN_PLACE_DEVICE); }
  Floats read(const DeviceMemory& from, DeviceStream& stream) {
    Floats values(kCount);
    stream.copy(values.data(), from.get(), kBytes);
    stream.wait();
    return values;
  }

  static constexpr int64_t kCount = 1 << 18, kBytes = kCount * 4;
  std::unique_ptr<Device> opened_;
  std::optional<QueueDevice> device_;
  Floats ones_;
};

TEST_F(QueueDeviceTest, AStreamRunsItsWorkInOrder) {
  DeviceStream stream(*device_);
  DeviceMemory x = memory();
  stream.copy(x.get(), ones_.data(), kBytes);
  std::vector<DeviceKernel> kernels;
  for (int i = 0; i < 10; ++i) kernels.push_back(scale(x, x, 2));
  for (DeviceKernel& kernel : kernels) kernel.run(stream);
  EXPECT_EQ(read(x, stream), Floats(kCount, 1024.0f));
  stream.zero(x.get(), kBytes);
  EXPECT_EQ(read(x, stream), Floats(kCount, 0.0f));
}

TEST_F(QueueDeviceTest, EventsOrderStreams) {
  DeviceStream a(*device_), b(*device_);
  DeviceEvent made(*device_), read_back(*device_);
  DeviceMemory x = memory(), y = memory();
  DeviceKernel twice = scale(x, x, 2), over = scale(x, y, 3);
  a.copy(x.get(), ones_.data(), kBytes);
  for (int i = 0; i < 5; ++i) {  // alternating: each stream waits for the other's last op
    twice.run(a);
    made.record(a);
    made.hold(b);
    over.run(b);
    read_back.record(b);
    read_back.hold(a);
  }
  EXPECT_EQ(read(y, b), Floats(kCount, 96.0f));
  EXPECT_TRUE(read_back.reached());
}

TEST_F(QueueDeviceTest, TimesGrowAlongAStream) {
  DeviceStream stream(*device_);
  DeviceEvent begin(*device_, true), end(*device_, true);
  DeviceMemory x = memory();
  DeviceKernel kernel = scale(x, x, 1);
  begin.record(stream);
  for (int i = 0; i < 20; ++i) kernel.run(stream);
  end.record(stream);
  stream.wait();
  EXPECT_GT(end.ms_since(begin), 0.0);
}

TEST_F(QueueDeviceTest, ACapturedGraphRunsWhenItIsLaunchedAndAgain) {
  ASSERT_TRUE(device_->captures());
  DeviceStream a(*device_), b(*device_);
  DeviceEvent fork(*device_), join(*device_), seen(*device_);
  DeviceMemory x = memory(), y = memory();
  DeviceKernel twice = scale(x, x, 2), over = scale(x, y, 3);
  a.copy(x.get(), ones_.data(), kBytes);
  a.wait();
  const auto call = [&](auto function) {
    device_->call("capture", [&](prun_result* result) { return function(result); });
  };
  const prun_device& table = device_->table();
  call([&](prun_result* r) { return table.capture_begin(device_->get(), a.get(), r); });
  twice.run(a);
  fork.record(a);
  fork.hold(b);
  over.run(b);
  seen.record(b, true);
  join.record(b);
  join.hold(a);
  prun_graph* made = nullptr;
  call([&](prun_result* r) { return table.capture_end(device_->get(), a.get(), &made, r); });
  DeviceGraph graph(*device_, made);
  EXPECT_EQ(read(x, a), ones_);  // nothing has run
  for (const float factor : {6.0f, 12.0f, 24.0f}) {
    graph.launch(a);
    EXPECT_EQ(read(y, a), Floats(kCount, factor));
    EXPECT_TRUE(seen.reached());
  }
}

TEST_F(QueueDeviceTest, ACaptureWithAStreamThatDoesNotComeBackFails) {
  DeviceStream a(*device_), b(*device_);
  DeviceEvent fork(*device_);
  DeviceMemory x = memory();
  DeviceKernel twice = scale(x, x, 2);
  const prun_device& table = device_->table();
  prun_result result{.size = sizeof(prun_result), .culprit = -1, .message = {}};
  ASSERT_EQ(table.capture_begin(device_->get(), a.get(), &result), PRUN_OK);
  fork.record(a);
  fork.hold(b);
  twice.run(b);
  prun_graph* graph = nullptr;
  EXPECT_NE(table.capture_end(device_->get(), a.get(), &graph, &result), PRUN_OK);
  EXPECT_STRNE(result.message, "");
}

// An error between the capture's begin and end discards it: no captured op runs, and its streams work as before.
TEST_F(QueueDeviceTest, ACaptureThatIsGivenUpLeavesNothing) {
  DeviceStream a(*device_), b(*device_);
  DeviceEvent fork(*device_), join(*device_);
  DeviceMemory x = memory();
  DeviceKernel twice = scale(x, x, 2);
  a.copy(x.get(), ones_.data(), kBytes);
  a.wait();
  for (int i = 0; i < 2; ++i) {
    DeviceCapture capture(*device_, a);
    twice.run(a);
    fork.record(a);
    fork.hold(b);
    twice.run(b);
  }
  EXPECT_EQ(read(x, b), ones_);
  twice.run(a);
  join.record(a);
  join.hold(b);
  twice.run(b);
  EXPECT_EQ(read(x, b), Floats(kCount, 4.0f));
}

TEST_F(QueueDeviceTest, AnOpThatItHasNotIsRefusedInWords) {
  prun_op op{.size = sizeof(prun_op), .kind = "sclae"};
  prun_result result{.size = sizeof(prun_result), .culprit = -1, .message = {}};
  EXPECT_EQ(device_->table().supports(&op, &result), PRUN_ENOTSUP);
  EXPECT_NE(std::string(result.message).find("sclae"), std::string::npos) << result.message;
}

}  // namespace
}  // namespace prun
