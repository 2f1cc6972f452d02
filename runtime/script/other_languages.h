// Lua's way of saying what a plan's author has written in the words of Python, C or JavaScript, for messages.
#pragma once
#include <string>
#include <string_view>

#include "base/error.h"

namespace prun {

// Returns the kind of a file that is no Lua, by its contents or its suffix: "a Python script", or "".
std::string foreign_kind(std::string_view name, std::string_view text);

// Returns the error for a plan that is of that kind.
Error not_lua(std::string_view plan, std::string_view kind);

// Returns " (in Lua: a ~= b)" for Lua's message about a syntax error and the line that it is about, or "".
std::string syntax_in_lua(std::string_view message, std::string_view line);

// Returns " (in Lua: nil)" for a name such as None, or "".
std::string name_in_lua(std::string_view name);

}  // namespace prun
