// The names that a script sees: an allow-list over Lua's libraries, with our own pairs, print, require, setmetatable.
#pragma once
#include <lua.hpp>

#include "script/host.h"

namespace prun {

void open_libraries(lua_State* L);
// Makes the two environments: the plan's, and that of lua/prun (the same plus `host`).
void open_environments(lua_State* L);
// The `host` of the environment is that of the host's options.
void take_options(lua_State* L);
// Pushes the environment of a layer.
void push_environment(lua_State* L, Layer layer);

}  // namespace prun
