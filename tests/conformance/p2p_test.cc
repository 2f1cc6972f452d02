// Item 2: messages through the plugin's own functions: sizes, order, lanes, to the rank itself, both sides sending
// first, many at once.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>

#include "base/text.h"
#include "tests/conformance/raw.h"

namespace prun::testing {
namespace {

int64_t available_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    long long kilobytes = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %lld kB", &kilobytes) == 1) return kilobytes * 1024;
  }
  return 0;
}

std::vector<char> pattern(size_t bytes, int seed) {
  std::vector<char> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i * 131 + i / 251 + static_cast<size_t>(seed));
  return data;
}

TEST(PointToPoint, EverySizeAndAlignment) {
  EXPECT_EQ(run_raw(2,
                    [](Raw& raw) -> std::string {
                      for (size_t bytes : {0ul, 1ul, 7ul, 8ul, 64ul, 255ul, 256ul, 257ul, 4095ul, 4096ul, 4097ul,
                                           65535ul, 65536ul, 65537ul, 1ul << 20, 5ul << 20}) {
                        for (size_t offset : {0ul, 1ul, 3ul}) {
                          std::vector<char> out(bytes + offset), in(bytes + offset + 8, 0x5a),
                              mine = pattern(bytes, raw.rank), theirs = pattern(bytes, 1 - raw.rank);
                          std::copy(mine.begin(), mine.end(), out.begin() + static_cast<long>(offset));
                          raw.run({Raw::recv(1 - raw.rank, 3, in.data() + offset, bytes),
                                   Raw::send(1 - raw.rank, 3, out.data() + offset, bytes)});
                          if (bytes > 0 && std::memcmp(in.data() + offset, theirs.data(), bytes) != 0)
                            return fmt::format("a message of {} bytes, {} bytes off, came changed", bytes, offset);
                          if (in[bytes + offset] != 0x5a || (offset > 0 && in[offset - 1] != 0x5a))
                            return fmt::format("receiving {} bytes wrote beside them", bytes);
                        }
                      }
                      return "";
                    }),
            "");
}

// Two sends before any receive, larger than any pipe.
TEST(PointToPoint, BothSidesSendFirst) {
  if (queue_ordered()) GTEST_SKIP() << "one queue: what is sent first waits to be received first";
  EXPECT_EQ(run_raw(2,
                    [](Raw& raw) -> std::string {
                      std::vector<char> out = pattern(3 << 20, raw.rank), in(out.size()),
                                        want = pattern(3 << 20, 1 - raw.rank);
                      prun_req* sent = raw.post({Raw::send(1 - raw.rank, 0, out.data(), out.size())});
                      raw.bootstrap.barrier();
                      prun_req* received = raw.post({Raw::recv(1 - raw.rank, 0, in.data(), in.size())});
                      raw.wait(received);
                      raw.wait(sent);
                      return in == want ? "" : "wrong data";
                    }),
            "");
}

TEST(PointToPoint, FirstInFirstOutPerLane) {
  EXPECT_EQ(run_raw(2,
                    [](Raw& raw) -> std::string {
                      constexpr int kMessages = 100;
                      for (size_t bytes : {sizeof(int), size_t{5000}}) {
                        std::vector<std::vector<char>> buffers(kMessages, std::vector<char>(bytes));
                        std::vector<prun_p2p> ops;
                        for (int i = 0; i < kMessages; ++i) {
                          auto& buffer = buffers[static_cast<size_t>(i)];
                          if (raw.rank == 0) std::memcpy(buffer.data(), &i, sizeof i);
                          ops.push_back(raw.rank == 0 ? Raw::send(1, 7, buffer.data(), bytes)
                                                      : Raw::recv(0, 7, buffer.data(), bytes));
                        }
                        raw.run(ops);
                        for (int i = 0; raw.rank == 1 && i < kMessages; ++i) {
                          int got = 0;
                          std::memcpy(&got, buffers[static_cast<size_t>(i)].data(), sizeof got);
                          if (got != i) return fmt::format("message {} came as number {}", got, i);
                        }
                      }
                      return "";
                    }),
            "");
}

// The first receive matches the last send: an unread lane must not block other lanes.
TEST(PointToPoint, LanesPassEachOther) {
  if (queue_ordered()) GTEST_SKIP() << "one queue: what is sent first waits to be received first";
  EXPECT_EQ(run_raw(2,
                    [](Raw& raw) -> std::string {
                      for (size_t bytes : {size_t{100}, size_t{200000}}) {
                        std::vector<char> a = pattern(bytes, 1), b = pattern(bytes, 2), got(bytes);
                        if (raw.rank == 0) {
                          prun_req* first = raw.post({Raw::send(1, 65535, a.data(), bytes)});
                          prun_req* second = raw.post({Raw::send(1, 2, b.data(), bytes)});
                          raw.wait(second);
                          raw.wait(first);
                        } else {
                          raw.run({Raw::recv(0, 2, got.data(), bytes)});
                          if (got != b) return "lane 2 got something else";
                          raw.run({Raw::recv(0, 65535, got.data(), bytes)});
                          if (got != a) return "lane 65535 got something else";
                        }
                      }
                      return "";
                    }),
            "");
}

