// One-sided calls through the plugin's own functions: put data is visible when its signal is, get returns the peer's
// data, and every pair of ranks counts its own signals. Plugins without `put` skip these tests.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <thread>

#include "comm/transport/job_state.h"
#include "comm/transport/plugin.h"
#include "comm/transport/transport_session.h"
#include "tests/conformance/suite.h"

namespace prun::testing {
namespace {

constexpr size_t kWindow = 4 << 20;

// A rank that calls the plugin's own functions, and a window for its peers.
struct Raw {
  LocalBootstrap& bootstrap;
  TransportSession& session;
  char* window;
  int rank, ranks;

  using Call = std::function<prun_status(const prun_transport&, prun_ctx*, prun_req**, prun_result*)>;
  prun_status start(const Call& call, prun_req** req, prun_result& result) {
    result = empty_result();
    return call(session.table(), session.ctx(), req, &result);
  }
  prun_req* post(const Call& call) {
    prun_req* req = nullptr;
    prun_result result{};
    prun_status status = start(call, &req, result);
    if (status != PRUN_OK) session.fail(status, result, "starting");
    return req;
  }
  void wait(prun_req* req) {
    prun_result result = empty_result();
    prun_status status = session.wait(req, 0, result);
    if (status != PRUN_OK) session.fail(status, result, "waiting");
  }

