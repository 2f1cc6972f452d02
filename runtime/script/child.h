// The child's side: evaluates the script under the limits and sends one reply.
#pragma once
#include <lua.hpp>
#include <string>

#include "script/host.h"
#include "script/script.h"

namespace prun {

// First byte of a reply, and its content:
//
//   'P'   size of the modules (8 bytes), modules as CBOR, plan as CBOR
//   'H'   help lines as CBOR
//   'E'   "code line file\n", then the message
inline constexpr char kReplyPlan = 'P', kReplyHelp = 'H', kReplyError = 'E';

// A script, or a server of scripts, before it has run. A process has one.
struct ScriptState {
  explicit ScriptState(const ScriptOptions& given);
  ScriptState(const ScriptState&) = delete;
  ScriptState& operator=(const ScriptState&) = delete;

  ScriptOptions options;
  Host host;
  lua_State* L = nullptr;  // null = out of memory
};

// Loads all modules of lua/prun. Returns false if one is broken; a script that requires it gets the error.
bool load_words(ScriptState& state);

// Runs the script and exits. `plan_file`: path of the plan; `pipe`: receives the reply.
[[noreturn]] void run_script_child(ScriptState& state, const std::string& plan_file, int pipe);

}  // namespace prun