// Lane numbers with equal low bits are different lanes, too; receives are posted in another order.
TEST(PointToPoint, LanesAreWholeNumbers) {
  if (queue_ordered()) GTEST_SKIP() << "one queue: what is sent first waits to be received first";
  EXPECT_EQ(run_raw(2,
                    [](Raw& raw) -> std::string {
                      constexpr std::array<uint64_t, 5> kLanes = {1, 1 + 128, 1 + 256, 1 + 4096, 1 + 32768};
                      std::array<uint64_t, kLanes.size()> values = kLanes;
                      std::vector<prun_req*> sent;
                      if (raw.rank == 0)
                        for (uint64_t& value : values) sent.push_back(raw.post({Raw::send(1, value, &value, 8)}));
                      raw.bootstrap.barrier();
                      uint64_t modulus = 65536;
                      for (size_t i = 0; raw.rank == 1 && i < kLanes.size(); ++i) {
                        const size_t at = (i + kLanes.size() - 1) % kLanes.size();
                        uint64_t came = 0;
                        raw.run({Raw::recv(0, kLanes[at], &came, 8)});
                        const uint64_t off = came > kLanes[at] ? came - kLanes[at] : kLanes[at] - came;
                        if (off > 0) modulus = std::min(modulus, off);
                      }
                      for (prun_req* req : sent) raw.wait(req);
                      if (modulus < 65536)
                        return fmt::format("what was sent on lane 1 came on lane {}: the plugin took lanes modulo {}",
                                           1 + modulus, modulus);
                      return "";
                    }),
            "");
}

TEST(PointToPoint, ToItself) {
  EXPECT_EQ(run_raw(2,
                    [](Raw& raw) -> std::string {
                      for (size_t bytes : {size_t{0}, size_t{9}, size_t{300000}}) {
                        std::vector<char> out = pattern(bytes, 5), in(bytes);
                        raw.run({Raw::recv(raw.rank, 1, in.data(), bytes), Raw::send(raw.rank, 1, out.data(), bytes)});
                        if (in != out) return fmt::format("{} bytes, received first", bytes);
                        std::fill(in.begin(), in.end(), 0);
                        prun_req* sent = raw.post({Raw::send(raw.rank, 1, out.data(), bytes)});
                        raw.run({Raw::recv(raw.rank, 1, in.data(), bytes)});
                        raw.wait(sent);
                        if (in != out) return fmt::format("{} bytes, sent first", bytes);
                      }
                      return "";
                    }),
            "");
}

TEST(PointToPoint, TenThousandOutstanding) {
  EXPECT_EQ(run_raw(2,
                    [](Raw& raw) -> std::string {
                      constexpr int kMessages = 10000;
                      std::vector<int64_t> values(kMessages, -1);
                      std::vector<prun_req*> requests;
                      for (int i = 0; i < kMessages; ++i) {
                        auto& value = values[static_cast<size_t>(i)];
                        if (raw.rank == 0) value = i * 3;
                        uint64_t lane = static_cast<uint64_t>(i % 5);
                        requests.push_back(raw.post({raw.rank == 0 ? Raw::send(1, lane, &value, sizeof value)
                                                                   : Raw::recv(0, lane, &value, sizeof value)}));
                      }
                      for (prun_req* req : requests) raw.wait(req);
                      for (int i = 0; i < kMessages; ++i) {
                        if (values[static_cast<size_t>(i)] != i * 3)
                          return fmt::format("message {} is {}", i, values[static_cast<size_t>(i)]);
                      }
                      return "";
                    }),
            "");
}

TEST(PointToPoint, AllToAllAtOnce) {
  EXPECT_EQ(run_raw(5,
                    [](Raw& raw) -> std::string {
                      for (size_t bytes : {size_t{16}, size_t{100000}}) {
                        std::vector<std::vector<char>> out, in(5, std::vector<char>(bytes));
                        std::vector<prun_p2p> ops;
                        for (int r = 0; r < raw.ranks; ++r) out.push_back(pattern(bytes, 10 * raw.rank + r));
                        for (int r = 0; r < raw.ranks; ++r)
                          ops.push_back(Raw::recv(r, 4, in[static_cast<size_t>(r)].data(), bytes));
                        for (int r = 0; r < raw.ranks; ++r)
                          ops.push_back(Raw::send(r, 4, out[static_cast<size_t>(r)].data(), bytes));
                        raw.run(ops);
                        for (int r = 0; r < raw.ranks; ++r) {
                          if (in[static_cast<size_t>(r)] != pattern(bytes, 10 * r + raw.rank))
                            return fmt::format("{} bytes from {}", bytes, r);
                        }
                      }
                      return "";
                    }),
            "");
}

