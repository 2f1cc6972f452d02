#include "watch/kernel_stacks.h"

#include <fmt/format.h>
#include <sys/syscall.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace prun {
namespace {

namespace fs = std::filesystem;

struct Call {
  long number;
  const char* name;
  bool has_file;  // its first argument is a file descriptor
};

constexpr Call kCalls[] = {{SYS_read, "read", true},
                           {SYS_pread64, "pread64", true},
                           {SYS_readv, "readv", true},
                           {SYS_preadv, "preadv", true},
                           {SYS_write, "write", true},
                           {SYS_pwrite64, "pwrite64", true},
                           {SYS_writev, "writev", true},
                           {SYS_pwritev, "pwritev", true},
                           {SYS_fsync, "fsync", true},
                           {SYS_fdatasync, "fdatasync", true},
                           {SYS_close, "close", true},
                           {SYS_flock, "flock", true},
                           {SYS_ftruncate, "ftruncate", true},
                           {SYS_fallocate, "fallocate", true},
                           {SYS_getdents64, "getdents64", true},
                           {SYS_ioctl, "ioctl", true},
                           {SYS_openat, "openat", false},
                           {SYS_renameat2, "renameat2", false},
                           {SYS_unlinkat, "unlinkat", false},
                           {SYS_mkdirat, "mkdirat", false},
                           {SYS_statx, "statx", false},
                           {SYS_munmap, "munmap", false},
                           {SYS_futex, "futex", false},
                           {SYS_ppoll, "ppoll", false},
                           {SYS_epoll_pwait, "epoll_pwait", false},
                           {SYS_recvfrom, "recvfrom", false},
                           {SYS_recvmsg, "recvmsg", false},
                           {SYS_sendmsg, "sendmsg", false},
                           {SYS_clock_nanosleep, "clock_nanosleep", false},
                           {SYS_nanosleep, "nanosleep", false},
#ifdef SYS_poll
                           {SYS_poll, "poll", false},
                           {SYS_epoll_wait, "epoll_wait", false},
                           {SYS_rename, "rename", false},
                           {SYS_open, "open", false},
#endif
                           {SYS_sched_yield, "sched_yield", false}};

// Calls that wait for a disk or a file server; the others also block in normal operation.
constexpr const char* kOfFiles[] = {"openat", "open", "renameat2", "rename", "unlinkat", "mkdirat", "statx"};

std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Parses "0 0x3 0x7f2d.. .."; ignores "running" and unreadable files.
void read_call(const fs::path& process, const fs::path& task, KernelThread& thread) {
  std::istringstream words(first_line(task / "syscall"));
  long number = -1;
  std::string argument;
  if (!(words >> number >> argument) || number < 0) return;
  const auto known =
      std::find_if(std::begin(kCalls), std::end(kCalls), [&](const Call& call) { return call.number == number; });
  thread.call = known == std::end(kCalls) ? fmt::format("system call {}", number) : known->name;
  if (known == std::end(kCalls) || !known->has_file || !argument.starts_with("0x")) return;
  unsigned long file = 0;
  std::from_chars(argument.data() + 2, argument.data() + argument.size(), file, 16);
  std::error_code error;
  thread.file = fs::read_symlink(process / "fd" / std::to_string(file), error).string();
}

bool waits_for_file(const KernelThread& thread) {
  if (thread.state == 'R') return false;
  const bool by_name =
      std::any_of(std::begin(kOfFiles), std::end(kOfFiles), [&](const char* name) { return thread.call == name; });
  return by_name || (thread.file.starts_with("/") && !thread.file.starts_with("/dev/"));
}

std::string where(const KernelThread& thread) {
  std::string text = thread.call.empty() ? "" : " in " + thread.call;
  if (!thread.file.empty()) text += " of " + thread.file;
  if (!thread.wait.empty()) text += fmt::format(" ({})", thread.wait);
  return text;
}

}  // namespace

std::vector<KernelThread> kernel_threads(int pid) {
  std::vector<KernelThread> threads;
  const fs::path process = fmt::format("/proc/{}", pid);
  std::error_code error;
  fs::directory_iterator tasks(process / "task", error);
  for (; !error && tasks != fs::directory_iterator(); tasks.increment(error)) {
    const fs::path& task = tasks->path();
    const std::string stat = first_line(task / "stat");
    const size_t name_ends = stat.rfind(") ");  // the name may contain any character
    if (name_ends == std::string::npos) continue;
    KernelThread thread;
    thread.id = std::atoi(task.filename().c_str());
    thread.name = first_line(task / "comm");
    thread.state = stat[name_ends + 2];
    if (const std::string wait = first_line(task / "wchan"); wait != "0") thread.wait = wait;
    read_call(process, task, thread);
    std::ifstream stack(task / "stack");
    for (std::string line; std::getline(stack, line);) thread.stack.push_back(line);
    threads.push_back(std::move(thread));
  }
  return threads;
}

std::string kernel_words(const std::vector<KernelThread>& threads) {
  const auto find = [&](const auto& is) -> const KernelThread* {
    const auto found = std::find_if(threads.begin(), threads.end(), is);
    return found == threads.end() ? nullptr : &*found;
  };
  if (find([](const KernelThread& t) { return t.state == 'T'; })) return "its threads are stopped (state T)";
  if (find([](const KernelThread& t) { return t.state == 't'; })) return "a debugger holds its threads (state t)";
  if (const KernelThread* t = find([](const KernelThread& each) { return each.state == 'D'; }))
    return fmt::format("its thread '{}' waits for a disk or a file system (state D){}", t->name, where(*t));
  if (const KernelThread* t = find(waits_for_file))
    return fmt::format("its thread '{}' waits{} (state {})", t->name, where(*t), t->state);
  if (const KernelThread* t = find([](const KernelThread& each) { return each.state == 'R'; }))
    return fmt::format("its thread '{}' is computing (state R)", t->name);
  std::set<std::string> calls;
  for (const KernelThread& t : threads) calls.insert(t.call.empty() ? t.wait : t.call);
  calls.erase("");
  if (calls.empty()) return threads.empty() ? "" : "its threads wait (state S)";
  std::string list;
  for (const std::string& call : calls) list += (list.empty() ? "" : ", ") + call;
  return fmt::format("its threads wait in {}", list);
}

std::string kernel_text(const std::vector<KernelThread>& threads) {
  std::string text;
  for (const KernelThread& t : threads) {
    text += fmt::format("  thread {} '{}' state {}{}\n", t.id, t.name, t.state, where(t));
    for (const std::string& line : t.stack) text += fmt::format("      {}\n", line);
  }
  return text;
}

}  // namespace prun
