// Items load, ranks and threads: a device's description, opening and closing, and calls from several threads.
#include <fmt/format.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <thread>

#include "tests/agreement/agreement.h"
#include "tests/conformance/device/suite.h"
#include "tests/unit/op_list.h"

namespace prun::testing {
namespace {

namespace fs = std::filesystem;

size_t entries(const char* folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

template <size_t N>
bool ends(const char (&text)[N]) {
  return std::memchr(text, '\0', N) != nullptr;
}

prun_device_probe probe() {
  prun_device_probe probe{.size = sizeof probe};
  EXPECT_EQ(device_table().probe(&probe), PRUN_OK);
  return probe;
}

// Does some work, from open to close. Returns "" or the error.
std::string use(int index) {
  QueueDevice device(device_table(), index, device_suite().options);
  DeviceStream stream(device);
  DeviceMemory there(device, 1000, PRUN_PLACE_DEVICE), here(device, 1000, PRUN_PLACE_PINNED);
  for (const unsigned char value : {index + 1, 7}) {
    std::memset(here.get(), value, 1000);
    stream.copy(there.get(), here.get(), 1000);
    stream.zero(there.get(), 500);
    stream.wait();
    std::memset(here.get(), 255, 1000);
    stream.copy(here.get(), there.get(), 1000);
    stream.wait();
    for (size_t i = 0; i < 1000; ++i)
      if (here.get()[i] != std::byte{i < 500 ? static_cast<unsigned char>(0) : value})
        return fmt::format("device {}: byte {} is wrong after zeroing and copying", index, i);
  }
  return "";
}

// Queried in a separate process, so that children of this one do not inherit a driver's state.
int device_count() {
  const std::string count = in_children(1, [](int) { return std::to_string(probe().devices); })[0];
  return std::atoi(count.c_str());
}

TEST(Load, SaysWhatItIs) {
  const prun_device& table = device_table();  // rejects a table without a mandatory function
  EXPECT_STRNE(table.name, "");
  EXPECT_STRNE(table.version, "");
  ASSERT_NE(table.summary, nullptr);
  EXPECT_EQ(std::string(table.summary).find('\n'), std::string::npos) << "the summary is one line";
  EXPECT_TRUE(table.mem_kind == PRUN_MEM_HOST || table.mem_kind == PRUN_MEM_CUDA) << table.mem_kind;
  const bool captures = table.capture_begin != nullptr;
  EXPECT_EQ(table.capture_end != nullptr, captures) << "capture_* and graph_* come together";
  EXPECT_EQ(table.graph_launch != nullptr, captures) << "capture_* and graph_* come together";
  EXPECT_EQ(table.graph_free != nullptr, captures) << "capture_* and graph_* come together";
  EXPECT_EQ(table.pin != nullptr, table.unpin != nullptr) << "pin and unpin come together";
  if (table.ext != nullptr) {
    EXPECT_EQ(table.ext("prun.no_such_extension"), nullptr) << "null for unknown extensions";
    if (const auto* fusion = static_cast<const prun_device_fusion*>(table.ext(PRUN_DEVICE_FUSION))) {
      EXPECT_EQ(fusion->wants("no_such_op"), 0);
    }
  }
}

TEST(Load, SaysWhatIsThere) {
  const prun_device_probe found = probe();
  EXPECT_TRUE(ends(found.driver) && ends(found.runtime) && ends(found.libraries) && ends(found.problem));
  ASSERT_GT(found.devices, 0);
  std::set<std::string> ids;
  for (int i = 0; i < found.devices; ++i) {
    prun_device_info info{.size = sizeof info};
    prun_result result = empty_result();
    ASSERT_EQ(device_table().describe(i, &info, &result), PRUN_OK) << "device " << i << ": " << result.message;
    EXPECT_TRUE(ends(info.name) && ends(info.architecture) && ends(info.id));
    EXPECT_STRNE(info.name, "");
    EXPECT_TRUE(ids.insert(info.id).second) << "two devices have the id '" << info.id << "'";
    EXPECT_GT(info.free_bytes, 0U);
    EXPECT_GE(info.total_bytes, info.free_bytes);
    EXPECT_GE(info.peak_flops_bf16, 0);
  }
  for (const int none : {-1, found.devices})
    refused([&](prun_result* result) {
      prun_device_info info{.size = sizeof info};
      return device_table().describe(none, &info, result);
    });
}

// "Each side uses the smaller of both sizes": tests structs of an earlier and of a later core.
template <class Struct>
void expect_inside(size_t size, const std::function<void(Struct*)>& call) {
  std::vector<unsigned char> bytes(sizeof(Struct) + 256, 0xa5);
  Struct asked{};
  asked.size = size;
  std::memcpy(bytes.data(), &asked, std::min(size, sizeof asked));
  call(reinterpret_cast<Struct*>(bytes.data()));
  for (size_t i = size; i < bytes.size(); ++i)
    ASSERT_EQ(bytes[i], 0xa5) << "byte " << i << " of a struct of " << size << " bytes was written";
}
TEST(Load, StructsOfOtherSizes) {
  const prun_device& table = device_table();
  prun_result result = empty_result();
  for (const size_t size : {offsetof(prun_device_probe, libraries), sizeof(prun_device_probe) + 128})
    expect_inside<prun_device_probe>(size, [&](prun_device_probe* p) { EXPECT_EQ(table.probe(p), PRUN_OK); });
  for (const size_t size : {offsetof(prun_device_info, total_bytes), sizeof(prun_device_info) + 128})
    expect_inside<prun_device_info>(
        size, [&](prun_device_info* info) { EXPECT_EQ(table.describe(0, info, &result), PRUN_OK); });
  for (const size_t size : {offsetof(prun_result, message), offsetof(prun_result, message) + 8})
    expect_inside<prun_result>(size, [&](prun_result* short_one) {
      const prun_op op{.size = sizeof op, .kind = "an_op_that_there_is_not"};
      EXPECT_NE(table.supports(&op, short_one), PRUN_OK);
    });
}

TEST(Load, RefusesOptionsThatItDoesNotKnow) {
  const prun_device_params params{.size = sizeof params, .index = device_suite().index, .options = "no_such_option=1"};
  prun_dev* dev = nullptr;
  prun_status status = PRUN_OK;
  const std::string message =
      refused([&](prun_result* result) { return status = device_table().open(&params, &dev, result); });
  EXPECT_EQ(status, PRUN_EINVAL);
  EXPECT_NE(message.find("no_such_option"), std::string::npos) << "the message names the option: " << message;
}

TEST(Load, RefusesADeviceThatIsNotThere) {
  if (is_on_host()) return;  // its ranks share the host, whatever their index
  for (const int index : {-1, probe().devices}) {
    const prun_device_params params{.size = sizeof params, .index = index, .options = ""};
    prun_dev* dev = nullptr;
    refused([&](prun_result* result) { return device_table().open(&params, &dev, result); });
  }
}

TEST(Load, OpeningAndClosingLeavesNothing) {
  size_t threads = 0, files = 0;
  for (int i = 0; i < 6; ++i) {
    ASSERT_EQ(use(device_suite().index), "");
    if (i == 1) threads = entries("/proc/self/task"), files = entries("/proc/self/fd");  // a driver's own exist now
  }
  for (int i = 0; i < 100 && entries("/proc/self/task") > threads; ++i) usleep(20000);  // waits for ending threads
  EXPECT_LE(entries("/proc/self/task"), threads);
  EXPECT_LE(entries("/proc/self/fd"), files);
}

// Objects that a program left open: streams with work, events, memory.
TEST(Load, CloseWaitsForTheWorkAndFreesWhatIsLeft) {
  const prun_device& table = device_table();
  uint64_t free_bytes = 0, total = 0;
  for (int i = 0; i < 4; ++i) {
    const prun_device_params params{
        .size = sizeof params, .index = device_suite().index, .options = device_suite().options.c_str()};
    prun_result result = empty_result();
    prun_dev* dev = nullptr;
    prun_stream* stream = nullptr;
    prun_event* event = nullptr;
    void* big = nullptr;
    std::atomic<int> calls{0};
    ASSERT_EQ(table.open(&params, &dev, &result), PRUN_OK) << result.message;
    if (i == 0) {
      ASSERT_EQ(table.memory_info(dev, &free_bytes, &total), PRUN_OK);
    }
    ASSERT_EQ(table.alloc(dev, free_bytes / 5 * 2, PRUN_PLACE_DEVICE, &big, &result), PRUN_OK)
        << "after " << i << " rounds: " << result.message;
    ASSERT_EQ(table.stream_create(dev, 0, &stream, &result), PRUN_OK) << result.message;
    ASSERT_EQ(table.event_create(dev, 1, &event, &result), PRUN_OK) << result.message;
    const auto count = [](void* data) {
      usleep(2000);
      ++*static_cast<std::atomic<int>*>(data);
    };
    for (int call = 0; call < 10; ++call)
      ASSERT_EQ(table.host_call(dev, stream, count, &calls, &result), PRUN_OK) << result.message;
    ASSERT_EQ(table.event_record(dev, event, stream, 0, &result), PRUN_OK) << result.message;
    table.close(dev);
    ASSERT_EQ(calls, 10) << "close did not wait";
  }
}

TEST(Load, AskingForOpsNeedsNoDeviceAndNoThread) {
  const std::unique_ptr<Device> device = make_table_device(device_table());
  const size_t threads = entries("/proc/self/task");
  std::set<std::string_view> has;
  for (const Case& c : all_cases())
    for (const Dtype dtype : {Dtype::f32, Dtype::bf16})
      if (supported(c, *device, dtype)) {
        has.insert(c.op.kind);
        OpList list(*device);
        for (const Slot& slot : c.slots) list.tensor({slot.dtype.value_or(dtype), slot.shape});
        list.op(c.op.kind, c.op.reads, c.op.writes, c.op.attrs);  // queries its workspace
      }
  EXPECT_EQ(entries("/proc/self/task"), threads) << "supports or workspace started a thread";
  for (const Case& c : all_cases())
    if (device->fuses(c.op.kind)) {
      EXPECT_TRUE(has.contains(c.op.kind)) << PRUN_DEVICE_FUSION << " wants " << c.op.kind << ", which it has not";
    }
  EXPECT_EQ(in_children(1, [](int) { return use(device_suite().index); })[0], "")
      << "in a child, after its parent asked";
}

// One thread at a time, but each call from any thread.
TEST(Threads, WhatOneOpensAnotherUses) {
  QueueDevice device(device_table(), device_suite().index, device_suite().options);
  std::optional<DeviceStream> stream;
  DeviceMemory there, here;
  std::string why;
  const auto in_thread = [&](const std::function<void()>& body) {
    std::thread([&] {
      try {
        body();
      } catch (const std::exception& error) {
        why = error.what();
      }
    }).join();
    ASSERT_EQ(why, "");
  };
  in_thread([&] {
    stream.emplace(device);
    there = DeviceMemory(device, 1000, PRUN_PLACE_DEVICE);
    here = DeviceMemory(device, 1000, PRUN_PLACE_PINNED);
  });
  std::memset(here.get(), 5, 1000);
  in_thread([&] { stream->copy(there.get(), here.get(), 1000), stream->zero(there.get(), 10); });
  stream->copy(here.get(), there.get(), 1000);
  in_thread([&] { stream->wait(); });
  EXPECT_EQ(here.get()[9], std::byte{0});
  EXPECT_EQ(here.get()[10], std::byte{5});
  in_thread([&] { stream.reset(), there = {}, here = {}; });
}

TEST(Threads, OthersTestAndAskForMemory) {
  QueueDevice device(device_table(), device_suite().index, device_suite().options);
  DeviceStream stream(device);
  DeviceEvent event(device);
  DeviceMemory there(device, 4096, PRUN_PLACE_DEVICE), here(device, 4096, PRUN_PLACE_PINNED);
  std::atomic<bool> done{false};
  std::atomic<int> asked{0}, wrong{0};
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i)
    others.emplace_back([&] {
      while (!done || asked < 100) {
        prun_result result = empty_result();
        uint64_t free_bytes = 0, total = 0;
        const prun_status of_stream = device.table().stream_test(device.get(), stream.get(), &result);
        wrong += of_stream != PRUN_OK && of_stream != PRUN_AGAIN;
        wrong += device.table().memory_info(device.get(), &free_bytes, &total) != PRUN_OK;
        try {
          event.reached();
        } catch (const std::exception&) {
          ++wrong;
        }
        wrong += free_bytes > total;
        ++asked;
      }
    });
  for (int i = 0; i < 300; ++i) {
    stream.copy(there.get(), here.get(), 4096);
    event.record(stream);
    if (i % 50 == 0) stream.wait();
  }
  done = true;
  for (std::thread& other : others) other.join();
  stream.wait();
  EXPECT_EQ(wrong, 0);
}

TEST(Ranks, ShareADevice) {
  for (const std::string& why : in_children(3, [](int) { return use(device_suite().index); })) EXPECT_EQ(why, "");
}

TEST(Ranks, EveryDeviceWorks) {
  for (const std::string& why : in_children(is_on_host() ? 2 : device_count(), use)) EXPECT_EQ(why, "");
}

TEST(Ranks, OpenTwiceInOneProcess) {
  const int here = device_suite().index, other = !is_on_host() && probe().devices > 1 ? (here == 0 ? 1 : 0) : here;
  const QueueDevice first(device_table(), here, device_suite().options);
  for (const int index : {here, other, here}) EXPECT_EQ(use(index), "");
}

}  // namespace
}  // namespace prun::testing
