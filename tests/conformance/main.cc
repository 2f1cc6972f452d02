// The suite as a test of this build: --transport=NAME [--options=key=value,...] [--whole] besides GoogleTest's options;
// it uses plugins of the build and test plugins. conform.cc is the same suite for any plugin.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "base/log.h"
#include "tests/conformance/suite.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  prun::start_log("");
  prun::testing::Suite& suite = prun::testing::suite();
  suite.whole = false;
  suite.plugin_dirs = prun::plugin_directories(argv[0]);
  suite.plugin_dirs.emplace_back(PRUN_TEST_PLUGINS);
  suite.job_id = "conform" + std::to_string(getpid());
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "--transport=", 12) == 0)
      suite.transport = argv[i] + 12;
    else if (std::strncmp(argv[i], "--options=", 10) == 0)
      suite.transport_options = argv[i] + 10;
    else if (std::strcmp(argv[i], "--whole") == 0)
      suite.whole = true;
    else
      return fprintf(stderr, "unknown argument %s\n", argv[i]), 2;
  }
  return RUN_ALL_TESTS();
}
