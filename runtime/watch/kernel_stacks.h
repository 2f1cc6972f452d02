// What the kernel knows of a process that does not go on: of each thread its state, the system call that it is in and
// on which file, the function that it waits in, and for root its kernel stack.
//
// Surprising fact: nothing of it stops the process or needs its help, so a rank in state D is told like any other.
#pragma once
#include <string>
#include <vector>

namespace prun {

struct KernelThread {
  int id = 0;
  std::string name;  // as the thread was named: its stream
  char state = '?';  // as /proc has it: R, S, D, T, ..
  std::string call;  // "pread64"; "": none, or it may not be known
  std::string file;  // that the call is about; "": none
  std::string wait;  // "futex_wait_queue"; "": not known
  std::vector<std::string> stack;
};

// Empty: the process is gone, or /proc tells nothing.
std::vector<KernelThread> kernel_threads(int pid);
// What tells most: stopped, else waiting for a file, else computing, else what all wait in. "" of no thread.
std::string kernel_words(const std::vector<KernelThread>& threads);
std::string kernel_text(const std::vector<KernelThread>& threads);  // all of it, a line a thread, then its stack

}  // namespace prun
