#include "data/data_files.h"

#include <fmt/format.h>
#include <glob.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/text.h"
#include "script/host.h"
#include "script/lua_json.h"

namespace prun {
namespace {

using nlohmann::json;

// Returns the file with the name most similar to `path` in the searched folders, or "".
std::string nearest_file(const std::string& path, const std::vector<std::string>& places) {
  std::filesystem::path wanted(path);
  std::vector<std::string> names;
  for (const std::string& place : places) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(place).parent_path(), error))
      names.push_back((wanted.parent_path() / entry.path().filename()).string());
  }
  return nearest_word(path, names);
}

// Returns the files that match a pattern, in the order of their names; a name without wildcards matches itself.
std::vector<std::string> matching(const std::string& pattern) {
  struct stat status = {};
  if (stat(pattern.c_str(), &status) == 0) return {pattern};
  std::vector<std::string> found;
  glob_t matches = {};
  if (glob(pattern.c_str(), 0, nullptr, &matches) == 0)
    for (size_t i = 0; i < matches.gl_pathc; ++i) found.emplace_back(matches.gl_pathv[i]);
  globfree(&matches);
  return found;
}

int nothing(lua_State* L, const std::string& why) {
  lua_pushnil(L);
  push_text(L, why);
  return 2;
}

std::string first_bytes(const std::string& path, int64_t most) {
  std::ifstream file(path, std::ios::binary);
  std::string begin(most, '\0');
  file.read(begin.data(), most);
  if (file.bad() || !file.is_open()) throw usage_error(strerror(errno));
  begin.resize(file.gcount());
  return begin;
}

// Returns the candidates for a relative name: in the current folder, next to the plan, in the installation's plans.
std::vector<std::string> places_of(const std::string& path, const Host& host) {
  std::vector<std::string> places = {path};
  if (path.starts_with("/")) return places;
  places.push_back(host.plan_folder + "/" + path);
  places.push_back(host.options.lua_dir + "/../plans/" + path);
  return places;
}

std::string absolute_path(const std::string& name, const Host& host) {
  return name.starts_with("/") ? name : host.working_folder + "/" + name;
}

int not_found(lua_State* L, const char* what, const std::string& path, const std::vector<std::string>& places) {
  struct stat status = {};
  for (const std::string& place : places) {
    if (path.empty() || stat(place.c_str(), &status) != 0) continue;
    if (S_ISDIR(status.st_mode))
      return nothing(L, fmt::format("'{}' is a folder: name files in it, such as '{}/*.bin'", path, path));
    return nothing(L, fmt::format("'{}' is {}", path, S_ISREG(status.st_mode) ? "a file: name its folder" : "no file"));
  }
  const std::string near = nearest_file(path, places);
  std::string hint = " in the current folder, beside the plan or in prun's plans";
  if (!near.empty()) hint = did_you_mean(path, {near});
  return nothing(L, fmt::format("no {} '{}'{}", what, path, hint));
}

}  // namespace

// data_files(pattern) -> list of { path (absolute), shown (for messages), bytes }, sorted by name; or nil and the
// reason. The first candidate with matches is used.
int data_files(lua_State* L, Host& host) {
  const std::string path = text_argument(L, 1, "data_files");
  const std::vector<std::string> places = places_of(path, host);
  for (const std::string& place : places) {
    json files = json::array();
    for (const std::string& name : matching(place)) {
      struct stat status = {};
      if (stat(name.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
      const std::string absolute = absolute_path(name, host);
      files.push_back({{"path", absolute},
                       {"shown", shown_path(absolute, host.working_folder)},
                       {"bytes", static_cast<int64_t>(status.st_size)}});
    }
    if (files.empty()) continue;
    push_json(L, files);
    return 1;
  }
  return not_found(L, "file", path, places);
}

// Returns the base that the configuration of peft's adapters names; nullopt: the folder has none.
std::optional<std::string> base_of_adapters(const std::string& folder) {
  std::ifstream file(folder + "/adapter_config.json");
  if (!file) return std::nullopt;
  const json config = json::parse(file, nullptr, false);
  const json base = config.is_object() ? config.value("base_model_name_or_path", json()) : json();
  return base.is_string() ? base.get<std::string>() : "";
}

// folder_info(path) -> the absolute path, and for adapters of peft the base that they name; or nil and the reason.
int folder_info(lua_State* L, Host& host) {
  const std::string path = text_argument(L, 1, "folder_info");
  const std::vector<std::string> places = places_of(path, host);
  for (const std::string& place : places) {
    struct stat status = {};
    if (stat(place.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) continue;
    push_text(L, absolute_path(place, host));
    const std::optional<std::string> base = base_of_adapters(place);
    if (base) push_text(L, *base);
    return base ? 2 : 1;
  }
  return not_found(L, "folder", path, places);
}

// token_header(path) -> { element, tokens, skip_bytes }; false if there is no header, and the kind of a file that has
// no ids, such as "text"; or nil and the reason.
int token_header(lua_State* L, Host&) {
  const std::string path = text_argument(L, 1, "token_header");
  try {
    const std::string begin = first_bytes(path, kTokenHeaderBytes);
    const std::optional<TokenHeader> header = parse_token_header(begin);
    if (const std::string_view kind = kind_without_ids(begin); !header && !kind.empty()) {
      lua_pushboolean(L, 0);
      push_text(L, std::string(kind));
      return 2;
    }
    if (header) {
      push_json(L, {{"element", std::string(element_name(header->element))},
                    {"tokens", header->tokens},
                    {"skip_bytes", kTokenHeaderBytes}});
    } else {
      lua_pushboolean(L, 0);
    }
    return 1;
  } catch (const Error& error) {
    return nothing(L, error.message());
  }
}

// array_header(path) -> { element, numpy, width, shape, skip_bytes }; or nil and the reason.
int array_header(lua_State* L, Host&) {
  const std::string path = text_argument(L, 1, "array_header");
  try {
    const ArrayHeader header = parse_array_header(first_bytes(path, kArrayHeaderMost));
    push_json(L, {{"element", std::string(element_name(header.element))},
                  {"numpy", std::string(numpy_name(header.element))},
                  {"width", element_width(header.element)},
                  {"shape", header.shape},
                  {"skip_bytes", header.skip_bytes}});
    return 1;
  } catch (const Error& error) {
    return nothing(L, error.message());
  }
}

}  // namespace prun
