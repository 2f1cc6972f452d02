// The table `host` for the modules in lua/prun: the op table, source locations, suggestions, files, encoding. It
// contains no policy: Lua defines the meaning of a plan.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>

#include "base/text.h"
#include "ir/op_def.h"
#include "script/host.h"
#include "script/lua_json.h"

namespace prun {
namespace {

using nlohmann::json;

Attr attr_of(const std::string& name, const json& value) {
  if (value.is_boolean()) return static_cast<int64_t>(value.get<bool>());
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number()) {  // Lua's division yields a float; a whole number still counts as an integer
    const double number = value.get<double>();
    const bool whole = number == std::trunc(number) && std::abs(number) <= 9007199254740992.0;
    return whole ? Attr(static_cast<int64_t>(number)) : Attr(number);
  }
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) throw plan_error(fmt::format("attribute '{}' must be a number, a text or a list", name));
  bool whole = true;
  for (const json& element : value) {
    if (!element.is_number()) throw plan_error(fmt::format("attribute '{}' must be a list of numbers", name));
    whole = whole && element.is_number_integer();
  }
  if (whole) return value.get<std::vector<int64_t>>();
  return value.get<std::vector<double>>();
}

TensorType type_of(const json& value) {
  std::string name = value.at("dtype").get<std::string>();
  std::optional<Dtype> dtype = parse_dtype(name);
  if (!dtype)
    throw plan_error(fmt::format("no dtype '{}'{}", name, did_you_mean(name, {"f32", "bf16", "f64", "i64", "i32"})));
  return {*dtype, value.at("shape").get<Shape>()};
}

// infer(op, {types}, {attributes}) -> {types}. A shape rule's error gets the line of the call.
int infer(lua_State* L, Host& host) {
  std::string name = text_argument(L, 1, "infer");
  const OpDef* op = find_op(name);
  if (op == nullptr || op->infer == nullptr) host.fail_here(L, fmt::format("no op '{}' in a model", name));
  std::vector<TensorType> inputs, outputs;
  for (const json& type : to_json(L, 2)) inputs.push_back(type_of(type));
  Attrs attrs;
  json given = to_json(L, 3);
  for (const auto& [key, value] : given.items()) attrs.set(key, attr_of(key, value));
  try {
    outputs = op->infer(inputs, attrs);
  } catch (const Error& error) {
    host.fail_here(L, error.message(), error.code());
  }
  json result = json::array();
  for (const TensorType& type : outputs) result.push_back({{"dtype", dtype_name(type.dtype)}, {"shape", type.shape}});
  push_json(L, result);
  return 1;
}

Site site_argument(lua_State* L, int index) {
  json value = to_json(L, index);
  return {value.at(0).get<std::string>(), value.at(1).get<int>()};
}

// site() -> {file, line} of the innermost frame outside the core; site("user"): outside lua/prun.
int site(lua_State* L, Host& host) {
  if (lua_isnoneornil(L, 1)) {
    host.push_site(L, Layer::library);
    return 1;
  }
  const Site user = host.site(L, Layer::user);
  push_site(L, user.file.str(), user.line);
  return 1;
}

// site_of_word({file, line}, word) -> {file, line} of `word =` at or after that line.
int site_of_word(lua_State* L, Host& host) {
  Site place = site_argument(L, 1);
  place.line = line_of_word(host, place.file.str(), place.line, text_argument(L, 2, "site_of_word"));
  push_site(L, place.file.str(), place.line);
  return 1;
}

// fail(message, site or nil, "usage" or nil): raises an error at that site, or at the user's line.
int fail(lua_State* L, Host& host) {
  const std::string message = printable(text_argument(L, 1, "fail"));  // an Error's text ends at a zero byte
  Exit code = lua_isnoneornil(L, 3) ? Exit::plan : Exit::usage;
  if (lua_type(L, 2) != LUA_TTABLE) host.fail_here(L, message, code);
  throw Error(code, message, site_argument(L, 2));
}

// remark(message, site): prints a remark about the plan, unless an earlier run of the script has.
int remark(lua_State* L, Host& host) {
  const std::string message = text_argument(L, 1, "remark");
  const std::string shown = printable(fmt::format("prun: {}: {}\n", site_argument(L, 2).text(), message));
  if (host.options.prints) std::fwrite(shown.data(), 1, shown.size(), stderr);
  return 0;
}

// did_you_mean(word, {words}) -> " (did you mean 'x'?)" or " (one of: ...)".
int suggest(lua_State* L, Host&) {
  std::vector<std::string> words = to_json(L, 2).get<std::vector<std::string>>();
  push_text(L, did_you_mean(text_argument(L, 1, "did_you_mean"), words));
  return 1;
}

