// The limits of the script child. Time is RLIMIT_CPU. Its first signal requests a clean stop at the next Lua
// instruction, which has a line. The second one, a second later, stops from the handler, because a C function does not
// return (string.find with an exponential pattern, for example).
#include "script/limits.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#ifdef PRUN_SECCOMP
#include <fcntl.h>
#include <seccomp.h>
#endif

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PRUN_SANITIZED 1
#endif

namespace prun {
namespace {

// One set per process, because the signal handler and the allocator need global access.
Limits g_limits{.memory_bytes = INT64_MAX};
lua_State* g_state = nullptr;
int64_t g_used = 0;
size_t g_refused_size = 0;  // size of the last refused request; 0 after a granted one
volatile sig_atomic_t g_time_signals = 0;
// Bytes in use that start garbage collection, because most scripts end long before; 0 = it has started.
int64_t g_collect_from = 0;
char g_time_text[128], g_memory_text[128];

void on_instruction(lua_State* L, lua_Debug*) { g_limits.stop(L, g_time_text); }

// Runs as a hook, because an allocator must not call the collector.
void begin_to_collect(lua_State* L, lua_Debug*) {
  lua_sethook(L, nullptr, 0, 0);
  if (g_time_signals != 0) g_limits.stop(L, g_time_text);
  lua_gc(L, LUA_GCRESTART);
}

// Lua answers a refusal with a full collection and retries; only the second refusal is final.
void* allocate(void*, void* block, size_t old_size, size_t new_size) {
  if (block == nullptr) old_size = 0;
  if (new_size == 0) {
    std::free(block);
    g_used -= static_cast<int64_t>(old_size);
    return nullptr;
  }
  int64_t used = g_used + static_cast<int64_t>(new_size) - static_cast<int64_t>(old_size);
  void* result = nullptr;
  if (new_size <= old_size || used <= g_limits.memory_bytes) result = std::realloc(block, new_size);
  if (result == nullptr) {
    if (g_state == nullptr) return nullptr;
    if (g_refused_size == new_size) g_limits.stop(g_state, g_memory_text);
    g_refused_size = new_size;
    g_limits.refused(g_state);
    return nullptr;
  }
  if (new_size > old_size) g_refused_size = 0;
  g_used = used;
  if (g_collect_from != 0 && used > g_collect_from && g_time_signals == 0 && g_state != nullptr) {
    g_collect_from = 0;
    lua_sethook(g_state, begin_to_collect, LUA_MASKCOUNT, 1);
  }
  return result;
}

void on_time_signal(int) {
  if (g_time_signals != 0) g_limits.stop(g_state, g_time_text);
  g_time_signals = 1;
  lua_sethook(g_state, on_instruction, LUA_MASKCOUNT | LUA_MASKCALL | LUA_MASKRET, 1);
}

void limit_address_space() {
#ifndef PRUN_SANITIZED  // a sanitizer's shadow memory reserves terabytes
  long pages = 0;
  if (FILE* file = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(file, "%ld", &pages) != 1) pages = 0;
    std::fclose(file);
  }
  auto now = static_cast<rlim_t>(pages) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
  rlim_t most = now + 3 * static_cast<rlim_t>(g_limits.memory_bytes) + (rlim_t{256} << 20);
  rlimit limit{most, most};
  setrlimit(RLIMIT_AS, &limit);
#endif
}

void limit_time() {
  struct sigaction action = {};
  action.sa_handler = on_time_signal;
  sigaction(SIGXCPU, &action, nullptr);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGXCPU);
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
  // The limit counts processor time since the fork, in whole seconds.
  auto seconds = static_cast<rlim_t>(std::ceil(g_limits.cpu_seconds));
  rlimit limit{seconds, seconds + 3};
  setrlimit(RLIMIT_CPU, &limit);
}

}  // namespace

lua_State* new_counted_state() {
  g_state = lua_newstate(allocate, nullptr);
  if (g_state != nullptr) lua_gc(g_state, LUA_GCSTOP);
  return g_state;
}

void limit_script(const Limits& limits) {
  g_limits = limits;
  std::snprintf(g_time_text, sizeof g_time_text, "the script has run for %g s of processor time, which is its limit",
                limits.cpu_seconds);
  std::snprintf(g_memory_text, sizeof g_memory_text, "the script needs more than %g MiB of memory, which is its limit",
                static_cast<double>(limits.memory_bytes) / (1 << 20));
  rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  limit_address_space();
  g_collect_from = limits.memory_bytes / 4;
  limit_time();
}

const char* memory_limit_text() { return g_memory_text; }

#if defined(PRUN_SECCOMP) && !defined(PRUN_SANITIZED)  // sanitizers probe memory with system calls of their own
void forbid_system_calls() {
  scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
  if (filter == nullptr) return;
  const int allowed[] = {
      SCMP_SYS(read),          SCMP_SYS(write),          SCMP_SYS(writev),
      SCMP_SYS(close),         SCMP_SYS(fstat),          SCMP_SYS(newfstatat),
      SCMP_SYS(stat),          SCMP_SYS(lseek),          SCMP_SYS(mmap),
      SCMP_SYS(munmap),        SCMP_SYS(mremap),         SCMP_SYS(madvise),
      SCMP_SYS(brk),           SCMP_SYS(exit_group),     SCMP_SYS(exit),
      SCMP_SYS(rt_sigreturn),  SCMP_SYS(rt_sigprocmask), SCMP_SYS(getrandom),
      SCMP_SYS(clock_gettime), SCMP_SYS(futex),          SCMP_SYS(getpid),
      SCMP_SYS(gettid),        SCMP_SYS(sched_yield),    SCMP_SYS(statx),
      SCMP_SYS(sigaltstack),   SCMP_SYS(readv),          SCMP_SYS(getdents64),
      SCMP_SYS(fcntl),
  };
  for (int call : allowed) seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 0);
  // Files may be opened read-only.
  seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(openat), 1,
                   SCMP_A2(SCMP_CMP_MASKED_EQ, O_ACCMODE | O_CREAT | O_TRUNC, O_RDONLY));
  seccomp_load(filter);
  seccomp_release(filter);
}
#else
void forbid_system_calls() {}
#endif

}  // namespace prun
