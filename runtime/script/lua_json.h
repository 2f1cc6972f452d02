// Conversion between Lua and JSON. A Lua table is a map if it has a text key or carries the `map` mark, and otherwise
// an array (so an empty table is an empty array).
#pragma once
#include <lua.hpp>
#include <nlohmann/json.hpp>

namespace prun {

// The registry key of the metatable that marks a table as a map even if it is empty.
inline constexpr const char* kMapMark = "prun.map";

// Returns the value at `index`. Throws plan_error for values that JSON cannot hold: functions, cycles, mixed keys.
nlohmann::json to_json(lua_State* L, int index);

// Pushes one value; objects have no map mark.
void push_json(lua_State* L, const nlohmann::json& value);

}  // namespace prun
