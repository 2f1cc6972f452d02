// What every file of the suite for devices needs: the device under test, an open one, and a gate that holds a stream
// up.
//
// Surprising fact: nothing here sleeps to let work happen. Work that must not have happened yet stands behind a gate,
// so a right device can never fail by being slow.
#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "device/plugin_device.h"
#include "device/queue_device.h"

namespace prun::testing {

struct DeviceSuite {
  std::string name, options;
  int index = 0;
  unsigned seconds = 60;  // that a case may take
};
DeviceSuite& device_suite();
// Loads it in this process, once. Throws Error(usage).
const prun_device& device_table();
bool is_on_host();  // its memory is the host's: nothing tells its devices apart

inline prun_result empty_result() { return {.size = sizeof(prun_result), .culprit = -1, .message = {}}; }
// That `call` fails, with a message that ends within its struct.
std::string refused(const std::function<prun_status(prun_result*)>& call);

// What `body` returns, or throws, in child processes that run at once: "" where all was well; of a crash, that.
std::vector<std::string> in_children(int n, const std::function<std::string(int)>& body);

// What is enqueued behind it cannot have happened before it is opened. A device whose calls wait for its work would
// wait for ever: after some seconds the gate opens by itself, and the test fails. One at a time: a device may have one
// thread for all calls of the host.
class Gate {
 public:
  explicit Gate(DeviceStream& stream);  // enqueued; of a stream that is captured: passed at every launch
  ~Gate();                              // opens it
  Gate(const Gate&) = delete;
  void open();
  void expect_closed() const;

 private:
  struct State {
    std::atomic<bool> open{false}, forced{false};
  };
  State* state_;  // left behind: the stream may get there after this is gone
};

using Numbers = std::vector<int32_t>;

// A device that is open in the test's own process, and words for what tests do with it.
class OpenDevice : public ::testing::Test {
 protected:
  OpenDevice();
  DeviceMemory memory(int64_t bytes, prun_place place = PRUN_PLACE_DEVICE);
  // Numbers in pinned memory, and in the device's.
  struct Array {
    DeviceMemory memory;
    int64_t count;
    int32_t* get() const { return reinterpret_cast<int32_t*>(memory.get()); }
    int64_t bytes() const { return count * 4; }
    Numbers values() const { return Numbers(get(), get() + count); }  // of pinned memory
  };
  // A copy from pinned to pinned memory waits for its stream on a CUDA device, so behind a gate one side is the
  // device's.
  Array pinned(int64_t count, int32_t value = 0);
  Array array(int64_t count, int32_t value);  // of the device, filled
  void copy(DeviceStream& stream, const Array& to, const Array& from) { stream.copy(to.get(), from.get(), to.bytes()); }
  Numbers read(const Array& from);  // once its stream has nothing to do
  // y = factor·x in f32, or none where the device has no such op.
  std::optional<DeviceKernel> scale(const DeviceMemory& x, const DeviceMemory& y, int64_t count, double factor);
  prun_graph* end_capture(DeviceStream& stream);
  DeviceGraph captured(DeviceStream& stream, const std::function<void()>& body);

  const prun_device& table_;
  QueueDevice device_;
  DeviceStream own_;  // for what is not tried
};

}  // namespace prun::testing
