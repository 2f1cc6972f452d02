#include "script/other_languages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

namespace prun {
namespace {

constexpr std::pair<std::string_view, const char*> kSuffixes[] = {
    {".py", "a Python script"}, {".ipynb", "a notebook"}, {".sh", "a shell script"}, {".json", "JSON"},
    {".yaml", "YAML"},          {".yml", "YAML"},         {".toml", "TOML"},         {".safetensors", "weights"},
    {".pt", "weights"},         {".txt", "a text"},       {".md", "a text"},         {".npy", "an array"},
};

struct Operator {
  std::string_view theirs;
  const char* in_lua;
};
// An operator precedes those that it begins with.
constexpr Operator kOperators[] = {
    {"!==", "a ~= b"},
    {"!=", "a ~= b"},
    {"!", "not a"},
    {"===", "a == b"},
    {"&&", "a and b"},
    {"||", "a or b"},
    {"++", "a = a + 1"},
    {"+=", "a = a + b"},
    {"-=", "a = a - b"},
    {"**", "a ^ b"},
    {"*=", "a = a * b"},
    {"//=", "a = a // b"},
    {"/*", "--[[ .. ]]"},
    {"/=", "a = a / b"},
    {"%=", "a = a % b"},
    {"..=", "a = a .. b"},
    {"//", "-- a comment"},
    {"#", "-- a comment"},
    {"?", "a and b or c"},
    {"=>", "function(a) return b end"},
    {"->", "function(a) return b end"},
};

struct Word {
  std::string_view theirs;
  const char* in_lua;
};
// First words of a statement.
constexpr Word kStatements[] = {
    {"let", "local a = b"},
    {"const", "local a = b"},
    {"var", "local a = b"},
    {"auto", "local a = b"},
    {"int", "local a = b"},
    {"float", "local a = b"},
    {"elif", "elseif a then"},
    {"def", "function f(a) .. end"},
    {"import", "local a = require \"a\""},
    {"from", "local a = require \"a\""},
};
constexpr Word kNames[] = {
    {"null", "nil"},
    {"None", "nil"},
    {"NULL", "nil"},
    {"nullptr", "nil"},
    {"undefined", "nil"},
    {"True", "true"},
    {"TRUE", "true"},
    {"False", "false"},
    {"FALSE", "false"},
    {"len", "#list"},
    {"range", "for i = 1, n do"},
    {"enumerate", "for i, x in ipairs(list) do"},
    {"str", "tostring(a)"},
    {"float", "tonumber(a)"},
    {"int", "math.floor(a)"},
    {"printf", "print(string.format(..))"},
};

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

std::string hint(const char* in_lua) { return fmt::format(" (in Lua: {})", in_lua); }

// Returns the token of "unexpected symbol near '!'", or "".
std::string_view token_near(std::string_view message) {
  const size_t near = message.rfind("near '");
  if (near == std::string_view::npos || !message.ends_with('\'')) return "";
  return message.substr(near + 6, message.size() - near - 7);
}

// Returns the line without the contents of its strings, and without its comment.
std::string without_strings(std::string_view line) {
  std::string code;
  char quote = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (quote != 0 && line[i] == '\\') {
      ++i;
    } else if (quote != 0) {
      if (line[i] == quote) quote = 0;
    } else if (line.substr(i).starts_with("--")) {
      break;
    } else {
      if (line[i] == '"' || line[i] == '\'') quote = line[i];
      code += line[i];
    }
  }
  return code;
}

// Returns whether a name or a string is followed by ": " as in a dictionary.
bool has_colon_field(std::string_view code) {
  for (size_t at = code.find(": "); at != std::string_view::npos; at = code.find(": ", at + 1)) {
    const size_t before = code.substr(0, at).find_last_not_of(' ');
    if (before == std::string_view::npos) continue;
    if (in_word(code[before]) || code[before] == '"' || code[before] == '\'') return true;
  }
  return false;
}

template <class Words>
const char* find_word(const Words& words, std::string_view word) {
  for (const Word& each : words)
    if (each.theirs == word) return each.in_lua;
  return nullptr;
}

}  // namespace

std::string foreign_kind(std::string_view name, std::string_view text) {
  for (const auto& [suffix, kind] : kSuffixes)
    if (name.ends_with(suffix)) return kind;
  if (text.find('\0') != std::string_view::npos) return "binary data";
  const std::string_view first_line = text.substr(0, text.find('\n'));
  const bool names_program = first_line.starts_with("#!") || first_line.starts_with("--/");  // load_chunk replaces #!
  if (names_program && first_line.find("python") != std::string_view::npos) return "a Python script";
  if (names_program && first_line.find("lua") == std::string_view::npos) return "a script";
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin != std::string_view::npos && text[begin] == '{' ? "JSON" : "";
}

Error not_lua(std::string_view plan, std::string_view kind) {
  return usage_error(
      fmt::format("'{}' is {}, and a plan is a Lua script (`prun init` writes a first one)", plan, kind));
}

std::string syntax_in_lua(std::string_view message, std::string_view line) {
  const std::string_view near = token_near(message);
  const std::string code = without_strings(line);
  const bool field = message.find("<name> expected") != std::string_view::npos ||
                     message.find("function arguments expected") != std::string_view::npos || near == ":";
  const size_t begin = std::min(code.find_first_not_of(" \t"), code.size());
  const auto begins_with = [&](std::string_view text) {
    return std::string_view(code).substr(begin).starts_with(text);
  };
  if (begins_with("//")) return hint("-- a comment");
  if (near == "{" && begins_with("function")) return hint("function f(a) .. end");
  if (field && has_colon_field(code)) return hint(code.find('{') == std::string::npos ? "local a = b" : "{ a = b }");
  if (message.starts_with("')' expected") && near == "=") return hint("f { a = b }");
  if (message.starts_with("'}' expected") && near == ")") return hint("f { a = b }");
  if (message.starts_with("'}' expected") && !near.empty() && (in_word(near[0]) || near == "{"))
    return " (is a comma missing before it?)";
  if (near == "[" && message.starts_with("unexpected symbol")) return hint("{ a, b }");
  const size_t end =
      static_cast<size_t>(std::find_if_not(code.begin() + std::ptrdiff_t(begin), code.end(), in_word) - code.begin());
  if (const char* in_lua = find_word(kStatements, std::string_view(code).substr(begin, end - begin)))
    return message.starts_with("syntax error") ? hint(in_lua) : "";
  if (near.empty()) return "";
  for (const Operator& each : kOperators)
    if (each.theirs.find(near) != std::string_view::npos && code.find(each.theirs) != std::string::npos)
      return hint(each.in_lua);
  return "";
}

std::string name_in_lua(std::string_view name) {
  const char* in_lua = find_word(kNames, name);
  return in_lua == nullptr ? "" : hint(in_lua);
}

}  // namespace prun
