// Item 2: messages through the plugin's own functions: sizes, order, lanes, to oneself, both sides sending first, many
// at a time.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <fstream>
#include <functional>

#include "base/text.h"
#include "comm/transport/connect.h"
#include "comm/transport/job_state.h"
#include "comm/transport/plugin.h"
#include "tests/conformance/suite.h"

namespace prun::testing {
namespace {

// A rank with nothing above the plugin.
struct Raw {
  LocalBootstrap& bootstrap;
  TransportSession& session;
  int rank, ranks;

  static prun_p2p send(int to, uint64_t lane, const void* data, size_t bytes) {
    return {0, to, lane, const_cast<void*>(data), bytes, PRUN_MEM_HOST, nullptr};
  }
  static prun_p2p recv(int from, uint64_t lane, void* data, size_t bytes) {
    return {1, from, lane, data, bytes, PRUN_MEM_HOST, nullptr};
  }
  prun_req* post(std::vector<prun_p2p> ops) {
    prun_req* req = nullptr;
    prun_result result = empty_result();
    prun_status status = session.batch(ops, &req, result);
    if (status != PRUN_OK) throw Error(Exit::transport, status_text(status, result));
    return req;
  }
  void wait(prun_req* req) {
    prun_result result = empty_result();
    prun_status status = session.wait(req, 0, result);
    if (status != PRUN_OK) session.fail(status, result, "waiting");
  }
  void run(const std::vector<prun_p2p>& ops) { wait(post(ops)); }
};

std::string run_raw(int ranks, const std::function<std::string(Raw&)>& body, double timeout_s = 60) {
  LocalJob job;
  job.timeout_s = timeout_s;
  job.ranks = ranks;
  return failures(run_ranks(job, [&](LocalBootstrap& bootstrap) -> std::string {
    set_job(&bootstrap, ranks);
    WorldOptions options = suite().options(bootstrap);
    TransportSession session(load_named(options.transport, options.plugin_dirs), options);
    join_and_connect(session, options, bootstrap);
    Raw raw{bootstrap, session, bootstrap.rank(), ranks};
    std::string text = body(raw);
    if (text.empty()) bootstrap.barrier();
    return text;
  }));
}

int64_t available_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string line; std::getline(meminfo, line);) {
    long long kilobytes = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %lld kB", &kilobytes) == 1) return kilobytes * 1024;
  }
  return 0;
}

// Such a transport keeps the order of a queue on both sides: a send may hold up what is behind it until it is received.
bool queue_ordered() { return load_named(suite().transport, suite().plugin_dirs).table.queue_ordered != 0; }

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
                            return fmt::format("{} bytes off {}: wrong", bytes, offset);
                          if (in[bytes + offset] != 0x5a || (offset > 0 && in[offset - 1] != 0x5a))
                            return fmt::format("{} bytes off {}: beyond", bytes, offset);
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

// What is asked for first was sent last: a lane that nobody reads must not hold the others up.
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

// Lengths that no 32 bits hold, signed or not, in memory that is looked at here and there.
TEST(PointToPoint, MoreThanTwoGiB) {
  constexpr size_t kBytes = (size_t{1} << 31) + 4099, kStep = 65521;
  constexpr int64_t kRoom = int64_t{9} << 30;  // both ends, and as much again on the way
  if (!suite().whole) GTEST_SKIP() << "more than 2 GiB: only in the whole suite";
  if (int64_t free = available_bytes(); free < kRoom)
    GTEST_SKIP() << fmt::format("more than 2 GiB: {} of memory are free, {} are needed", human_bytes(free),
                                human_bytes(kRoom));
  EXPECT_EQ(run_raw(
                2,
                [](Raw& raw) -> std::string {
                  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                  if (memory == MAP_FAILED) return "no memory";
                  char* data = static_cast<char*>(memory);
                  auto value = [](size_t at) { return static_cast<char>(at / kStep * 7 + 1); };
                  for (size_t at = 0; raw.rank == 0 && at < kBytes; at += kStep) data[at] = value(at);
                  if (raw.rank == 0) data[kBytes - 1] = 77;
                  prun_req* req =
                      raw.post({raw.rank == 0 ? Raw::send(1, 0, data, kBytes) : Raw::recv(0, 0, data, kBytes)});
                  prun_result result = empty_result();
                  prun_status status = raw.session.wait(req, static_cast<int64_t>(kBytes), result);
                  if (status != PRUN_OK) raw.session.fail(status, result, "waiting");
                  for (size_t at = 0; at < kBytes; at += kStep) {
                    if (data[at] != value(at)) return fmt::format("byte {} is wrong", at);
                  }
                  return data[kBytes - 1] == 77 ? "" : "the last byte is wrong";
                },
                300),
            "");
}

// Item 8 for messages: an error with both sizes, never data.
TEST(PointToPoint, SizesThatDifferAreAnError) {
  for (size_t sent : {size_t{64}, size_t{100000}}) {
    std::string text = run_raw(2, [&](Raw& raw) -> std::string {
      std::vector<char> data(200000);
      size_t bytes = raw.rank == 0 ? sent : sent + 8;
      prun_req* req =
          raw.post({raw.rank == 0 ? Raw::send(1, 0, data.data(), bytes) : Raw::recv(0, 0, data.data(), bytes)});
      prun_result result = empty_result();
      prun_status status = raw.session.wait(req, 0, result);
      if (raw.rank == 0) return "";  // a sender may or may not learn of it
      if (status != PRUN_EMISMATCH) return fmt::format("status {}: {}", static_cast<int>(status), result.message);
      return fmt::format("mismatch with rank {}: {}", result.culprit, result.message);
    });
    EXPECT_NE(text.find("mismatch with rank 0: "), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(sent)), std::string::npos) << text;
    EXPECT_NE(text.find(std::to_string(sent + 8)), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace prun::testing
