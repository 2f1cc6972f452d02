// Item 11: transports that only enqueue. Those that do not are not asked; their item is one that they do not claim.
#include <gtest/gtest.h>

#include "comm/host.h"
#include "comm/plugin.h"
#include "tests/conformance/suite.h"

namespace prun::testing {
namespace {

TEST(Queue, OrderIsKept) {
  if (load_named(suite().transport, suite().plugin_dirs, host_table()).table.queue_ordered == 0)
    GTEST_SKIP() << "not queue-ordered";
  FAIL() << "it says that it is queue-ordered, and this suite has no cases for that yet";
}

}  // namespace
}  // namespace prun::testing
