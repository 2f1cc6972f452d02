// Items streams, events and host-calls: order within a stream, between streams, and between device and host.
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/conformance/device/suite.h"

namespace prun::testing {
namespace {

constexpr int64_t kCount = 1 << 14;

class Streams : public OpenDevice {
 protected:
  bool idle(const DeviceStream& stream) {
    return device_.reached<&prun_device::stream_test>("a stream's work", stream.get());
  }
};
class Events : public Streams {};
class HostCalls : public OpenDevice {};

TEST_F(Streams, RunTheirWorkInOrder) {
  std::vector<Array> chain;
  for (int i = 0; i < 200; ++i) chain.push_back(array(100, -1));
  const Array from = pinned(100, 1), to = pinned(100);
  for (int round = 1; round <= 3; ++round) {
    std::fill_n(from.get(), 100, round);
    own_.zero(chain.back().get(), chain.back().bytes());
    copy(own_, chain.front(), from);
    for (size_t i = 1; i < chain.size(); ++i) copy(own_, chain[i], chain[i - 1]);
    copy(own_, to, chain.back());
    own_.wait();
    EXPECT_EQ(to.values(), Numbers(100, round));
  }
}

TEST_F(Streams, KernelsAreWorkAsCopiesAre) {
  const DeviceMemory x = memory(kCount * 4);
  std::optional<DeviceKernel> twice = scale(x, x, kCount, 2);
  if (!twice) GTEST_SKIP() << "it has no scale of f32";
  std::vector<float> values(kCount, 1);
  own_.copy(x.get(), values.data(), kCount * 4);
  for (int i = 0; i < 10; ++i) twice->run(own_);
  own_.copy(values.data(), x.get(), kCount * 4);
  own_.zero(x.get(), kCount * 4);
  twice->run(own_);
  own_.wait();
  EXPECT_EQ(values, std::vector<float>(kCount, 1024));
}

TEST_F(Streams, EnqueueingWaitsForNothing) {
  const Array from = pinned(kCount, 1), there = array(kCount, 0), ones = array(kCount, 1), to = pinned(kCount, 0);
  DeviceStream stream(device_), other(device_, -1);
  DeviceEvent event(device_);
  const DeviceMemory x = memory(kCount * 4);
  std::optional<DeviceKernel> twice = scale(x, x, kCount, 2);
  std::atomic<int> calls{0};
  {
    Gate gate(stream);
    for (int i = 0; i < 30; ++i) {  // hardware queues may be bounded
      copy(stream, there, from);
      stream.zero(there.get(), there.bytes());
      if (twice) twice->run(stream);
      stream.host_call([](void* data) { ++*static_cast<std::atomic<int>*>(data); }, &calls);
      event.record(stream);
      event.hold(other);
      copy(other, to, ones);
      EXPECT_FALSE(event.reached());
      EXPECT_FALSE(idle(stream));
      EXPECT_FALSE(idle(other)) << "it is to wait for a stream that is held";
    }
    gate.expect_closed();
    EXPECT_EQ(calls, 0);
    EXPECT_EQ(to.values(), Numbers(kCount, 0));
    gate.open();
  }
  stream.wait(), other.wait();
  EXPECT_EQ(calls, 30);
  EXPECT_EQ(to.values(), from.values());
  EXPECT_EQ(read(there), Numbers(kCount, 0));
  EXPECT_TRUE(idle(stream) && idle(other) && event.reached());
}

TEST_F(Streams, WaitEndsWithTheWork) {
  DeviceStream stream(device_);
  EXPECT_TRUE(idle(stream)) << "nothing was ever enqueued";
  stream.wait();
  std::atomic<bool> done{false};
  std::thread opener;
  {
    Gate gate(stream);
    stream.host_call([](void* data) { *static_cast<std::atomic<bool>*>(data) = true; }, &done);
    opener = std::thread([&] { usleep(20000), gate.open(); });
    stream.wait();
    EXPECT_TRUE(done) << "stream_wait did not wait";
    opener.join();
  }
  EXPECT_TRUE(idle(stream));
}

TEST_F(Streams, ManyAtATime) {
  std::vector<DeviceStream> streams;
  std::vector<Array> targets;
  const Array from = array(kCount, 9);
  for (int i = 0; i < 32; ++i) {
    streams.emplace_back(device_, i % 2 == 0 ? 0 : -1);
    targets.push_back(pinned(kCount));
  }
  for (int i = 0; i < 320; ++i) copy(streams[static_cast<size_t>(i % 32)], targets[static_cast<size_t>(i % 32)], from);
  for (size_t i = 0; i < streams.size(); ++i) {
    streams[i].wait();
    EXPECT_EQ(targets[i].values(), Numbers(kCount, 9));
    const prun_queue queue = streams[i].queue();
    EXPECT_TRUE(queue.kind == table_.mem_kind || queue.kind == PRUN_MEM_HOST) << queue.kind;
    EXPECT_EQ(queue.handle == nullptr, queue.kind == PRUN_MEM_HOST) << "{HOST, null}, or what a transport enqueues on";
  }
}

TEST_F(Events, NeverRecordedCountsAsReached) {
  DeviceEvent event(device_);
  EXPECT_TRUE(event.reached());
  const Array from = array(10, 1), to = pinned(10);
  event.hold(own_);
  copy(own_, to, from);
  own_.wait();
  EXPECT_EQ(to.values(), Numbers(10, 1));
}

TEST_F(Events, WaitForAllBeforeThem) {
  DeviceStream stream(device_);
  DeviceEvent event(device_);
  std::atomic<int> calls{0};
  const auto count = [](void* data) { usleep(200), ++*static_cast<std::atomic<int>*>(data); };
  for (int round = 1; round <= 20; ++round) {  // the same event again: only its latest record counts
    {
      Gate gate(stream);
      for (int i = 0; i < 3; ++i) stream.host_call(count, &calls);
      event.record(stream);
      for (int i = 0; i < 5; ++i) ASSERT_FALSE(event.reached()) << "before the work in front of it, round " << round;
      gate.open();
    }
    while (!event.reached()) usleep(50);
    ASSERT_EQ(calls, 3 * round) << "it was reached early";
  }
  stream.wait();
}

TEST_F(Events, OrderStreamsAmongEachOther) {
  DeviceStream a(device_), b(device_);
  DeviceEvent from_a(device_), from_b(device_);
  std::vector<Array> chain;
  for (int i = 0; i < 41; ++i) chain.push_back(array(kCount, 0));
  const Array from = pinned(kCount, 6);
  {
    Gate gate(a);  // a stream that did not wait would have copied zeros by now
    copy(a, chain[0], from);
    for (size_t i = 1; i < chain.size(); ++i) {  // back and forth: each waits for the other's last
      DeviceStream &before = i % 2 == 1 ? a : b, &after = i % 2 == 1 ? b : a;
      DeviceEvent& event = i % 2 == 1 ? from_a : from_b;
      event.record(before);
      event.hold(after);
      copy(after, chain[i], chain[i - 1]);
    }
    usleep(20000);
    EXPECT_FALSE(from_a.reached());
    gate.open();
  }
  a.wait(), b.wait();
  EXPECT_EQ(read(chain.back()), Numbers(kCount, 6));
}

// A wait refers to the record at the time of the call, not to later ones.
TEST_F(Events, NobodyWaitsForWhatComesLater) {
  DeviceStream a(device_), b(device_);
  DeviceEvent event(device_);
  const Array from = array(kCount, 4), to = pinned(kCount), elsewhere = pinned(kCount);
  for (int round = 0; round < 20; ++round) {
    std::fill_n(to.get(), kCount, 0);
    event.record(a);
    for (int i = 0; i < 10; ++i) copy(b, elsewhere, from);
    event.hold(b);
    copy(b, to, from);
    {
      Gate gate(a);
      event.record(a);
      b.wait();
      ASSERT_EQ(to.values(), Numbers(kCount, 4));
      gate.open();
    }
    a.wait();
  }
}

TEST_F(Events, TellTheTimeBetweenThem) {
  using Clock = std::chrono::steady_clock;
  DeviceStream stream(device_);
  DeviceEvent begin(device_, true), end(device_, true);
  const Clock::time_point start = Clock::now();
  begin.record(stream);
  stream.host_call([](void*) { usleep(20000); }, nullptr);
  end.record(stream);
  stream.wait();
  const double most = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  EXPECT_GE(end.ms_since(begin), 15) << "20 ms lie between them";
  EXPECT_LE(end.ms_since(begin), most + 5) << "milliseconds";
  EXPECT_EQ(begin.ms_since(begin), 0);
}

TEST_F(HostCalls, ComeOnceEachAndInOrder) {
  static std::vector<int> order;
  order.clear();
  struct Call {
    int number;
  };
  std::vector<Call> calls;
  for (int i = 0; i < 1000; ++i) calls.push_back({i});
  for (Call& call : calls) own_.host_call([](void* data) { order.push_back(static_cast<Call*>(data)->number); }, &call);
  own_.wait();
  ASSERT_EQ(order.size(), calls.size());
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(order[static_cast<size_t>(i)], i);
}

// A host call sees the results of earlier work, and later work sees its effects; a stream's wait for an event counts as
// earlier work.
TEST_F(HostCalls, HaveTheirPlaceInTheStream) {
  struct Seen {
    Array in, out;
    std::atomic<int> wrong{0};
  };
  Seen seen{pinned(kCount), pinned(kCount)};
  DeviceStream stream(device_), other(device_);
  DeviceEvent event(device_);
  const Array from = pinned(kCount, 1), there = array(kCount, 0), to = pinned(kCount);
  for (int round = 1; round <= 50; ++round) {
    std::fill_n(from.get(), kCount, round);
    std::fill_n(to.get(), kCount, 0);
    copy(stream, there, from);
    copy(stream, seen.in, there);
    event.record(stream);
    event.hold(other);
    const auto pass = [](void* data) {
      Seen& pages = *static_cast<Seen*>(data);
      for (int64_t i = 0; i < kCount; ++i) pages.wrong += pages.in.get()[i] != pages.in.get()[0];
      for (int64_t i = 0; i < kCount; ++i) pages.out.get()[i] = pages.in.get()[i] + 1000;
    };
    (round % 2 == 0 ? stream : other).host_call(pass, &seen);
    event.record(other);
    event.hold(stream);
    copy(stream, there, seen.out);
    copy(stream, to, there);
    stream.wait();
    ASSERT_EQ(to.values(), Numbers(kCount, 1000 + round));
  }
  EXPECT_EQ(seen.wrong, 0);
}

TEST_F(HostCalls, ComeOnAThreadOfTheDevices) {
  std::thread::id who = std::this_thread::get_id();
  own_.host_call([](void* data) { *static_cast<std::thread::id*>(data) = std::this_thread::get_id(); }, &who);
  own_.wait();
  EXPECT_NE(who, std::this_thread::get_id());
}

}  // namespace
}  // namespace prun::testing
