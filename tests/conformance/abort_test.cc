// Item 7, abort: it returns within the 100 ms of prun/transport.h, and pending requests end with PRUN_EABORTED.
//
// A busy machine may delay a single attempt, so the fastest of several counts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <thread>

#include "comm/transport/transport_session.h"
#include "tests/conformance/raw.h"

namespace prun::testing {
namespace {

constexpr double kAllowed = 0.1;
constexpr int kTries = 5;

// Durations of an attempt in seconds; negative = did not happen.
struct Seen {
  double returned = -1, ended = -1;
  std::string otherwise;
};

// Rank 0 waits for a message that is never sent, and aborts.
Seen abort_once(Raw& raw) {
  Seen seen;
  int data = 0;
  prun_req* req = raw.post({Raw::recv(1, 0, &data, sizeof data)});
  prun_result result = empty_result();
  for (const double end = now_s() + 0.02; now_s() < end;)
    if (raw.session.test(req, result) != PRUN_AGAIN) return {-1, -1, "a message came that nobody had sent"};
  double begin = now_s();
  std::thread other([&] {
    begin = now_s();
    raw.session.table().abort(raw.session.ctx());
    seen.returned = now_s() - begin;
    raw.session.table().abort(raw.session.ctx());  // a second call is allowed
  });
  prun_status status = PRUN_AGAIN;
  for (const double last = begin + 5; status == PRUN_AGAIN && now_s() < last;) status = raw.session.test(req, result);
  seen.ended = now_s();
  other.join();
  seen.ended -= begin;
  if (status == PRUN_AGAIN)
    seen.otherwise = "abort was ignored for 5 s: a receive under way did not end";
  else if (status != PRUN_EABORTED)
    seen.otherwise = fmt::format("after abort a receive under way ended with \"{}\", not with PRUN_EABORTED",
                                 status_text(status, result));
  return seen;
}

TEST(Abort, EndsInTime) {
  std::string text;
  for (int i = 0; i < kTries && (i == 0 || !text.empty()); ++i)
    text = run_raw(2, [](Raw& raw) -> std::string {
      Seen seen;
      if (raw.rank == 0) seen = abort_once(raw);
      raw.bootstrap.barrier();
      if (!seen.otherwise.empty()) return seen.otherwise;
      if (seen.returned > kAllowed)
        return fmt::format("the plugin's abort returned after {:.0f} ms, 100 ms are allowed", seen.returned * 1000);
      if (seen.ended > kAllowed)
        return fmt::format("abort was ignored for {:.0f} ms by a receive under way, 100 ms are allowed",
                           seen.ended * 1000);
      return "";
    });
  EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace prun::testing