// Large lengths in little memory: the middle of the buffer maps one piece repeatedly. The last data written there and
// the end are checked.
class LargeBuffer {
 public:
  static constexpr size_t kPiece = size_t{64} << 20;
  explicit LargeBuffer(size_t bytes) : bytes_(bytes), pieces_((bytes - 1) / kPiece) {
    const int fd = memfd_create("prun_conform", MFD_CLOEXEC);
    void* place = mmap(nullptr, (pieces_ + 1) * kPiece, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (fd < 0 || place == MAP_FAILED || ftruncate(fd, 2 * kPiece) != 0) throw Error(Exit::out_of_memory, "no memory");
    data_ = static_cast<char*>(place);
    for (size_t i = 0; i <= pieces_; ++i)
      if (mmap(data_ + i * kPiece, kPiece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
               i < pieces_ ? 0 : kPiece) == MAP_FAILED)
        throw Error(Exit::out_of_memory, "no memory for a large buffer");
    close(fd);
  }
  char* data() { return data_; }
  void fill() {
    for (size_t i = 0; i < kPiece; ++i) data_[i] = value(i);
    for (size_t i = pieces_ * kPiece; i < bytes_; ++i) data_[i] = value(i);
  }
  // Returns the index of the first wrong byte, or `bytes`.
  size_t first_wrong() const {
    for (size_t i = 0; i < kPiece; ++i)
      if (data_[i] != value(i)) return i;
    for (size_t i = pieces_ * kPiece; i < bytes_; ++i)
      if (data_[i] != value(i)) return i;
    return bytes_;
  }

 private:
  static char value(size_t at) { return static_cast<char>(at % kPiece / 4093 * 7 + at % 251 + 1); }
  size_t bytes_, pieces_;
  char* data_;
};

// Lengths beyond 32 bits, signed and unsigned.
TEST(PointToPoint, MoreThanFourGiB) {
  constexpr int64_t kRoom = int64_t{6} << 30;  // as much again in transit
  if (!suite().whole) GTEST_SKIP() << "more than 4 GiB: only in the whole suite";
  if (int64_t free = available_bytes(); free < kRoom)
    GTEST_SKIP() << fmt::format("more than 4 GiB: {} of memory are free, {} are needed", human_bytes(free),
                                human_bytes(kRoom));
  const auto body = [](Raw& raw) -> std::string {
    for (size_t bytes : {(size_t{1} << 31) + 4099, (size_t{1} << 32) + 4099}) {
      LargeBuffer buffer(bytes);
      if (raw.rank == 0) buffer.fill();
      // The receive is posted first, because an early message would have to be buffered.
      prun_req* req = raw.rank == 1 ? raw.post({Raw::recv(0, 0, buffer.data(), bytes)}) : nullptr;
      raw.bootstrap.barrier();
      if (raw.rank == 0) req = raw.post({Raw::send(1, 0, buffer.data(), bytes)});
      prun_result result = empty_result();
      const prun_status status = raw.session.wait(req, static_cast<int64_t>(bytes), result);
      if (status != PRUN_OK) raw.session.fail(status, result, fmt::format("a message of {} bytes", bytes));
      const size_t wrong = buffer.first_wrong();
      if (wrong == bytes) continue;
      return fmt::format("of a message of {} bytes, byte {} did not come{}", bytes, wrong,
                         wrong == bytes % (size_t{1} << 32) ? ": the plugin took sizes modulo 2^32" : "");
    }
    return "";
  };
  EXPECT_EQ(run_raw(2, body, 300), "");
}

// Item 8 for messages: an error with both sizes, never data.
TEST(PointToPoint, SizesThatDifferAreAnError) {
  for (size_t sent : {size_t{64}, size_t{100000}}) {
    const auto body = [sent](Raw& raw) -> std::string {
      std::vector<char> data(200000);
      const size_t expected = sent + 8;
      prun_req* req =
          raw.post({raw.rank == 0 ? Raw::send(1, 0, data.data(), sent) : Raw::recv(0, 0, data.data(), expected)});
      prun_result result = empty_result();
      const prun_status status = raw.session.wait(req, 0, result);
      if (raw.rank == 0) _exit(0);  // a sender may or may not get an error
      const std::string said = status_text(status, result);
      const bool both = said.find(std::to_string(sent)) != std::string::npos &&
                        said.find(std::to_string(expected)) != std::string::npos;
      if (status == PRUN_EMISMATCH && result.culprit == 0 && both) _exit(0);
      return fmt::format(
          "{} bytes came where {} were expected, and the plugin {}", sent, expected,
          status == PRUN_OK ? "gave them as data" : fmt::format("blamed rank {}: {}", result.culprit, said));
    };
    EXPECT_EQ(run_raw(2, body), "");
  }
}

}  // namespace
}  // namespace prun::testing
