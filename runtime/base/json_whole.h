// Whole numbers from foreign JSON: exact, whereas get<int64_t>() truncates fractions and is undefined beyond 2^63.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

namespace prun {

// Throws Json::type_error unless the value is an integer; 1.0 and 1e3 are none.
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
