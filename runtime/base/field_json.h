// JSON of structs that list their fields (base/named_field.h). The reader ignores unknown keys.
#pragma once
#include <concepts>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json_whole.h"
#include "base/named_field.h"

namespace prun {

// Returns an object with the fields as members.
template <HasFields T>
nlohmann::ordered_json fields_json(const T& value);
// Sets the fields from the members. Throws Json::exception for a missing key and for a value of another type.
template <HasFields T>
void read_fields(const nlohmann::ordered_json& json, T& value);

namespace field_json {

using Json = nlohmann::ordered_json;

template <class T>
Json written(const T& value) {
  return Json(value);  // numbers, texts, lists of them, and types with a to_json
}
template <HasFields T>
Json written(const T& value) {
  return fields_json(value);
}
template <HasFields T>
Json written(const std::vector<T>& items) {
  Json list = Json::array();
  for (const T& item : items) list.push_back(fields_json(item));
  return list;
}
template <class T>
Json written(const std::optional<T>& value) {
  return value ? written(*value) : Json();
}

template <class T>
void read(const Json& json, T& value) {
  json.get_to(value);
}
template <HasFields T>
void read(const Json& json, T& value) {
  read_fields(json, value);
}
inline void read(const Json& json, int64_t& value) { value = json_whole(json); }
inline void read(const Json& json, uint64_t& value) { value = json.get_ref<const Json::number_unsigned_t&>(); }
inline void read(const Json& json, std::vector<int64_t>& items) { items = json_wholes(json); }
template <HasFields T>
void read(const Json& json, std::vector<T>& items) {
  for (const Json& item : json.get_ref<const Json::array_t&>()) read_fields(item, items.emplace_back());
}
template <class T>
void read(const Json& json, std::optional<T>& value) {
  read(json, value.emplace());
}

struct Writer {
  Json& to;

  template <class... T>
  void operator()(const NamedField<T>&... fields) {
    (put(fields), ...);
  }
  template <class T>
  void put(const NamedField<T>& field) {
    to[field.name] = field.unknown && *field.unknown == field.value ? Json() : written(field.value);
  }
};

struct Reader {
  const Json& from;

  template <class... T>
  void operator()(const NamedField<T>&... fields) {
    (get(fields), ...);
  }
  template <class T>
  void get(const NamedField<T>& field) {
    const auto found = from.find(field.name);
    if (field.unknown && (found == from.end() || found->is_null()))
      field.value = *field.unknown;
    else
      read(from.at(field.name), field.value);
  }
};

}  // namespace field_json

template <HasFields T>
nlohmann::ordered_json fields_json(const T& value) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  each_field_of(value, field_json::Writer{json});
  return json;
}

template <HasFields T>
void read_fields(const nlohmann::ordered_json& json, T& value) {
  value.each_field(field_json::Reader{json});
}

}  // namespace prun