// encode(value) -> bytes, equal for equal values.
int encode(lua_State* L, Host&) {
  std::vector<uint8_t> bytes = json::to_cbor(to_json(L, 1));
  lua_pushlstring(L, reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return 1;
}

// json(value) -> text.
int json_text(lua_State* L, Host&) {
  push_text(L, to_json(L, 1).dump(-1, ' ', false, json::error_handler_t::replace));
  return 1;
}

// map(table) -> the table, marked as a map even if it is empty.
int map(lua_State* L, Host&) {
  lua_settop(L, 1);
  luaL_setmetatable(L, kMapMark);
  return 1;
}

// result(table) -> the table, marked as the result of a plan.
int result(lua_State* L, Host&) {
  lua_settop(L, 1);
  luaL_newmetatable(L, kResultMark);
  lua_setmetatable(L, 1);
  return 1;
}

// word(function, site or nil) -> the function wrapped for plans. The wrapper is a C function, because `return prun.plan
// { ... }` is a tail call, which to a Lua function would erase the frame whose line every message needs. `site`:
// location of errors inside that no user frame explains, for example the line of prun.models.gpt { ... }.
int word(lua_State* L, Host&) {
  lua_settop(L, 2);
  lua_pushcclosure(L, call_word, 2);
  return 1;
}

// index_functions(handler): from now on handler(function, name) is called for a field of any function, because Lua's
// own message about it does not name the function.
int index_functions(lua_State* L, Host&) {
  lua_settop(L, 1);
  lua_pushvalue(L, 1);
  lua_newtable(L);
  lua_pushvalue(L, 1);
  lua_setfield(L, -2, "__index");
  lua_pushboolean(L, 0);
  lua_setfield(L, -2, "__metatable");
  lua_setmetatable(L, -2);  // all functions share one
  return 0;
}

// declare_arguments({{ name, kind, initial, help, tune }}): declares the plan's arguments; `--help` prints them.
int declare_arguments(lua_State* L, Host& host) {
  host.arguments_declared = true;
  for (const json& one : to_json(L, 1))
    host.arguments.push_back({one.at("name"), one.at("kind"), one.at("initial"), one.at("help"), one.at("tune")});
  host.arguments_known(host);
  return 0;
}

// Adds the names of the selected ops to the host table, as a list.
template <class Which>
void push_ops(lua_State* L, const char* field, Which which) {
  lua_newtable(L);
  for (const OpDef* op : all_ops()) {
    if (!which(*op)) continue;
    lua_pushlstring(L, op->name.data(), op->name.size());
    lua_rawseti(L, -2, static_cast<lua_Integer>(lua_rawlen(L, -2)) + 1);
  }
  lua_setfield(L, -2, field);
}

}  // namespace

void push_host_table(lua_State* L) {
  static const luaL_Reg functions[] = {{"infer", thunk<infer>},
                                       {"site", thunk<site>},
                                       {"site_of_word", thunk<site_of_word>},
                                       {"fail", thunk<fail>},
                                       {"remark", thunk<remark>},
                                       {"did_you_mean", thunk<suggest>},
                                       {"data_files", thunk<data_files>},
                                       {"folder_info", thunk<folder_info>},
                                       {"token_header", thunk<token_header>},
                                       {"array_header", thunk<array_header>},
                                       {"encode", thunk<encode>},
                                       {"json", thunk<json_text>},
                                       {"map", thunk<map>},
                                       {"word", thunk<word>},
                                       {"result", thunk<result>},
                                       {"index_functions", thunk<index_functions>},
                                       {"declare_arguments", thunk<declare_arguments>},
                                       {nullptr, nullptr}};
  luaL_newlib(L, functions);
  lua_getglobal(L, "next");  // Lua's own next, unordered, for counting
  lua_setfield(L, -2, "next");
  push_ops(L, "unary_ops", [](const OpDef& op) { return op.word; });
  push_ops(L, "optimizers", [](const OpDef& op) {
    return op.optimizer != nullptr && !op.optimizer->casts && !op.optimizer->programmed && !op.optimizer->prepares;
  });
}

namespace {

json others_of(const ScriptOptions& options) {
  json others = json::array();
  for (const PlanSizes& sizes : options.more_sizes)
    others.push_back({{"axes", sizes.axes}, {"micro", sizes.microbatches}, {"batch", sizes.batch}});
  return others;
}

}  // namespace

void set_host_options(lua_State* L) {
  const ScriptOptions& options = host_of(L).options;
  lua_pushinteger(L, options.world);
  lua_setfield(L, -2, "world");
  lua_pushboolean(L, options.help);
  lua_setfield(L, -2, "help");
  lua_pushboolean(L, options.outline);
  lua_setfield(L, -2, "outline");
  lua_pushboolean(L, options.reads_data);
  lua_setfield(L, -2, "reads_data");
  for (const auto& [name, value] :
       {std::pair("plan_path", &options.plan_path), {"base", &options.base}, {"base_was", &options.base_was}}) {
    push_text(L, *value);
    lua_setfield(L, -2, name);
  }
  if (options.sizes) {
    const PlanSizes& sizes = *options.sizes;
    push_json(L, {{"axes", sizes.axes},
                  {"micro", sizes.microbatches},
                  {"batch", sizes.batch},
                  {"alone", sizes.alone},
                  {"tensor_ranks", sizes.tensor_ranks},
                  {"others", others_of(options)}});
  } else {
    lua_pushboolean(L, 0);
  }
  lua_setfield(L, -2, "shrink");
  lua_newtable(L);
  for (const auto& [name, value] : options.settings) {
    push_text(L, value);
    lua_setfield(L, -2, name.c_str());
  }
  lua_setfield(L, -2, "settings");
}

}  // namespace prun
