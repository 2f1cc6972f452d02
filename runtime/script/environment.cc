// The allow-list of globals. Missing on purpose: io, os, debug, package, coroutine, load and its family, dofile,
// collectgarbage, string.dump, xpcall. pairs and next iterate in sorted order, because a plan must be identical in
// every run.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/text.h"
#include "script/host.h"
#include "script/lua_json.h"
#include "script/other_languages.h"

namespace prun {
namespace {

constexpr const char* kPlanEnvironment = "prun.environment.plan";
constexpr const char* kOurEnvironment = "prun.environment.ours";

constexpr const char* kAllowed[] = {
    "assert", "error",  "getmetatable", "ipairs", "math",     "pcall",    "rawequal", "rawget", "rawlen",
    "rawset", "select", "string",       "table",  "tonumber", "tostring", "type",     "utf8",   "_VERSION",
};
constexpr const char* kForbidden[] = {"io",     "os",         "debug",    "package", "coroutine",      "load",
                                      "dofile", "loadstring", "loadfile", "xpcall",  "collectgarbage", "_G"};

// A key in the order of pairs: numbers, then texts, then booleans.
struct Key {
  int kind = 0;
  lua_Number number = 0;
  std::string_view text;
  bool operator<(const Key& other) const {
    if (kind != other.kind) return kind < other.kind;
    return kind == LUA_TSTRING ? text < other.text : number < other.number;
  }
};

Key key_at(lua_State* L, int index) {
  switch (lua_type(L, index)) {
    case LUA_TNUMBER:
      return {0, lua_tonumber(L, index), {}};
    case LUA_TSTRING: {
      size_t size = 0;
      const char* text = lua_tolstring(L, index, &size);
      return {LUA_TSTRING, 0, {text, size}};
    }
    case LUA_TBOOLEAN:
      return {LUA_TSTRING + 1, static_cast<lua_Number>(lua_toboolean(L, index)), {}};
    default:
      throw plan_error(fmt::format("the keys of this table are {}s, which have no fixed order: keep an array instead",
                                   luaL_typename(L, index)));
  }
}

std::vector<Key> sorted_keys(lua_State* L, int table) {
  std::vector<Key> keys;
  lua_pushnil(L);
  while (lua_next(L, table)) {
    keys.push_back(key_at(L, -2));  // a text remains alive as the table's key
    lua_pop(L, 1);
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

void push_key(lua_State* L, const Key& key) {
  if (key.kind == LUA_TSTRING) {
    lua_pushlstring(L, key.text.data(), key.text.size());
  } else if (key.kind != 0) {
    lua_pushboolean(L, key.number != 0);
  } else {
    lua_Integer whole = 0;
    if (lua_numbertointeger(key.number, &whole) && static_cast<lua_Number>(whole) == key.number) {
      lua_pushinteger(L, whole);
    } else {
      lua_pushnumber(L, key.number);
    }
  }
}

void require_table(lua_State* L, Host& host, const char* function) {
  if (lua_type(L, 1) != LUA_TTABLE)
    host.fail_here(L, fmt::format("{} needs a table, not {}", function, luaL_typename(L, 1)));
}

// next(table, key): the key after `key` in sorted order.
int next_in_order(lua_State* L, Host& host) {
  require_table(L, host, "next");
  lua_settop(L, 2);
  std::vector<Key> keys = sorted_keys(L, 1);
  auto position = keys.begin();
  if (!lua_isnil(L, 2)) position = std::upper_bound(keys.begin(), keys.end(), key_at(L, 2));
  if (position == keys.end()) {
    lua_pushnil(L);
    return 1;
  }
  push_key(L, *position);
  lua_pushvalue(L, -1);
  lua_rawget(L, 1);
  return 2;
}

// The iterator of pairs. Upvalues: the keys, the position. Keys removed since then are skipped.
int step_pairs(lua_State* L) {
  lua_Integer position = lua_tointeger(L, lua_upvalueindex(2));
  for (;;) {
    ++position;
    if (lua_rawgeti(L, lua_upvalueindex(1), position) == LUA_TNIL) return 1;
    lua_pushvalue(L, -1);
    if (lua_rawget(L, 1) != LUA_TNIL) break;
    lua_pop(L, 2);
  }
  lua_pushinteger(L, position);
  lua_replace(L, lua_upvalueindex(2));
  return 2;
}

int pairs_in_order(lua_State* L, Host& host) {
  require_table(L, host, "pairs");
  std::vector<Key> keys = sorted_keys(L, 1);
  lua_createtable(L, keys.size(), 0);
  lua_Integer position = 0;
  for (const Key& key : keys) {
    push_key(L, key);
    lua_rawseti(L, -2, ++position);
  }
  lua_pushinteger(L, 0);
  lua_pushcclosure(L, step_pairs, 2);
  lua_pushvalue(L, 1);
  return 2;
}

int set_metatable(lua_State* L, Host& host) {
  require_table(L, host, "setmetatable");
  if (lua_type(L, 2) != LUA_TTABLE && lua_type(L, 2) != LUA_TNIL)
    host.fail_here(L, fmt::format("setmetatable needs a table or nil, not {}", luaL_typename(L, 2)));
  if (luaL_getmetafield(L, 1, "__metatable") != LUA_TNIL) host.fail_here(L, "this metatable is protected");
  if (lua_type(L, 2) == LUA_TTABLE) {
    lua_pushliteral(L, "__gc");
    if (lua_rawget(L, 2) != LUA_TNIL) host.fail_here(L, "a plan cannot have finalizers (__gc)");
    lua_pop(L, 1);
  }
  lua_settop(L, 2);
  lua_setmetatable(L, 1);
  return 1;
}

void print_printable(std::string_view text) {
  const std::string shown = printable(text);
  std::fwrite(shown.data(), 1, shown.size(), stderr);
}

// No C++ object may live here, because tostring may run the script's own __tostring.
int print_to_stderr(lua_State* L) {
  const int count = lua_gettop(L);
  const bool prints = host_of(L).options.prints;
  for (int i = 1; i <= count; ++i) {
    size_t size = 0;
    const char* text = luaL_tolstring(L, i, &size);
    if (prints) print_printable(std::string_view(text, size));
    if (prints) std::fputc(i < count ? '\t' : '\n', stderr);
    lua_pop(L, 1);
  }
  if (count == 0 && prints) std::fputc('\n', stderr);
  return 0;
}

// Collects the names of locals and upvalues of the running function, because a misspelt local reads as a global.
void add_local_names(lua_State* L, std::vector<std::string>& names) {
  lua_Debug frame;
  if (!lua_getstack(L, 1, &frame)) return;
  for (int i = 1; const char* name = lua_getlocal(L, &frame, i); ++i) {
    if (name[0] != '(') names.emplace_back(name);
    lua_pop(L, 1);
  }
  lua_getinfo(L, "f", &frame);
  for (int i = 1; const char* name = lua_getupvalue(L, -1, i); ++i) {
    names.emplace_back(name);
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
}

// Returns the field of math, string or table of that name, as " (in Lua: math.max)", or "".
std::string library_function(lua_State* L, const std::string& name) {
  for (const char* library : {"math", "string", "table"}) {
    lua_getglobal(L, library);
    const bool found = lua_getfield(L, -1, name.c_str()) != LUA_TNIL;
    lua_pop(L, 2);
    if (found) return fmt::format(" (in Lua: {}.{})", library, name);
  }
  return "";
}

// Returns " (here: prun.zero3)" for a function of prun that is called without its family, or "".
std::string function_of_prun(lua_State* L, const std::string& name) {
  std::string hint;
  const int top = lua_gettop(L);
  lua_pushcfunction(L, require_module);
  lua_pushliteral(L, "prun.bare_names");
  if (lua_pcall(L, 1, 1, 0) == LUA_OK) {
    push_text(L, name);
    if (lua_pcall(L, 1, 1, 0) == LUA_OK && lua_type(L, -1) == LUA_TSTRING) hint = lua_tostring(L, -1);
  }
  lua_settop(L, top);
  return hint;
}

int unknown_global(lua_State* L, Host& host) {
  if (lua_type(L, 2) != LUA_TSTRING) host.fail_here(L, "global names are texts");
  std::string name = text_argument(L, 2, "global");
  for (const char* forbidden : kForbidden)
    if (name == forbidden)
      host.fail_here(L, name + " is not available in a plan: a plan describes a run, it does not act on the machine");
  if (name == "prun") host.fail_here(L, "'prun' is not loaded; begin the file with: local prun = require \"prun\"");
  std::vector<std::string> known;
  for (const Key& key : sorted_keys(L, 1)) known.emplace_back(key.text);
  add_local_names(L, known);
  const std::string near = nearest_word(name, known), of_prun = function_of_prun(L, name);
  std::string hint = name_in_lua(name);
  if (hint.empty() && of_prun.starts_with(" (here")) hint = of_prun;
  if (hint.empty()) hint = library_function(L, name);
  if (hint.empty() && !near.empty()) hint = did_you_mean(name, {near});
  host.fail_here(L, fmt::format("unknown name '{}'{}", name, hint.empty() ? of_prun : hint));
}

void make_environment(lua_State* L, const char* key, bool ours) {
  lua_newtable(L);
  for (const char* name : kAllowed) {
    lua_getglobal(L, name);
    lua_setfield(L, -2, name);
  }
  const luaL_Reg own[] = {
      {"next", thunk<next_in_order>}, {"pairs", thunk<pairs_in_order>},       {"print", print_to_stderr},
      {"require", require_module},    {"setmetatable", thunk<set_metatable>}, {nullptr, nullptr}};
  luaL_setfuncs(L, own, 0);
  if (ours) {
    push_host_table(L);
    lua_setfield(L, -2, "host");
  }
  lua_newtable(L);
  lua_pushcfunction(L, thunk<unknown_global>);
  lua_setfield(L, -2, "__index");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_setmetatable(L, -2);
  lua_setfield(L, LUA_REGISTRYINDEX, key);
}

}  // namespace

void open_libraries(lua_State* L) {
  luaL_requiref(L, "_G", luaopen_base, 1);
  luaL_requiref(L, LUA_STRLIBNAME, luaopen_string, 1);
  luaL_requiref(L, LUA_TABLIBNAME, luaopen_table, 1);
  luaL_requiref(L, LUA_MATHLIBNAME, luaopen_math, 1);
  luaL_requiref(L, LUA_UTF8LIBNAME, luaopen_utf8, 1);
  lua_settop(L, 0);
  lua_getglobal(L, "string");
  lua_pushnil(L);
  lua_setfield(L, -2, "dump");
  lua_getglobal(L, "math");  // Lua seeds it from the clock
  lua_getfield(L, -1, "randomseed");
  lua_pushinteger(L, 0);
  lua_call(L, 1, 0);
  lua_settop(L, 0);
}

void open_environments(lua_State* L) {
  luaL_newmetatable(L, kMapMark);
  lua_settop(L, 0);
  make_environment(L, kPlanEnvironment, false);
  make_environment(L, kOurEnvironment, true);
}

void take_options(lua_State* L) {
  push_environment(L, Layer::core);
  lua_getfield(L, -1, "host");
  set_host_options(L);
  lua_pop(L, 2);
}

void push_environment(lua_State* L, Layer layer) {
  lua_getfield(L, LUA_REGISTRYINDEX, layer == Layer::user ? kPlanEnvironment : kOurEnvironment);
}

}  // namespace prun
