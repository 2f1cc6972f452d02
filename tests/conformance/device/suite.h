// Shared by all files of the device suite: the device under test, an open one, and a gate that blocks a stream.
//
// No test sleeps to let work happen: a gate holds back work that must not have happened yet, so a slow device passes.
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
  unsigned seconds = 60;  // time limit of a case
};
DeviceSuite& device_suite();
// Loads it once in this process. Throws Error(usage).
const prun_device& device_table();
bool is_on_host();  // its memory is the host's, so its devices are indistinguishable

inline prun_result empty_result() { return {.size = sizeof(prun_result), .culprit = -1, .message = {}}; }
// Returns "" if `call` fails with a message that ends within its struct, else the error.
std::string refused(const std::function<prun_status(prun_result*)>& call);

// Returns the text that `body` returns or throws in each of n concurrent child processes; "" = success, and a text for
// a crash.
std::vector<std::string> in_children(int n, const std::function<std::string(int)>& body);

// Work enqueued after a gate cannot have happened before the gate opens. A device whose calls wait for its work would
// deadlock, so the gate opens by itself after some seconds and the test fails. One gate at a time, because a device may
// have one thread for all host calls.
class Gate {
 public:
  explicit Gate(DeviceStream& stream);  // enqueued; a captured gate is passed at every launch
  ~Gate();                              // opens it
  Gate(const Gate&) = delete;
  void open();
  void expect_closed() const;

 private:
  struct State {
    std::atomic<bool> open{false}, forced{false};
  };
  State* state_;  // not freed: the stream may reach it after the destructor
};

using Numbers = std::vector<int32_t>;

// A device that is open in the test's own process, and operations for tests.
class OpenDevice : public ::testing::Test {
 protected:
  OpenDevice();
  DeviceMemory memory(int64_t bytes, prun_place place = PRUN_PLACE_DEVICE);
  // Numbers in pinned or device memory.
  struct Array {
    DeviceMemory memory;
    int64_t count;
    int32_t* get() const { return reinterpret_cast<int32_t*>(memory.get()); }
    int64_t bytes() const { return count * 4; }
    Numbers values() const { return Numbers(get(), get() + count); }  // of pinned memory
  };
  // A copy between pinned buffers waits for its stream on a CUDA device, so behind a gate one side is device memory.
  Array pinned(int64_t count, int32_t value = 0);
  Array array(int64_t count, int32_t value);  // on the device, filled
  void copy(DeviceStream& stream, const Array& to, const Array& from) { stream.copy(to.get(), from.get(), to.bytes()); }
  Numbers read(const Array& from);  // once its stream is idle
  // Returns a kernel for y = factor·x in f32, or none if the device lacks the op.
  std::optional<DeviceKernel> scale(const DeviceMemory& x, const DeviceMemory& y, int64_t count, double factor);
  prun_graph* end_capture(DeviceStream& stream);
  DeviceGraph captured(DeviceStream& stream, const std::function<void()>& body);

  const prun_device& table_;
  QueueDevice device_;
  DeviceStream own_;  // for steps that are not tested themselves
};

}  // namespace prun::testing