  static Call put(int peer, const void* src, size_t offset, size_t bytes, uint64_t signal) {
    return [=](const prun_transport& t, prun_ctx* c, prun_req** req, prun_result* result) {
      return t.put(c, peer, src, nullptr, offset, bytes, signal, req, result);
    };
  }
  static Call get(int peer, void* dst, size_t offset, size_t bytes) {
    return [=](const prun_transport& t, prun_ctx* c, prun_req** req, prun_result* result) {
      return t.get(c, peer, dst, nullptr, offset, bytes, req, result);
    };
  }
  static Call raise(int peer, uint64_t signal) {
    return [=](const prun_transport& t, prun_ctx* c, prun_req** req, prun_result* result) {
      return t.signal(c, peer, signal, req, result);
    };
  }
  static Call await(int peer, uint64_t signal, uint64_t count) {
    return [=](const prun_transport& t, prun_ctx* c, prun_req** req, prun_result* result) {
      return t.wait_signal(c, peer, signal, count, req, result);
    };
  }
  void run(const Call& call) { wait(post(call)); }
};

std::vector<RankReport> run_raw(const LocalJob& job, const std::function<std::string(Raw&)>& body) {
  return run_ranks(job, [&](LocalBootstrap& bootstrap) -> std::string {
    set_job(&bootstrap, job.ranks);
    WorldOptions options = suite().options(bootstrap);
    TransportSession session(load_named(options.transport, options.plugin_dirs), options);
    char* window = static_cast<char*>(session.allocate(kWindow));
    if (window == nullptr) return "the plugin has put, and no memory to put into";
    join_and_connect(session, options, bootstrap);
    Raw raw{bootstrap, session, window, bootstrap.rank(), bootstrap.ranks()};
    std::string text = body(raw);
    if (text.empty()) bootstrap.barrier();
    return text;
  });
}
std::string run_raw(int ranks, const std::function<std::string(Raw&)>& body) {
  LocalJob job;
  job.ranks = ranks;
  return failures(run_raw(job, body));
}

char byte_of(size_t i, int seed) { return static_cast<char>(i * 131 + i / 251 + static_cast<size_t>(seed)); }
std::vector<char> pattern(size_t bytes, int seed) {
  std::vector<char> data(bytes);
  for (size_t i = 0; i < bytes; ++i) data[i] = byte_of(i, seed);
  return data;
}

class OneSided : public ::testing::Test {
 protected:
  void SetUp() override {
    prun_transport table = load_named(suite().transport, suite().plugin_dirs).table;
    if (table.put == nullptr) GTEST_SKIP() << "no one-sided calls";
    ASSERT_TRUE(table.get != nullptr && table.signal != nullptr && table.wait_signal != nullptr)
        << "put without get, signal and wait_signal";
  }
};

constexpr size_t kSizes[] = {0, 1, 7, 8, 64, 4095, 4096, 4097, 65537, 1 << 20, 3 << 20};

TEST_F(OneSided, PutEverySizeAndAlignment) {
  EXPECT_EQ(run_raw(2,
                    [](Raw& raw) -> std::string {
                      const int other = 1 - raw.rank;
                      uint64_t rounds = 0;
                      for (size_t bytes : kSizes) {
                        for (size_t offset : {size_t{0}, size_t{1}, size_t{4096}, kWindow - bytes}) {
                          std::memset(raw.window, 0x5a, kWindow);
                          raw.bootstrap.barrier();
                          std::vector<char> mine = pattern(bytes, raw.rank), theirs = pattern(bytes, other);
                          raw.run(Raw::put(other, mine.data(), offset, bytes, 3));
                          std::fill(mine.begin(), mine.end(), 0x11);  // ended: the source may be overwritten
                          raw.run(Raw::await(other, 3, ++rounds));
                          if (bytes > 0 && std::memcmp(raw.window + offset, theirs.data(), bytes) != 0)
                            return fmt::format("{} bytes at {}: wrong", bytes, offset);
                          bool before = offset > 0 && raw.window[offset - 1] != 0x5a;
                          bool after = offset + bytes < kWindow && raw.window[offset + bytes] != 0x5a;
                          if (before || after) return fmt::format("{} bytes at {}: beyond", bytes, offset);
                          raw.bootstrap.barrier();
                        }
                      }
                      return "";
                    }),
            "");
}

// The peer makes progress only because it waits.
TEST_F(OneSided, GetEverySizeAndAlignment) {
  EXPECT_EQ(run_raw(2,
                    [](Raw& raw) -> std::string {
                      const int other = 1 - raw.rank;
                      std::vector<char> mine = pattern(kWindow, raw.rank), theirs = pattern(kWindow, other);
                      std::memcpy(raw.window, mine.data(), kWindow);
                      raw.bootstrap.barrier();
                      for (size_t bytes : kSizes) {
                        for (size_t offset : {size_t{0}, size_t{3}, kWindow - bytes}) {
                          std::vector<char> got(bytes + 2, 0x5a);
                          raw.run(Raw::get(other, got.data() + 1, offset, bytes));
                          if (std::memcmp(got.data() + 1, theirs.data() + offset, bytes) != 0)
                            return fmt::format("{} bytes at {}: wrong", bytes, offset);
                          if (got[0] != 0x5a || got[bytes + 1] != 0x5a) return fmt::format("{} bytes: beyond", bytes);
                        }
                      }
                      raw.run(Raw::raise(other, 1));
                      raw.run(Raw::await(other, 1, 1));
                      return std::memcmp(raw.window, mine.data(), kWindow) == 0 ? "" : "the window was changed";
                    }),
            "");
}

// Many pending puts, followed by one signal.
TEST_F(OneSided, ASignalComesAfterWhatWasPutBefore) {
  EXPECT_EQ(run_raw(2,
                    [](Raw& raw) -> std::string {
                      constexpr size_t kPieces = 64, kPiece = kWindow / kPieces;
                      std::vector<char> data(kWindow);
                      for (int round = 1; round <= 5; ++round) {
                        if (raw.rank == 0) {
                          data = pattern(kWindow, round);
                          std::vector<prun_req*> requests;
                          for (size_t i = 0; i < kPieces; ++i)
                            requests.push_back(raw.post(Raw::put(1, data.data() + i * kPiece, i * kPiece, kPiece, 0)));
                          requests.push_back(raw.post(Raw::raise(1, 255)));
                          for (prun_req* req : requests) raw.wait(req);
                          raw.run(Raw::await(1, 255, static_cast<uint64_t>(round)));
                        } else {
                          raw.run(Raw::await(0, 255, static_cast<uint64_t>(round)));
                          if (std::memcmp(raw.window, pattern(kWindow, round).data(), kWindow) != 0)
                            return fmt::format("round {}: the signal came before the bytes", round);
                          raw.run(Raw::raise(0, 255));
                        }
                      }
                      return "";
                    }),
            "");
}

// Every rank signals every rank including itself, with different counts.
TEST_F(OneSided, EveryPairCountsItsOwnSignals) {
  EXPECT_EQ(run_raw(3,
                    [](Raw& raw) -> std::string {
                      auto times = [](int from, int to, int number) { return 1 + (from * 5 + to * 3 + number) % 7; };
                      std::vector<prun_req*> requests;
                      for (int to = 0; to < raw.ranks; ++to) {
                        for (int number : {1, 2, 255}) {
                          for (int i = 0; i < times(raw.rank, to, number); ++i)
                            requests.push_back(raw.post(Raw::raise(to, static_cast<uint64_t>(number))));
                        }
                      }
                      for (prun_req* req : requests) raw.wait(req);
                      for (int from = 0; from < raw.ranks; ++from) {
                        for (int number : {255, 1, 2}) {
                          auto count = static_cast<uint64_t>(times(from, raw.rank, number));
                          raw.run(Raw::await(from, static_cast<uint64_t>(number), count));
                        }
                      }
                      raw.bootstrap.barrier();
                      // A signal more than raised must not arrive.
                      auto count = static_cast<uint64_t>(times(0, raw.rank, 1) + 1);
                      prun_req* more = raw.post(Raw::await(0, 1, count));
                      prun_result result = empty_result();
                      for (int i = 0; i < 3; ++i) {
                        if (raw.session.table().test(raw.session.ctx(), more, &result) != PRUN_AGAIN)
                          return "a signal that nobody has raised";
                      }
                      raw.bootstrap.barrier();
                      if (raw.rank == 0) {
                        for (int to = 0; to < raw.ranks; ++to) raw.run(Raw::raise(to, 1));
                      }
                      raw.wait(more);
                      return "";
                    }),
            "");
}

TEST_F(OneSided, ToItself) {
  EXPECT_EQ(run_raw(2,
                    [](Raw& raw) -> std::string {
                      std::vector<char> data = pattern(100000, raw.rank), back(data.size());
                      raw.run(Raw::put(raw.rank, data.data(), 17, data.size(), 9));
                      raw.run(Raw::await(raw.rank, 9, 1));
                      raw.run(Raw::get(raw.rank, back.data(), 17, back.size()));
                      return back == data ? "" : "wrong data";
                    }),
            "");
}

// A one-slot mailbox, forwarded at once, in a ring of ranks.
TEST_F(OneSided, LettersGoRound) {
  EXPECT_EQ(run_raw(3,
                    [](Raw& raw) -> std::string {
                      constexpr uint64_t kLetters = 200;
                      const int next = (raw.rank + 1) % raw.ranks, previous = (raw.rank + raw.ranks - 1) % raw.ranks;
                      for (uint64_t i = 1; i <= kLetters; ++i) {
                        uint64_t letter = i;
                        if (raw.rank == 0) raw.run(Raw::put(next, &letter, 8, sizeof letter, 1));
                        raw.run(Raw::await(previous, 1, i));
                        std::memcpy(&letter, raw.window + 8, sizeof letter);
                        if (letter != i) return fmt::format("letter {} says {}", i, letter);
                        if (raw.rank != 0) raw.run(Raw::put(next, &letter, 8, sizeof letter, 1));
                      }
                      return "";
                    }),
            "");
}

TEST_F(OneSided, SeveralThreads) {
  EXPECT_EQ(run_raw(2,
                    [](Raw& raw) -> std::string {
                      constexpr size_t kThreads = 4, kPart = kWindow / kThreads;
                      const int other = 1 - raw.rank;
                      std::vector<std::string> texts(kThreads);
                      std::vector<std::thread> threads;
                      for (size_t t = 0; t < kThreads; ++t) {
                        threads.emplace_back([&, t] {
                          try {
                            for (uint64_t i = 1; i <= 50; ++i) {
                              uint64_t out = i * 7 + t, in = 0;
                              raw.run(Raw::put(other, &out, t * kPart, sizeof out, t + 1));
                              raw.run(Raw::await(other, t + 1, 2 * i - 1));
                              std::memcpy(&in, raw.window + t * kPart, sizeof in);
                              if (in != out) texts[t] = fmt::format("thread {} got {} for {}", t, in, out);
                              raw.run(Raw::raise(other, t + 1));
                              raw.run(Raw::await(other, t + 1, 2 * i));
                            }
                          } catch (const std::exception& error) {
                            texts[t] = error.what();
                          }
                        });
                      }
                      for (std::thread& thread : threads) thread.join();
                      for (const std::string& text : texts) {
                        if (!text.empty()) return text;
                      }
                      return "";
                    }),
            "");
}

TEST_F(OneSided, WhatIsOutsideIsRefused) {
  EXPECT_EQ(run_raw(2,
                    [](Raw& raw) -> std::string {
                      char data[64] = {};
                      const Raw::Call wrong[] = {Raw::put(1 - raw.rank, data, 2 * kWindow, 64, 0),
                                                 Raw::put(1 - raw.rank, data, ~size_t{0}, 64, 0),
                                                 Raw::get(1 - raw.rank, data, 2 * kWindow, 1),
                                                 Raw::put(1 - raw.rank, data, 0, 8, PRUN_MAX_SIGNAL + 1),
                                                 Raw::raise(2, 1),
                                                 Raw::await(-1, 1, 1)};
                      for (size_t i = 0; i < std::size(wrong); ++i) {
                        prun_req* req = nullptr;
                        prun_result result{};
                        prun_status status = raw.start(wrong[i], &req, result);
                        if (status != PRUN_EINVAL || result.message[0] == '\0')
                          return fmt::format("call {}: status {} '{}'", i, static_cast<int>(status), result.message);
                      }
                      return "";
                    }),
            "");
}

TEST_F(OneSided, WaitingCostsNoCore) {
  EXPECT_EQ(run_raw(2,
                    [](Raw& raw) -> std::string {
                      if (raw.rank == 1) {
                        usleep(1000000);
                        raw.run(Raw::raise(0, 1));
                        return "";
                      }
                      auto used = [] {
                        rusage u{};
                        getrusage(RUSAGE_SELF, &u);
                        return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                               static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
                      };
                      double before = used(), start = now_s();
                      raw.run(Raw::await(1, 1, 1));
                      double share = (used() - before) / (now_s() - start);
                      return share < 0.02 ? "" : fmt::format("used {:.1f} % of a core", share * 100);
                    }),
            "");
}

// With a launcher that informs the others, as in production.
TEST_F(OneSided, AWaitForADeadRankEnds) {
  LocalJob job;
  job.ranks = 2;
  job.timeout_s = 15;
  auto reports = run_raw(job, [](Raw& raw) -> std::string {
    raw.run(Raw::raise(1 - raw.rank, 1));
    raw.run(Raw::await(1 - raw.rank, 1, 1));
    if (raw.rank == 1) kill(getpid(), SIGKILL);
    raw.run(Raw::await(1, 1, 2));
    return "went on";
  });
  EXPECT_NE(reports[0].text.find("rank 1"), std::string::npos) << reports[0].text;
  EXPECT_LT(reports[0].seconds - reports[1].seconds, 1.5) << reports[0].text;
}

}  // namespace
}  // namespace prun::testing
