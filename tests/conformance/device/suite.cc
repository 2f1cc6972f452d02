#include "tests/conformance/device/suite.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>

#include "base/error.h"
#include "kernels/devices.h"

namespace prun::testing {

DeviceSuite& device_suite() {
  static DeviceSuite suite;
  return suite;
}

const prun_device& device_table() {
  static const std::unique_ptr<Device> device = open_device(device_suite().name);
  return *device->queue();
}

bool is_on_host() { return device_table().mem_kind == PRUN_MEM_HOST; }

std::string refused(const std::function<prun_status(prun_result*)>& call) {
  struct {
    prun_result result = empty_result();
    char behind[64];
  } guarded;
  std::memset(guarded.result.message, 'x', sizeof guarded.result.message);
  guarded.result.message[0] = '\0';
  std::memset(guarded.behind, 'x', sizeof guarded.behind);
  const prun_status status = call(&guarded.result);
  EXPECT_NE(status, PRUN_OK) << "it was done";
  EXPECT_NE(status, PRUN_AGAIN) << "it is to be done later";
  EXPECT_TRUE(std::all_of(std::begin(guarded.behind), std::end(guarded.behind), [](char c) { return c == 'x'; }))
      << "written behind the result";
  const char* const begin = guarded.result.message;
  const char* const end = std::find(begin, std::cend(guarded.result.message), '\0');
  EXPECT_NE(end, std::cend(guarded.result.message)) << "the message has no end";
  EXPECT_NE(end, begin) << "no message, status " << static_cast<int>(status);
  return std::string(begin, end);
}

std::vector<std::string> in_children(int n, const std::function<std::string(int)>& body) {
  struct Child {
    pid_t pid;
    int pipe;
  };
  std::vector<Child> children;
  std::fflush(nullptr);
  for (int i = 0; i < n; ++i) {
    int ends[2];
    PRUN_CHECK(pipe2(ends, O_CLOEXEC) == 0, "no pipe");
    const pid_t pid = fork();
    PRUN_CHECK(pid >= 0, "fork failed");
    if (pid == 0) {
      std::string why;
      try {
        why = body(i);
      } catch (const std::exception& error) {
        why = error.what();
      }
      _exit(write(ends[1], why.data(), why.size()) == static_cast<ssize_t>(why.size()) ? 0 : 1);
    }
    close(ends[1]);
    children.push_back({pid, ends[0]});
  }
  std::vector<std::string> whys;
  for (const Child& child : children) {
    std::string& why = whys.emplace_back();
    char buffer[512];
    for (ssize_t size; (size = ::read(child.pipe, buffer, sizeof buffer)) > 0;)
      why.append(buffer, static_cast<size_t>(size));
    close(child.pipe);
    int status = 0;
    waitpid(child.pid, &status, 0);
    if (WIFSIGNALED(status))
      why = fmt::format("crashed with signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status) != 0)
      why += fmt::format("ended with exit code {}", WEXITSTATUS(status));
  }
  return whys;
}

Gate::Gate(DeviceStream& stream) : state_(new State) {
  const auto hold = [](void* data) {
    State& state = *static_cast<State*>(data);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(device_suite().seconds) / 3;
    while (!state.open && !state.forced) {
      usleep(100);
      if (std::chrono::steady_clock::now() > end) state.forced = true;
    }
  };
  stream.host_call(hold, state_);
  expect_closed();
}

void Gate::expect_closed() const {
  EXPECT_FALSE(state_->forced) << "a call waited for the device's work: only stream_wait and close may";
}

void Gate::open() {
  expect_closed();
  state_->open = true;
}

Gate::~Gate() {
  if (!state_->open) open();
}

OpenDevice::OpenDevice()
    : table_(device_table()), device_(table_, device_suite().index, device_suite().options), own_(device_) {}

DeviceMemory OpenDevice::memory(int64_t bytes, prun_place place) { return DeviceMemory(device_, bytes, place); }

OpenDevice::Array OpenDevice::pinned(int64_t count, int32_t value) {
  Array made{memory(count * 4, PRUN_PLACE_PINNED), count};
  std::fill_n(made.get(), count, value);
  return made;
}

OpenDevice::Array OpenDevice::array(int64_t count, int32_t value) {
  Array made{memory(count * 4), count};
  const Array filled = pinned(count, value);
  copy(own_, made, filled);
  own_.wait();
  return made;
}

Numbers OpenDevice::read(const Array& from) {
  const Array seen = pinned(from.count, -1);
  copy(own_, seen, from);
  own_.wait();
  return seen.values();
}

std::optional<DeviceKernel> OpenDevice::scale(const DeviceMemory& x, const DeviceMemory& y, int64_t count,
                                              double factor) {
  const int64_t dims[] = {count};
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
  prun_result result = empty_result();
  if (table_.supports(&op, &result) != PRUN_OK) return std::nullopt;
  return DeviceKernel(device_, op);
}

prun_graph* OpenDevice::end_capture(DeviceStream& stream) {
  prun_graph* graph = nullptr;
  device_.call("ending a capture",
               [&](prun_result* r) { return table_.capture_end(device_.get(), stream.get(), &graph, r); });
  return graph;
}

DeviceGraph OpenDevice::captured(DeviceStream& stream, const std::function<void()>& body) {
  device_.call("beginning a capture",
               [&](prun_result* r) { return table_.capture_begin(device_.get(), stream.get(), r); });
  body();
  return DeviceGraph(device_, end_capture(stream));
}

}  // namespace prun::testing
