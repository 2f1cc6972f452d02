// The child's side: evaluate the script under the limits and send one reply.
#pragma once
#include <lua.hpp>
#include <string>

#include "script/host.h"
#include "script/script.h"

namespace prun {

// First byte of a reply. 'P': eight bytes with the size of the modules,
// the modules as CBOR and the plan as CBOR follow. 'H': the help lines as CBOR. 'E': code, line and file as
// "code line file\n", then the message.
inline constexpr char kReplyPlan = 'P', kReplyHelp = 'H', kReplyError = 'E';

// A script, or a server of scripts, before it has run. One a process.
struct ScriptState {
  explicit ScriptState(const ScriptOptions& given);
  ScriptState(const ScriptState&) = delete;
  ScriptState& operator=(const ScriptState&) = delete;

  ScriptOptions options;
  Host host;
  lua_State* L = nullptr;  // null: no memory
};

// Loads all words. False: something is wrong with them, which a script is told that requires them.
bool load_words(ScriptState& state);

// Never returns. `plan_file` is where the plan lies, `pipe` takes the reply.
[[noreturn]] void run_script_child(ScriptState& state, const std::string& plan_file, int pipe);

}  // namespace prun
