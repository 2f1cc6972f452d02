// Values between Lua and JSON. Lua has one kind of table; here a table is a map when it has a text key or carries the
// `map` mark, and otherwise an array (so an empty table is an empty array).
#pragma once
#include <lua.hpp>
#include <nlohmann/json.hpp>

namespace prun {

// The registry key of the metatable that marks a table as a map even when it is empty.
inline constexpr const char* kMapMark = "prun.map";

// The value at `index`. Throws plan_error on what JSON cannot hold: functions, cycles, mixed keys.
nlohmann::json to_json(lua_State* L, int index);

// Pushes one value; objects come without the map mark.
void push_json(lua_State* L, const nlohmann::json& value);

}  // namespace prun
