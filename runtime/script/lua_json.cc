// One generic conversion: only the modules in lua/prun define the shape of a plan. It uses raw access only, so no
// metamethod runs while C++ objects are live.
#include "script/lua_json.h"

#include <fmt/format.h>

#include "base/error.h"

namespace prun {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;  // a deeper table is a cycle

json value_to_json(lua_State* L, int index, int depth);

bool marked_as_map(lua_State* L, int table) {
  if (!lua_getmetatable(L, table)) return false;
  luaL_getmetatable(L, kMapMark);
  bool marked = lua_rawequal(L, -1, -2);
  lua_pop(L, 2);
  return marked;
}

json table_to_json(lua_State* L, int table, int depth) {
  if (depth > kMaxDepth) throw plan_error("a table that contains itself cannot be part of a plan");
  luaL_checkstack(L, 8, nullptr);
  lua_Unsigned length = lua_rawlen(L, table);
  json::object_t fields;  // another map type would be copied with its whole subtree
  bool has_other_keys = false;
  lua_pushnil(L);
  while (lua_next(L, table)) {
    if (lua_type(L, -2) == LUA_TSTRING) {
      size_t size = 0;
      const char* key = lua_tolstring(L, -2, &size);
      fields.emplace(std::string(key, size), value_to_json(L, lua_gettop(L), depth + 1));
    } else if (!lua_isinteger(L, -2) || lua_tointeger(L, -2) < 1 ||
               lua_tointeger(L, -2) > static_cast<lua_Integer>(length)) {
      has_other_keys = true;
    }
    lua_pop(L, 1);
  }
  bool is_map = !fields.empty() || marked_as_map(L, table);
  if (has_other_keys || (is_map && length > 0))
    throw plan_error("a table with holes, or with both positions and names, cannot be part of a plan");
  if (is_map) return json(std::move(fields));
  json array = json::array();
  for (lua_Unsigned i = 1; i <= length; ++i) {
    lua_rawgeti(L, table, static_cast<lua_Integer>(i));
    array.push_back(value_to_json(L, lua_gettop(L), depth + 1));
    lua_pop(L, 1);
  }
  return array;
}

json value_to_json(lua_State* L, int index, int depth) {
  switch (lua_type(L, index)) {
    case LUA_TNIL:
      return nullptr;
    case LUA_TBOOLEAN:
      return lua_toboolean(L, index) != 0;
    case LUA_TNUMBER:
      if (lua_isinteger(L, index)) return static_cast<int64_t>(lua_tointeger(L, index));
      return static_cast<double>(lua_tonumber(L, index));
    case LUA_TSTRING: {
      size_t size = 0;
      const char* text = lua_tolstring(L, index, &size);
      return std::string(text, size);
    }
    case LUA_TTABLE:
      return table_to_json(L, index, depth);
    default:
      throw plan_error(fmt::format("a {} cannot be part of a plan", luaL_typename(L, index)));
  }
}

}  // namespace

json to_json(lua_State* L, int index) { return value_to_json(L, lua_absindex(L, index), 0); }

void push_json(lua_State* L, const json& value) {
  luaL_checkstack(L, 4, nullptr);
  if (value.is_object() || value.is_array()) {
    lua_createtable(L, 0, 0);
    lua_Integer position = 0;
    for (const auto& [key, element] : value.items()) {
      push_json(L, element);
      if (value.is_object()) {
        lua_setfield(L, -2, key.c_str());
      } else {
        lua_rawseti(L, -2, ++position);
      }
    }
  } else if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    lua_pushlstring(L, text.data(), text.size());
  } else if (value.is_boolean()) {
    lua_pushboolean(L, value.get<bool>());
  } else if (value.is_number_integer()) {
    lua_pushinteger(L, value.get<int64_t>());
  } else if (value.is_number()) {
    lua_pushnumber(L, value.get<double>());
  } else {
    lua_pushnil(L);
  }
}

}  // namespace prun
