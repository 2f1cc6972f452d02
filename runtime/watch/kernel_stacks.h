// The kernel's view of a process without progress, by thread: state, system call and its file, kernel function that it
// waits in, and for root the kernel stack.
//
// Reading it neither stops the process nor needs its cooperation, so it also works for state D.
#pragma once
#include <string>
#include <vector>

namespace prun {

struct KernelThread {
  int id = 0;
  std::string name;  // thread name: its stream
  char state = '?';  // as in /proc: R, S, D, T, ..
  std::string call;  // "pread64"; "": none or unknown
  std::string file;  // file of the call; "": none
  std::string wait;  // "futex_wait_queue"; "": unknown
  std::vector<std::string> stack;
};

// Empty: the process is gone, or /proc is unreadable.
std::vector<KernelThread> kernel_threads(int pid);
// Returns the most informative state: stopped, otherwise waiting for a file, computing, or the calls that all threads
// wait in. "" if there are no threads.
std::string kernel_words(const std::vector<KernelThread>& threads);
std::string kernel_text(const std::vector<KernelThread>& threads);  // all threads: a line each, then the stack

}  // namespace prun
