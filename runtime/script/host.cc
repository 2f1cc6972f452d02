// Finds the site of an error or op by the layers on Lua's stack instead of by counting levels, so that splitting or
// wrapping a module of ours moves no message.
#include "script/host.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>

namespace prun {

Host& host_of(lua_State* L) { return **static_cast<Host**>(lua_getextraspace(L)); }
void attach_host(lua_State* L, Host& host) { *static_cast<Host**>(lua_getextraspace(L)) = &host; }

// No C++ object may live here, because the function may raise.
int call_word(lua_State* L) {
  lua_pushvalue(L, lua_upvalueindex(1));
  lua_insert(L, 1);
  lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
  return lua_gettop(L);
}

namespace {

// Returns the site that the wrapper running in this frame was created with, if any.
Site blamed(lua_State* L, lua_Debug& frame) {
  lua_getinfo(L, "f", &frame);
  Site site;
  if (lua_tocfunction(L, -1) == call_word && lua_getupvalue(L, -1, 2) != nullptr) {
    if (lua_istable(L, -1)) {
      lua_rawgeti(L, -1, 1);
      lua_rawgeti(L, -2, 2);
      site = {lua_tostring(L, -2), static_cast<int>(lua_tointeger(L, -1))};
      lua_pop(L, 2);
    }
    lua_pop(L, 1);
  }
  lua_pop(L, 1);
  return site;
}

}  // namespace

std::pair<const std::string, Source>* Host::source_of(const char* chunk_name) {
  auto& known = chunks_[chunk_name];
  // Lua may have reused the memory of a name.
  if (known == nullptr || known->first != chunk_name) {
    const auto found = sources.find(chunk_name);
    known = found == sources.end() ? nullptr : &*found;
  }
  return known;
}

// Called for each op. getinfo with "l" counts lines, so it is called for the selected frame only.
void Host::push_site(lua_State* L, Layer most) {
  lua_Debug frame;
  for (int level = 0; lua_getstack(L, level, &frame); ++level) {
    lua_getinfo(L, "S", &frame);
    if (frame.source[0] != '@') continue;
    auto* source = source_of(frame.source + 1);
    if (source == nullptr || source->second.layer > most) continue;
    lua_getinfo(L, "l", &frame);
    if (frame.currentline < 0) continue;
    const auto [reference, added] = source->second.sites.emplace(frame.currentline, LUA_NOREF);
    if (!added) {
      lua_rawgeti(L, LUA_REGISTRYINDEX, reference->second);
      return;
    }
    prun::push_site(L, source->first, frame.currentline);
    lua_pushvalue(L, -1);
    reference->second = luaL_ref(L, LUA_REGISTRYINDEX);
    return;
  }
  prun::push_site(L, "", 0);
}

Site Host::site(lua_State* L, Layer most) const {
  lua_Debug frame;
  for (int level = 0; lua_getstack(L, level, &frame); ++level) {
    lua_getinfo(L, "Sl", &frame);
    if (frame.what[0] == 'C' && most == Layer::user) {
      Site site = blamed(L, frame);
      if (site.known()) return site;
    }
    if (frame.source[0] != '@' || frame.currentline < 0) continue;
    auto source = sources.find(frame.source + 1);
    if (source != sources.end() && source->second.layer <= most) return {source->first, frame.currentline};
  }
  return {};
}

void Host::fail_here(lua_State* L, const std::string& message, Exit code) const {
  Site user = site(L, Layer::user), nearest = site(L, Layer::library);
  if (!user.known()) throw Error(code, message, nearest);
  if (nearest == user) throw Error(code, message, user);
  throw Error(code, fmt::format("{} (in {})", message, nearest.text()), user);
}

namespace {

// Returns a chunk's name as Lua prints it in messages (luaO_chunkid): a long one loses its beginning.
std::string printed_name(const std::string& name) {
  constexpr size_t kMost = LUA_IDSIZE - 1;
  if (name.size() <= kMost) return name;
  return "..." + name.substr(name.size() - (kMost - 3));
}

// Parses "name:12: message" of a known source.
std::optional<Error> parse_position(const Host& host, std::string_view text) {
  for (const auto& [name, source] : host.sources) {
    std::string start = printed_name(name) + ":";
    if (!text.starts_with(start)) continue;
    size_t end = start.size();
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
    if (end == start.size() || !text.substr(end).starts_with(": ")) continue;
    int line = std::stoi(std::string(text.substr(start.size(), end - start.size())));
    return Error(Exit::plan, std::string(text.substr(end + 2)), Site{name, line});
  }
  return std::nullopt;
}

}  // namespace

Error Host::error_of(std::string_view text) const {
  if (text == last.what()) return last;
  if (auto error = parse_position(*this, text)) return *error;
  return Error(Exit::plan, std::string(text));
}

std::string text_argument(lua_State* L, int index, const char* function) {
  size_t size = 0;
  const char* text = lua_type(L, index) == LUA_TSTRING ? lua_tolstring(L, index, &size) : nullptr;
  if (text == nullptr)
    throw plan_error(fmt::format("{}: argument {} must be text, not {}", function, index, luaL_typename(L, index)));
  return std::string(text, size);
}

void push_site(lua_State* L, std::string_view file, int line) {
  lua_createtable(L, 2, 0);
  push_text(L, file);
  lua_rawseti(L, -2, 1);
  lua_pushinteger(L, line);
  lua_rawseti(L, -2, 2);
}

void push_text(lua_State* L, std::string_view text) { lua_pushlstring(L, text.data(), text.size()); }

int line_of_word(const Host& host, const std::string& file, int line, const std::string& word) {
  auto source = host.sources.find(file);
  if (source == host.sources.end() || word.empty()) return line;
  const std::string& text = source->second.text;
  auto in_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  size_t position = 0;
  for (int i = 1; i < line; ++i) {
    position = text.find('\n', position);
    if (position == std::string::npos) return line;
    ++position;
  }
  size_t begin = position;
  while ((position = text.find(word, position)) != std::string::npos) {
    size_t after = position + word.size();
    bool whole = (position == 0 || !in_word(text[position - 1])) && (after == text.size() || !in_word(text[after]));
    while (after < text.size() && text[after] == ' ') ++after;
    if (whole && after < text.size() && text[after] == '=' && text[after + 1] != '=')
      return line + static_cast<int>(std::count(&text[begin], &text[position], '\n'));
    position += word.size();
  }
  return line;
}

}  // namespace prun
