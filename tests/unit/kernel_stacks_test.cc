// Reports about a process that makes no progress.
#include "watch/kernel_stacks.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace prun {
namespace {

KernelThread thread_in(const char* name, char state, const char* call, const char* file = "") {
  KernelThread thread;
  thread.name = name;
  thread.state = state;
  thread.call = call;
  thread.file = file;
  return thread;
}

TEST(KernelStacks, TheMostTellingThreadIsSaid) {
  const KernelThread compute = thread_in("compute", 'S', "futex"), data = thread_in("data", 'S', "pread64", "/a/b"),
                     disk = thread_in("save", 'D', "fsync", "/a/c"), busy = thread_in("gather", 'R', ""),
                     socket = thread_in("reduce", 'S', "read", "socket:[7]");
  EXPECT_EQ(kernel_words({}), "");
  EXPECT_EQ(kernel_words({compute, socket}), "its threads wait in futex, read");
  EXPECT_EQ(kernel_words({compute, busy}), "its thread 'gather' is computing (state R)");
  EXPECT_EQ(kernel_words({compute, busy, data}), "its thread 'data' waits in pread64 of /a/b (state S)");
  EXPECT_EQ(kernel_words({data, disk}),
            "its thread 'save' waits for a disk or a file system (state D) in fsync of /a/c");
  EXPECT_EQ(kernel_words({disk, thread_in("compute", 'T', "futex")}), "its threads are stopped (state T)");
}

TEST(KernelStacks, ThreadsOfThisProcessAreFound) {
  const std::vector<KernelThread> threads = kernel_threads(getpid());
  ASSERT_FALSE(threads.empty());
  EXPECT_EQ(threads.front().id, getpid());
  EXPECT_TRUE(kernel_threads(0).empty());
}

}  // namespace
}  // namespace prun
