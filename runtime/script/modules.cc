// Module names are words joined by dots, so no name can leave the two folders: "prun" and "prun.*" are ours, all others
// are in the plan's folder.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>

#include "script/host.h"
#include "script/other_languages.h"

namespace prun {
namespace {

constexpr const char* kLoaded = "prun.loaded";
constexpr std::string_view kPythonPackages[] = {"torch",     "torchtitan", "numpy",    "transformers",
                                                "datasets",  "deepspeed",  "megatron", "accelerate",
                                                "lightning", "jax",        "wandb"};

bool is_file(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

std::string read_file(const std::string& path, const std::string& name) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file) throw usage_error(fmt::format("{}: cannot be read: {}", name, strerror(errno)));
  return text.str();
}

// A module's file, and its name in messages.
struct Module {
  std::string file, name;
  Layer layer = Layer::user;
};

bool valid_module_name(const std::string& name) {
  bool word = false;
  for (char c : name) {
    if (c == '.' && !word) return false;
    if (c != '.' && c != '_' && c != '-' && !std::isalnum(static_cast<unsigned char>(c))) return false;
    word = c != '.';
  }
  return word;
}

Module find_module(lua_State* L, Host& host, const std::string& name) {
  if (!valid_module_name(name))
    host.fail_here(L,
                   fmt::format("'{}' is not a module name; a name is words joined by dots, as in \"prun.nn\"", name));
  bool ours = name == "prun" || name.starts_with("prun.");
  std::string path = name;
  for (char& c : path)
    if (c == '.') c = '/';
  std::string folder = ours ? host.options.lua_dir + "/" : host.plan_folder + "/";
  std::string shown = ours ? "lua/" : host.typed_folder;
  for (const char* ending : {".lua", "/init.lua"}) {
    if (!is_file(folder + path + ending)) continue;
    Module module{folder + path + ending, shown + path + ending, Layer::user};
    if (ours) {
      bool written_in_the_language = path.starts_with("prun/models/") || path.starts_with("prun/strategies/");
      module.layer = written_in_the_language ? Layer::library : Layer::core;
    }
    return module;
  }
  const bool python =
      std::find(std::begin(kPythonPackages), std::end(kPythonPackages), name) != std::end(kPythonPackages);
  host.fail_here(L, fmt::format("no module '{}' (looked for {}{}.lua{})", name, shown, path,
                                python ? "; a plan loads Lua files, not packages of Python" : ""));
}

std::string_view line_of_text(std::string_view text, int line) {
  for (; line > 1 && !text.empty(); --line) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  return text.substr(0, text.find('\n'));
}

// Adds Lua's way to an error of the parser. A plan's file that is in another language is rejected as such.
Error explained(const Error& error, const Host& host, const std::string& name, const std::string& text) {
  const std::string kind = name == host.options.plan_path ? foreign_kind(name, text) : "";
  if (!kind.empty() && text.find("require") == std::string::npos) return not_lua(name, kind);
  const std::string_view line = error.site() ? line_of_text(text, error.site()->line) : "";
  return Error(error.code(), error.message() + syntax_in_lua(error.message(), line), error.site());
}

// Pushes the module's previous result, and true; or its chunk, and false.
int find_or_load(lua_State* L, Host& host) {
  std::string name = text_argument(L, 1, "require");
  luaL_getsubtable(L, LUA_REGISTRYINDEX, kLoaded);
  if (lua_getfield(L, -1, name.c_str()) == LUA_TBOOLEAN)
    host.fail_here(L, fmt::format("module '{}' requires itself, by way of others", name));
  if (!lua_isnil(L, -1)) {
    lua_pushboolean(L, 1);
    return 2;
  }
  Module module = find_module(L, host, name);
  lua_pushboolean(L, 0);
  lua_setfield(L, -3, name.c_str());
  load_chunk(L, host, module.file, module.name, module.layer);
  lua_pushboolean(L, 0);
  return 2;
}

int keep_loaded(lua_State* L, Host& host) {
  std::string name = text_argument(L, 1, "require");
  if (lua_isnil(L, 2)) host.fail_here(L, fmt::format("module '{}' returns nothing", name));
  luaL_getsubtable(L, LUA_REGISTRYINDEX, kLoaded);
  lua_pushvalue(L, 2);
  lua_setfield(L, -2, name.c_str());
  lua_settop(L, 2);
  return 1;
}

}  // namespace

void load_chunk(lua_State* L, Host& host, const std::string& file, const std::string& name, Layer layer) {
  Source& source = host.sources[name];
  source = {read_file(file, name), layer};
  std::string& text = source.text;
  if (text.starts_with(LUA_SIGNATURE))
    throw plan_error(fmt::format("{} is compiled Lua; a plan must be Lua text", name));
  if (text.starts_with("#!")) text.replace(0, 2, "--");
  if (luaL_loadbufferx(L, text.data(), text.size(), ("@" + name).c_str(), "t") != LUA_OK) {
    size_t size = 0;
    const char* message = lua_tolstring(L, -1, &size);
    Error error = host.error_of({message, size});
    lua_pop(L, 1);
    throw layer == Layer::user ? explained(error, host, name, source.text) : error;
  }
  push_environment(L, layer);
  lua_setupvalue(L, -2, 1);
}

// The chunk runs from here, where no C++ object lives, because it may raise.
int require_module(lua_State* L) {
  lua_settop(L, 1);
  lua_pushcfunction(L, thunk<find_or_load>);
  lua_pushvalue(L, 1);
  lua_call(L, 1, 2);
  bool loaded = lua_toboolean(L, -1) != 0;
  lua_pop(L, 1);
  if (loaded) return 1;
  lua_pushvalue(L, 1);
  lua_call(L, 1, 1);
  lua_pushcfunction(L, thunk<keep_loaded>);
  lua_insert(L, -2);
  lua_pushvalue(L, 1);
  lua_insert(L, -2);
  lua_call(L, 2, 1);
  return 1;
}

}  // namespace prun
