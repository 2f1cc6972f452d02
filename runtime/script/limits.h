// What the script child may use: processor time, memory, system calls.
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
  // Reports `text` with the line that `L` is at (as far as it is known) and ends the process.
  void (*stop)(lua_State* L, const char* text) = nullptr;
  // Memory was refused at the line that `L` is at. Lua may collect garbage and ask again, or raise an error.
  void (*refused)(lua_State* L) = nullptr;
};

// A state whose memory is counted. One a process.
lua_State* new_counted_state();

// The limits hold from here on, in this process and those that it starts.
void limit_script(const Limits& limits);

// What a script that needs more memory is told.
const char* memory_limit_text();

// From here on the process can only read files, write to open descriptors and ask for memory and time. Without
// libseccomp this does nothing: scripts have no name that reaches the system either way.
void forbid_system_calls();

}  // namespace prun
