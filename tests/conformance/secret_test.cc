// Item 14: a rank with a secret other than the job's gets no connection.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "comm/transport/transport_session.h"
#include "tests/conformance/raw.h"

namespace prun::testing {
namespace {

TEST(Secret, AStrangerIsNotConnected) {
  const std::vector<std::string> not_claimed = find_named(suite().transport, suite().plugin_dirs).not_claimed;
  if (std::find(not_claimed.begin(), not_claimed.end(), "secret") != not_claimed.end())
    GTEST_SKIP() << "the plugin does not claim it";
  LocalJob job;
  job.ranks = 2;
  job.abort_on_death = false;
  EXPECT_EQ(failures(run_ranks(job,
                               [](LocalBootstrap& bootstrap) -> std::string {
                                 WorldOptions options = suite().options(bootstrap);
                                 options.deadline_s = 1;
                                 if (bootstrap.rank() == 1) options.job_secret.back() ^= 1;
                                 const std::unique_ptr<TransportSession> session = open_raw(bootstrap, options);
                                 bool connected = true;
                                 try {
                                   join_and_connect(*session, options, bootstrap);
                                 } catch (const Error&) {
                                   connected = false;
                                 }
                                 bootstrap.barrier();  // a rank rejected at once must not look like one that left
                                 if (!connected) return "";
                                 return fmt::format(
                                     "the plugin connected rank {} to rank {}, whose job_secret is another",
                                     bootstrap.rank(), 1 - bootstrap.rank());
                               })),
            "");
}

}  // namespace
}  // namespace prun::testing
