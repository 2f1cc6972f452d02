// Items memory and copies: allocations, and copies of exactly these bytes between any two places.
#include <sys/mman.h>

#include <cstring>
#include <numeric>

#include "tests/conformance/device/suite.h"

namespace prun::testing {
namespace {

class Memory : public OpenDevice {};
class Copies : public OpenDevice {};

constexpr int64_t kGuard = 64;
constexpr prun_place kPlaces[] = {PRUN_PLACE_DEVICE, PRUN_PLACE_PINNED};

const char* word(prun_place place) { return place == PRUN_PLACE_DEVICE ? "the device's" : "pinned"; }

TEST_F(Memory, IsAlignedAndApart) {
  for (const prun_place place : kPlaces) {
    std::vector<DeviceMemory> made;
    std::vector<int64_t> sizes = {1, 3, 255, 256, 257, 4097, 65537, (1 << 20) + 1};
    const DeviceMemory here = memory(2 << 20, PRUN_PLACE_PINNED);
    for (size_t i = 0; i < sizes.size(); ++i) {
      made.push_back(memory(sizes[i], place));
      EXPECT_EQ(reinterpret_cast<uintptr_t>(made[i].get()) % 256, 0U) << sizes[i] << " bytes of " << word(place);
      std::memset(here.get(), static_cast<int>(i + 1), static_cast<size_t>(sizes[i]));
      own_.copy(made[i].get(), here.get(), sizes[i]);
      own_.wait();
    }
    for (size_t i = 0; i < sizes.size(); ++i) {
      own_.copy(here.get(), made[i].get(), sizes[i]);
      own_.wait();
      for (int64_t at = 0; at < sizes[i]; ++at)
        ASSERT_EQ(here.get()[at], std::byte(i + 1)) << "byte " << at << " of " << sizes[i] << " was somebody else's";
    }
  }
}

TEST_F(Memory, PinnedIsTheHosts) {
  const Array here = pinned(1000, 3), there = array(1000, 4);
  copy(own_, here, there);
  own_.wait();
  EXPECT_EQ(here.values(), Numbers(1000, 4));
  std::iota(here.get(), here.get() + 1000, 0);
  copy(own_, there, here);
  own_.wait();
  EXPECT_EQ(read(there), here.values());
}

// The status matters, because it determines the exit code of a plan that is too large.
TEST_F(Memory, ThatThereIsNotIsSaid) {
  for (const prun_place place : kPlaces)
    for (const size_t bytes : {size_t{1} << 60, SIZE_MAX - 100}) {
      void* ptr = nullptr;
      prun_status status = PRUN_OK;
      refused([&](prun_result* result) { return status = table_.alloc(device_.get(), bytes, place, &ptr, result); });
      if (place == PRUN_PLACE_DEVICE && bytes != SIZE_MAX - 100) {
        EXPECT_EQ(status, PRUN_ENOMEM) << bytes;
      }
      EXPECT_EQ(read(array(100, 7)), Numbers(100, 7)) << "after an allocation that failed";
    }
}

TEST_F(Memory, IsGivenBack) {
  uint64_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(table_.memory_info(device_.get(), &free_bytes, &total_bytes), PRUN_OK);
  EXPECT_GT(free_bytes, 0U);
  EXPECT_GE(total_bytes, free_bytes);
  for (int i = 0; i < 4; ++i) memory(static_cast<int64_t>(free_bytes / 5 * 2));
  for (int i = 0; i < 1000; ++i) memory(i * 100 + 1);
}

TEST_F(Memory, OfOthersIsPinned) {
  if (table_.pin == nullptr) GTEST_SKIP() << "it pins nothing";
  constexpr size_t kBytes = 1 << 16;
  void* pages = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  const Array there = array(kBytes / 4, 5);
  for (int i = 0; i < 2; ++i) {
    std::memset(pages, 0, kBytes);
    device_.call("pinning", [&](prun_result* r) { return table_.pin(device_.get(), pages, kBytes, r); });
    {  // copied in stream order, not at the call
      Gate gate(own_);
      own_.copy(there.get(), pages, 4);
      *static_cast<int32_t*>(pages) = 77;
      gate.open();
    }
    own_.copy(static_cast<char*>(pages) + 4, there.get(), kBytes - 4);
    own_.wait();
    EXPECT_EQ(static_cast<int32_t*>(pages)[1], 77);
    table_.unpin(device_.get(), pages);
  }
  munmap(pages, kBytes);
}

// Ordinary host memory, device memory and pinned memory: copies from each to each.
struct Place {
  std::byte* at;
  DeviceMemory owner;
  std::vector<std::byte> own;
};
constexpr int64_t kRoom = (1 << 20) + 4096;

std::vector<Place> places(OpenDevice&, QueueDevice& device) {
  std::vector<Place> all(3);
  all[0].own.resize(kRoom);
  all[0].at = all[0].own.data();
  for (const prun_place place : kPlaces) {
    all[1 + place].owner = DeviceMemory(device, kRoom, place);
    all[1 + place].at = all[1 + place].owner.get();
  }
  return all;
}

TEST_F(Copies, BetweenAnyTwoPlaces) {
  std::vector<Place> from = places(*this, device_), to = places(*this, device_);
  std::vector<std::byte> pattern(kRoom), seen(kRoom);
  for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = std::byte(i * 7 % 251);
  for (Place& place : from) own_.copy(place.at, pattern.data(), kRoom);
  own_.wait();
  for (const Place& source : from)
    for (const Place& target : to)
      for (const int64_t bytes : {0, 1, 3, 4, 15, 255, 256, 257, 4099, (1 << 20) + 3})
        for (const auto& [out, in] : {std::pair<int64_t, int64_t>{0, 0}, {1, 0}, {0, 3}, {5, 16}}) {
          const int64_t behind = kGuard + in + bytes + kGuard;
          own_.zero(to[1].at, behind);  // either may be the target
          own_.copy(target.at, to[1].at, behind);
          own_.copy(target.at + kGuard + in, source.at + out, bytes);
          own_.copy(seen.data(), target.at, behind);
          own_.wait();
          for (int64_t i = 0; i < behind; ++i) {
            const int64_t at = i - kGuard - in;
            const bool inside = at >= 0 && at < bytes;
            ASSERT_EQ(seen[static_cast<size_t>(i)], inside ? pattern[static_cast<size_t>(out + at)] : std::byte{0})
                << "byte " << at << " of " << bytes << " from place " << &source - from.data() << " (host, device, "
                << "pinned) + " << out << " to place " << &target - to.data() << " + " << in;
          }
        }
}

TEST_F(Copies, ZeroWritesWhatItIsAskedFor) {
  const DeviceMemory there = memory(kRoom), here = memory(kRoom, PRUN_PLACE_PINNED);
  for (const int64_t bytes : {0, 1, 3, 16, 255, 257, 4099, (1 << 20) + 3})
    for (const int64_t offset : {0, 1, 3, 8}) {
      const int64_t begin = kGuard + offset, behind = begin + bytes + kGuard;
      std::memset(here.get(), 0xa5, static_cast<size_t>(behind));
      own_.copy(there.get(), here.get(), behind);
      own_.zero(there.get() + begin, bytes);
      own_.copy(here.get(), there.get(), behind);
      own_.wait();
      for (int64_t i = 0; i < behind; ++i) {
        const bool inside = i >= begin && i < begin + bytes;
        ASSERT_EQ(here.get()[i], std::byte{inside ? uint8_t{0} : uint8_t{0xa5}})
            << "byte " << i - begin << " of " << bytes << " at offset " << offset;
      }
    }
  own_.zero(here.get(), 100);  // pinned memory, too
  own_.wait();
  for (int i = 0; i < 100; ++i) ASSERT_EQ(here.get()[i], std::byte{0});
}

// Pinned memory is read and written in stream order, as the core's slots for batches and losses require.
TEST_F(Copies, OfPinnedMemoryHappenInTheirTurn) {
  const Array from = pinned(1000, 1), to = pinned(1000, 1), there = array(1000, 0);
  {
    Gate gate(own_);
    copy(own_, there, from);
    copy(own_, to, there);
    std::fill_n(from.get(), 1000, 2);
    EXPECT_EQ(to.values(), Numbers(1000, 1));
    gate.open();
  }
  own_.wait();
  EXPECT_EQ(to.values(), Numbers(1000, 2));
}

// Offsets beyond 32 bits.
TEST_F(Copies, BeyondFourGiB) {
  constexpr int64_t kLarge = (int64_t{4} << 30) + 4096;
  uint64_t free_bytes = 0, total_bytes = 0;
  ASSERT_EQ(table_.memory_info(device_.get(), &free_bytes, &total_bytes), PRUN_OK);
  if (is_on_host() || free_bytes < 3 * kLarge) GTEST_SKIP() << "more than 4 GiB wants 12 GiB of a device's memory";
  const DeviceMemory from = memory(kLarge), to = memory(kLarge);
  const Array mark = pinned(1, 0x1234567), seen = pinned(2);
  own_.zero(from.get(), kLarge);
  own_.copy(from.get() + kLarge - 4, mark.get(), 4);
  own_.copy(to.get(), from.get(), kLarge);
  own_.copy(seen.get(), to.get() + kLarge - 8, 8);
  own_.zero(to.get(), kLarge);
  own_.wait();
  EXPECT_EQ(seen.values(), (Numbers{0, 0x1234567}));
  own_.copy(seen.get(), to.get() + kLarge - 8, 8);
  own_.wait();
  EXPECT_EQ(seen.values(), (Numbers{0, 0}));
}

}  // namespace
}  // namespace prun::testing
