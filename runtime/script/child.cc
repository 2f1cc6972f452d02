// One script, one process, one reply. The process exits afterwards, so nothing here is cleaned up.
#include "script/child.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "script/host.h"
#include "script/limits.h"
#include "script/lua_json.h"

namespace prun {
namespace {

int g_pipe = -1;

void write_all(const char* data, size_t size) {
  while (size > 0) {
    ssize_t written = write(g_pipe, data, size);
    if (written <= 0) _exit(1);  // the launcher has exited
    data += written;
    size -= written;
  }
}

[[noreturn]] void reply(char kind, std::string_view bytes) {
  write_all(&kind, 1);
  write_all(bytes.data(), bytes.size());
  std::fflush(stderr);
  _exit(0);
}

[[noreturn]] void reply_error(const Error& error) {
  Site site = error.site().value_or(Site{});
  int code = static_cast<int>(error.code());
  reply(kReplyError, fmt::format("{} {} {}\n{}", code, site.line, site.file.str(), error.message()));
}

// Returns the line of the plan that Lua executes, otherwise the line in lua/prun. Called from hooks, the allocator and
// signal handlers, so it must not allocate.
struct Line {
  const char* file = "";
  int line = 0;
};
Line line_of(lua_State* L) {
  lua_Debug frame;
  Line innermost;
  for (int level = 0; lua_getstack(L, level, &frame); ++level) {
    lua_getinfo(L, "Sl", &frame);
    if (frame.source[0] != '@' || frame.currentline <= 0) continue;
    if (innermost.line == 0) innermost = {frame.source + 1, frame.currentline};
    if (!std::string_view(frame.source).starts_with("@lua/prun/")) return {frame.source + 1, frame.currentline};
  }
  return innermost;
}

void stop_at_limit(lua_State* L, const char* text) {
  static char message[PATH_MAX + 512];
  Line at = line_of(L);
  int size = std::snprintf(message, sizeof message, "%c%d %d %s\n%s", kReplyError, static_cast<int>(Exit::script_limit),
                           at.line, at.file, text);
  write_all(message, size);
  _exit(0);
}

// Line of the last refused allocation, because a C function's buffer then raises an error without a line.
Line g_refused;
void note_refusal(lua_State* L) { g_refused = line_of(L); }

// Adds the user's line to an error that Lua raised in a module of ours, or in a function without a Lua caller:
// ipairs(nil) fails when the loop requests the first element. A text that the plan raised without a line, error("...",
// 0), remains without one.
int name_the_users_line(lua_State* L, Host& host) {
  Site user = host.site(L, Layer::user);
  if (lua_type(L, 1) != LUA_TSTRING) {
    host.last = Error(Exit::plan, fmt::format("error with a {} as its value", luaL_typename(L, 1)), user);
  } else {
    Error error = host.error_of(text_argument(L, 1, "error"));
    bool ours = error.what() == std::string_view(host.last.what());
    auto source = error.site() ? host.sources.find(error.site()->file.str()) : host.sources.end();
    lua_Debug frame;
    const bool raised = lua_getstack(L, 1, &frame) != 0 && lua_getinfo(L, "n", &frame) != 0 && frame.name != nullptr &&
                        std::string_view(frame.name) == "error";
    if (!error.site() && !raised && user.known())
      error = Error(error.code(), error.message(), user);
    else if (!ours && source != host.sources.end() && source->second.layer != Layer::user)
      error = Error(error.code(), fmt::format("{} (in {})", error.message(), error.site()->text()), user);
    host.last = error;
  }
  lua_pushstring(L, host.last.what());
  return 1;
}

[[noreturn]] void reply_cbor(char kind, const nlohmann::json& value) {
  std::vector<uint8_t> bytes = nlohmann::json::to_cbor(value);
  reply(kind, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

// Returns the modules from the plan's folder, by their path relative to it.
nlohmann::json modules_of(const Host& host) {
  nlohmann::json modules = nlohmann::json::object();
  for (const auto& [name, source] : host.sources)
    if (source.layer == Layer::user && name != host.options.plan_path)
      modules[name.substr(host.typed_folder.size())] = source.text;
  return modules;
}

void reply_plan(const Host& host, const nlohmann::json& plan) {
  const std::vector<uint8_t> modules = nlohmann::json::to_cbor(modules_of(host)), text = nlohmann::json::to_cbor(plan);
  const uint64_t size = modules.size();
  std::string bytes(reinterpret_cast<const char*>(&size), sizeof size);
  bytes.append(modules.begin(), modules.end());
  bytes.append(text.begin(), text.end());
  reply(kReplyPlan, bytes);
}

void answer_help(const Host& host, bool is_plan) {
  nlohmann::json arguments = nlohmann::json::array();
  for (const PlanArgument& one : host.arguments)
    arguments.push_back(
        {{"name", one.name}, {"kind", one.kind}, {"initial", one.initial}, {"help", one.help}, {"tune", one.tune}});
  reply_cbor(kReplyHelp, {{"arguments", std::move(arguments)}, {"is_plan", is_plan}});
}

// --help needs only the arguments, and a script that declares some is a plan.
void arguments_known(Host& host) {
  if (host.options.help) answer_help(host, true);
}

void finish(lua_State* L, Host& host) {
  if (!host.options.help && !host.options.settings.empty() && !host.arguments_declared)
    throw usage_error(fmt::format("{} has no arguments (prun.args), so --set {}=... changes nothing",
                                  host.options.plan_path, host.options.settings.begin()->first));
  luaL_getmetatable(L, kResultMark);
  bool is_result = lua_getmetatable(L, 1) && lua_rawequal(L, -1, -2);
  if (host.options.help) answer_help(host, is_result);
  if (!is_result)
    throw plan_error(fmt::format("{} returns {}; a plan ends with: return prun.plan {{ ... }}", host.options.plan_path,
                                 lua_isnil(L, 1) ? "nothing" : std::string("a ") + luaL_typename(L, 1)));
  lua_settop(L, 1);
  reply_plan(host, to_json(L, 1));
}

void run(lua_State* L, Host& host) {
  limit_script({host.options.cpu_seconds, host.options.memory_bytes, stop_at_limit, note_refusal});
  take_options(L);
  forbid_system_calls();
  lua_pushcfunction(L, thunk<name_the_users_line>);
  load_chunk(L, host, host.plan_file, host.options.plan_path, Layer::user);
  int status = lua_pcall(L, 0, 1, 1);
  if (status == LUA_ERRMEM) throw Error(Exit::script_limit, memory_limit_text(), Site{g_refused.file, g_refused.line});
  if (status != LUA_OK) {
    size_t size = 0;
    const char* text = lua_tolstring(L, -1, &size);
    throw host.error_of(text == nullptr ? "unknown error" : std::string_view(text, size));
  }
  lua_remove(L, 1);
  finish(L, host);
}

}  // namespace

ScriptState::ScriptState(const ScriptOptions& given) : options(given), host(options), L(new_counted_state()) {
  if (L == nullptr) return;
  open_libraries(L);
  attach_host(L, host);
  open_environments(L);
}

bool load_words(ScriptState& state) {
  lua_pushcfunction(state.L, require_module);
  lua_pushliteral(state.L, "prun.all_words");
  const bool loaded = lua_pcall(state.L, 1, 0, 0) == LUA_OK;
  lua_settop(state.L, 0);
  return loaded;
}

void run_script_child(ScriptState& state, const std::string& plan_file, int pipe) {
  g_pipe = dup2(pipe, 3);  // retains only standard error and the pipe of the launcher's descriptors
  close_range(4, ~0U, 0);
  close(0);
  dup2(2, 1);
  signal(SIGINT, SIG_IGN);  // the launcher handles interrupts
  try {
    Host& host = state.host;
    if (state.L == nullptr) throw Error(Exit::script_limit, "no memory for the script");
    host.arguments_known = arguments_known;
    host.plan_file = plan_file;
    size_t slash = plan_file.rfind('/');
    host.plan_folder = slash == std::string::npos ? "." : plan_file.substr(0, slash);
    slash = host.options.plan_path.rfind('/');
    host.typed_folder = slash == std::string::npos ? "" : host.options.plan_path.substr(0, slash + 1);
    char folder[PATH_MAX];
    host.working_folder = getcwd(folder, sizeof folder) == nullptr ? "." : folder;
    run(state.L, host);
  } catch (const Error& error) {
    reply_error(error);
  } catch (const std::bad_alloc&) {
    reply_error(Error(Exit::script_limit, "the script needs more memory than it may have"));
  } catch (const std::exception& error) {
    reply_error(plan_error(error.what()));
  }
  _exit(1);
}

}  // namespace prun
