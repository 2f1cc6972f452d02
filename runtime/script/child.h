// The child's side: evaluate the script under the limits and send one reply.
#pragma once
#include <lua.hpp>
#include <string>

#include "script/script.h"

namespace prun {

// First byte of a reply. 'P': eight bytes with the size of the modules,
// the modules as CBOR and the plan as CBOR follow. 'H': the help lines as CBOR. 'E': code, line and file as
// "code line file\n", then the message.
inline constexpr char kReplyPlan = 'P', kReplyHelp = 'H', kReplyError = 'E';

// What does not depend on a plan. Null without memory for it.
lua_State* new_script_state();

// Never returns. `L`: of new_script_state; `plan_file` is where the plan lies, `pipe` takes the reply.
[[noreturn]] void run_script_child(lua_State* L, const ScriptOptions& options, const std::string& plan_file, int pipe);

}  // namespace prun
