// Limits of the script child: processor time, memory, system calls.
//
// Surprising fact: nothing is unwound when a limit is reached. The child writes its reply and ends at once, so no
// pcall, finalizer or handler of the script can swallow the limit.
#pragma once
#include <cstdint>
#include <lua.hpp>

namespace prun {

struct Limits {
  double cpu_seconds = 10;
  int64_t memory_bytes = 0;
  // Reports `text` with the line that `L` executes (if known) and ends the process.
  void (*stop)(lua_State* L, const char* text) = nullptr;
  // Notes that memory was refused at the current line of `L`. Lua may collect garbage and retry, or raise an error.
  void (*refused)(lua_State* L) = nullptr;
};

// Creates a state whose memory is counted. A process has one.
lua_State* new_counted_state();

// Applies the limits to this process and its future children.
void limit_script(const Limits& limits);

// The error of a script that needs more memory.
const char* memory_limit_text();

// Restricts the process to reading files, writing to open descriptors, and requesting memory and time. Does nothing
// without libseccomp: scripts have no function that reaches the system either way.
void forbid_system_calls();

}  // namespace prun
