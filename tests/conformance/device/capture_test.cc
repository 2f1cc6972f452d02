// Item capture: captured work does not run; each launch runs all of it in the order of its edges.
#include <unistd.h>

#include "tests/conformance/device/suite.h"

namespace prun::testing {
namespace {

constexpr int64_t kCount = 1 << 12;

class Capture : public OpenDevice {
 protected:
  void SetUp() override {
    if (table_.capture_begin == nullptr) GTEST_SKIP() << "it captures nothing";
  }
  prun_status begin(DeviceStream& stream, prun_result* result) {
    return table_.capture_begin(device_.get(), stream.get(), result);
  }
};

void count(void* calls) { ++*static_cast<std::atomic<int>*>(calls); }

TEST_F(Capture, IsNotRunButLaunched) {
  const Array from = pinned(kCount, 1), there = array(kCount, 0), zeroed = array(kCount, 8), to = pinned(kCount);
  const DeviceMemory x = memory(kCount * 4);
  std::optional<DeviceKernel> twice = scale(x, x, kCount, 2);
  std::vector<float> values(kCount, 1);
  own_.copy(x.get(), values.data(), kCount * 4);
  DeviceStream stream(device_);
  std::atomic<int> calls{0};
  own_.wait();
  DeviceGraph graph = captured(stream, [&] {
    copy(stream, there, from);
    stream.zero(zeroed.get(), zeroed.bytes());
    if (twice) twice->run(stream);
    stream.host_call(count, &calls);
    copy(stream, to, there);
  });
  stream.wait();
  EXPECT_EQ(calls, 0) << "run while it was captured";
  EXPECT_EQ(to.values(), Numbers(kCount, 0)) << "run while it was captured";
  EXPECT_EQ(read(zeroed), Numbers(kCount, 8)) << "run while it was captured";
  for (int launches = 1; launches <= 5; ++launches) {
    std::fill_n(from.get(), kCount, launches);  // read at launch
    graph.launch(stream);
    stream.wait();
    ASSERT_EQ(calls, launches);
    ASSERT_EQ(to.values(), Numbers(kCount, launches));
    ASSERT_EQ(read(zeroed), Numbers(kCount, 0));
    own_.copy(values.data(), x.get(), kCount * 4);
    own_.wait();
    if (twice) {
      ASSERT_EQ(values, std::vector<float>(kCount, static_cast<float>(1 << launches)));
    }
  }
  for (int i = 0; i < 20; ++i) graph.launch(stream);  // without a wait in between
  stream.wait();
  EXPECT_EQ(calls, 25);
}

// A chain that alternates between streams: without one of its edges it copies zeros.
TEST_F(Capture, KeepsEdgesAcrossStreams) {
  DeviceStream a(device_), b(device_), c(device_);
  std::vector<DeviceEvent> events;
  std::vector<Array> chain;
  for (int i = 0; i < 31; ++i) events.emplace_back(device_), chain.push_back(array(kCount, 0));
  const Array from = pinned(kCount), to = pinned(kCount);
  DeviceEvent joined_b(device_), joined_c(device_);
  DeviceStream* streams[] = {&a, &b, &c};
  std::atomic<bool> open{false};
  DeviceGraph graph = captured(a, [&] {
    a.host_call(
        [](void* data) {  // blocks the start of every launch
          for (int i = 0; i < 50000 && !*static_cast<std::atomic<bool>*>(data); ++i) usleep(100);
        },
        &open);
    copy(a, chain[0], from);
    for (size_t i = 1; i < chain.size(); ++i) {
      DeviceStream &before = *streams[(i - 1) % 3], &after = *streams[i % 3];
      events[i].record(before);
      events[i].hold(after);
      copy(after, chain[i], chain[i - 1]);
    }
    joined_b.record(b), joined_c.record(c);
    joined_b.hold(a), joined_c.hold(a);
    copy(a, to, chain.back());
  });
  for (int round = 1; round <= 3; ++round) {
    for (const Array& link : chain) own_.zero(link.get(), link.bytes());
    own_.wait();
    std::fill_n(from.get(), kCount, round);
    open = false;
    graph.launch(a);
    usleep(20000);  // streams that did not wait have copied zeros by now
    open = true;
    a.wait();
    ASSERT_EQ(to.values(), Numbers(kCount, round)) << "an edge between streams of the graph was lost";
  }
}

// A launch runs as a whole, on all of its streams, after earlier and before later work of the launching stream.
TEST_F(Capture, HasItsPlaceInTheStreamThatLaunches) {
  DeviceStream origin(device_), branch(device_), other(device_);
  DeviceEvent fork(device_), join(device_);
  const Array x = array(kCount, 0), y = array(kCount, 0), from = pinned(kCount), to = pinned(kCount);
  DeviceGraph graph = captured(origin, [&] {
    fork.record(origin);
    fork.hold(branch);
    copy(branch, y, x);
    join.record(branch);
    join.hold(origin);
  });
  for (DeviceStream* stream : {&origin, &other})
    for (int round = 1; round <= 5; ++round) {
      {
        Gate gate(*stream);
        std::fill_n(from.get(), kCount, round);
        copy(*stream, x, from);
        graph.launch(*stream);
        copy(*stream, to, y);
        stream->zero(y.get(), y.bytes());
        gate.open();
      }
      stream->wait();
      ASSERT_EQ(to.values(), Numbers(kCount, round));
    }
}

TEST_F(Capture, TwoGraphsTakeTurns) {
  DeviceStream stream(device_);
  const Array x = array(kCount, 0), ones = array(kCount, 1), twos = array(kCount, 2), to = pinned(kCount);
  DeviceGraph first = captured(stream, [&] { copy(stream, x, ones); });
  DeviceGraph second = captured(stream, [&] { copy(stream, x, twos); });
  for (int i = 0; i < 10; ++i) {
    (i % 2 == 0 ? first : second).launch(stream);
    copy(stream, to, x);
    stream.wait();
    ASSERT_EQ(to.values(), Numbers(kCount, 1 + i % 2));
  }
}

TEST_F(Capture, IsOfItsOwnStreamsOnly) {
  DeviceStream stream(device_), other(device_);
  const Array from = array(kCount, 5), to = pinned(kCount), later = pinned(kCount);
  DeviceEvent event(device_);
  DeviceGraph graph = captured(stream, [&] {
    copy(other, to, from);
    event.record(other);
    other.wait();
    EXPECT_EQ(to.values(), Numbers(kCount, 5)) << "a stream that waits for none of the capture's events works on";
    EXPECT_TRUE(event.reached());
    copy(stream, later, from);
  });
  stream.wait();
  EXPECT_EQ(later.values(), Numbers(kCount, 0));
}

TEST_F(Capture, ExternalEventsAreSeenByTheHost) {
  DeviceStream stream(device_);
  DeviceEvent begin(device_, true), end(device_, true), elsewhere(device_);
  std::atomic<int> calls{0};
  DeviceGraph graph = captured(stream, [&] {
    begin.record(stream, true);
    stream.host_call(
        [](void* data) {
          usleep(5000);
          count(data);
        },
        &calls);
    end.record(stream, true);
  });
  EXPECT_TRUE(end.reached()) << "until it is launched the host sees what was before: never recorded";
  for (int launches = 1; launches <= 3; ++launches) {
    graph.launch(stream);
    elsewhere.record(stream);
    while (!elsewhere.reached()) usleep(50);
    ASSERT_TRUE(end.reached());
    ASSERT_EQ(calls, launches);
    ASSERT_GE(end.ms_since(begin), 4) << "5 ms lie between them";
  }
  end.record(stream, true);  // likewise outside a capture
  stream.wait();
  EXPECT_TRUE(end.reached());
}

TEST_F(Capture, ManyAndLarge) {
  DeviceStream stream(device_);
  const Array from = array(16, 3), to = array(16, 0);
  DeviceGraph nothing = captured(stream, [] {});
  nothing.launch(stream);
  for (int i = 0; i < 50; ++i) {
    std::atomic<int> calls{0};
    DeviceGraph graph = captured(stream, [&] {
      for (int node = 0; node < (i == 0 ? 2000 : 3); ++node) copy(stream, to, from);
      stream.host_call(count, &calls);
    });
    if (i % 2 == 0) graph.launch(stream);
    stream.wait();
    ASSERT_EQ(calls, i % 2 == 0 ? 1 : 0);
  }
  EXPECT_EQ(read(to), Numbers(16, 3));
}

// Wrong captures are errors, and later ones work.
TEST_F(Capture, WrongOnesAreRefused) {
  prun_graph* graph = nullptr;
  DeviceStream stream(device_), lost(device_);
  DeviceEvent fork(device_);
  const Array from = array(kCount, 2), to = pinned(kCount), there = array(kCount, 0);
  const auto end = [&](prun_result* r) { return table_.capture_end(device_.get(), stream.get(), &graph, r); };
  refused(end);  // no capture was begun
  prun_result result = empty_result();
  ASSERT_EQ(begin(stream, &result), PRUN_OK) << result.message;
  refused([&](prun_result* r) { return begin(stream, r); });  // already begun
  if (end(&result) == PRUN_OK) table_.graph_free(device_.get(), graph);
  ASSERT_EQ(begin(stream, &result), PRUN_OK) << "after one that was begun twice: " << result.message;
  copy(stream, to, from);
  fork.record(stream);
  fork.hold(lost);
  copy(lost, there, from);
  refused(end);  // one of its streams was never waited for
  {
    DeviceStream next(device_);
    DeviceGraph good = captured(next, [&] { copy(next, to, from); });
    good.launch(next);
    next.wait();
  }
  EXPECT_EQ(to.values(), Numbers(kCount, 2));
  copy(stream, there, from);
  stream.wait();
  EXPECT_EQ(read(there), Numbers(kCount, 2));
}

// Step values are stored in device memory: a graph that kept the captured values would train with one learning rate
// forever.
TEST_F(Capture, StepValuesAreReadAtEveryLaunch) {
  const DeviceMemory values = memory(sizeof(prun_step_values)), grad = memory(kCount * 4), param = memory(kCount * 4);
  const int64_t dims[] = {kCount};
  const prun_tensor reads[] = {{grad.get(), dims, 1, PRUN_F32}, {param.get(), dims, 1, PRUN_F32}};
  const prun_op op{.size = sizeof op,
                   .kind = "sgd",
                   .reads = reads,
                   .n_reads = 2,
                   .writes = &reads[1],
                   .n_writes = 1,
                   .values = reinterpret_cast<const prun_step_values*>(values.get()),
                   .threads = 1};
  prun_result result = empty_result();
  if (table_.supports(&op, &result) != PRUN_OK) GTEST_SKIP() << "it has no sgd of f32";
  DeviceKernel sgd(device_, op);
  DeviceStream stream(device_);
  DeviceGraph graph = captured(stream, [&] { sgd.run(stream); });
  const DeviceMemory pages = memory(kCount * 4, PRUN_PLACE_PINNED);
  float* here = reinterpret_cast<float*>(pages.get());
  std::fill_n(here, kCount, 1.0F);
  stream.copy(grad.get(), here, kCount * 4);
  stream.zero(param.get(), kCount * 4);
  float wanted = 0;
  for (const double rate : {0.5, 0.25, 2.0}) {
    const prun_step_values now{.step = 0, .seed = 0, .learning_rate = rate};
    stream.copy(values.get(), &now, sizeof now);
    graph.launch(stream);
    stream.copy(here, param.get(), kCount * 4);
    stream.wait();
    wanted -= static_cast<float>(rate);
    for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(here[i], wanted) << "with the learning rate " << rate;
  }
}

}  // namespace
}  // namespace prun::testing
