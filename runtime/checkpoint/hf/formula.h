// Formulas of a description: whole numbers and options by name, + - * / (rounds down), brackets, not, and, or.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace prun::checkpoint {

// Returns the names in the formula, each once. Throws usage_error if it is malformed.
std::vector<std::string> names_in(const std::string& formula);
// Returns the value; truth is 1 or 0. `value_of` returns the value of a name.
int64_t evaluate(const std::string& formula, const std::function<int64_t(const std::string&)>& value_of);

}  // namespace prun::checkpoint
