// Whole numbers out of JSON that others wrote: exact, where get<int64_t>() cuts fractions and has no answer beyond
// 2^63.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace prun {

// Throws Json::type_error for whatever is no whole number, 1.0 and 1e3 included.
template <class Json>
int64_t json_whole(const Json& json) {
  return json.template get_ref<const typename Json::number_integer_t&>();
}

template <class Json>
std::vector<int64_t> json_wholes(const Json& json) {
  std::vector<int64_t> numbers;
  for (const auto& number : json.template get_ref<const typename Json::array_t&>())
    numbers.push_back(json_whole(number));
  return numbers;
}

}  // namespace prun
