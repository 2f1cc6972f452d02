// Reading Lua files: text only, from lua/ and the plan's folder, each under the name that messages use.
#pragma once
#include <lua.hpp>
#include <string>

#include "script/host.h"

namespace prun {

// Pushes the compiled chunk of a file, bound to its layer's environment. Throws Error with the line of a syntax error.
void load_chunk(lua_State* L, Host& host, const std::string& file, const std::string& name, Layer layer);

// require(name), as a Lua function.
int require_module(lua_State* L);

}  // namespace prun
