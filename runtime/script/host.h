// State of the script child besides Lua's own: loaded sources, the last error, the declared arguments.
#pragma once
#include <lua.hpp>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "script/script.h"

namespace prun {

// Owner of a chunk of code. Errors are located at the user's line; recorded ops at the innermost line outside the core.
enum class Layer { user, library, core };

struct Source {
  std::string text;
  Layer layer = Layer::user;
  std::map<int, int> sites;  // by line: the registry's reference to the table { file, line }
};

struct Host {
  explicit Host(const ScriptOptions& given) : options(given) {}

  const ScriptOptions& options;
  std::string plan_file;                  // path of the plan
  std::string plan_folder;                // folder of plan_file
  std::string typed_folder;               // folder of the path as typed, with '/', or ""
  std::string working_folder;             // absolute
  std::map<std::string, Source> sources;  // by name in messages
  std::vector<PlanArgument> arguments;    // declared by prun.args
  bool arguments_declared = false;
  void (*arguments_known)(Host&) = nullptr;  // called after the declaration; under --help it exits
  // The last Error that passed through Lua as text, which would lose its code and site.
  Error last{Exit::plan, ""};

  // Returns the site of the innermost frame of a chunk whose layer is at most `most`; unknown if there is none.
  Site site(lua_State* L, Layer most) const;
  // Pushes an op's site { file, line }: one shared table per site. Sites of wrappers do not count.
  void push_site(lua_State* L, Layer most);
  // Throws plan_error at the user's line, and names the line in lua/prun that detected the mistake if it is another
  // one.
  [[noreturn]] void fail_here(lua_State* L, const std::string& message, Exit code = Exit::plan) const;
  // Converts the text of an uncaught Lua error to an Error.
  Error error_of(std::string_view text) const;

 private:
  // Finds a chunk's source by the address of Lua's copy of its name, which lives as long as the chunk.
  std::pair<const std::string, Source>* source_of(const char* chunk_name);
  std::unordered_map<const char*, std::pair<const std::string, Source>*> chunks_;
};

Host& host_of(lua_State* L);
void attach_host(lua_State* L, Host& host);

// Returns text argument `index`; throws an error that names `function` if it is no text.
std::string text_argument(lua_State* L, int index, const char* function);
void push_text(lua_State* L, std::string_view text);
void push_site(lua_State* L, std::string_view file, int line);
// Returns the line of `file`, at or after `line`, where `word` is assigned as a field of a table; otherwise `line`.
int line_of_word(const Host& host, const std::string& file, int line, const std::string& word);

// The function behind host.word (bindings.cc): calls upvalue 1; upvalue 2 is the site of its errors, or nil.
int call_word(lua_State* L);

// Wraps a C++ function as a Lua function: exceptions end inside, and lua_error jumps when no C++ object is live.
using LuaBody = int (*)(lua_State*, Host&);
template <LuaBody body>
int thunk(lua_State* L) {
  Host& host = host_of(L);
  bool failed = true;
  int results = 0;
  try {
    results = body(L, host);
    failed = false;
  } catch (const Error& error) {
    host.last = error;
  } catch (const std::bad_alloc&) {
    host.last = Error(Exit::script_limit, "the script needs more memory than it may have");
  } catch (const std::exception& error) {
    host.last = Error(Exit::plan, error.what());
  }
  if (!failed) return results;
  lua_pushstring(L, host.last.what());
  return lua_error(L);
}

// The registry key of the metatable that marks the result of a plan.
inline constexpr const char* kResultMark = "prun.result";

// Pushes the table `host` for lua/prun (bindings.cc).
void push_host_table(lua_State* L);
// Sets the fields of the table on top of the stack that depend on the script's options.
void set_host_options(lua_State* L);

// A script's access to files and folders: their paths, sizes and headers (data_files.cc).
int data_files(lua_State* L, Host& host);
int folder_info(lua_State* L, Host& host);
int token_header(lua_State* L, Host& host);
int array_header(lua_State* L, Host& host);

// Defines the globals of a script: an allow-list over Lua's libraries, with our own pairs, print, require,
// setmetatable.
void open_libraries(lua_State* L);
// Creates the two environments: the plan's, and that of lua/prun (the same plus `host`).
void open_environments(lua_State* L);
// Updates the environment's `host` from the host's options.
void take_options(lua_State* L);
// Pushes the environment of a layer.
void push_environment(lua_State* L, Layer layer);

// Pushes the compiled chunk of a file, bound to its layer's environment. Throws Error with the line of a syntax error.
void load_chunk(lua_State* L, Host& host, const std::string& file, const std::string& name, Layer layer);

// require(name), as a Lua function.
int require_module(lua_State* L);

}  // namespace prun
