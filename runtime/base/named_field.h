// The fields of a struct with their names, listed once for all formats: JSON (base/field_json.h), messages between
// launchers (launch/control.h) and the binary form of a job (ir/serialize.cc).
//
//   template <class Fields>
//   void each_field(Fields&& fields) { fields(field("step", step), optional_field("tokens", tokens, kUnknown)); }
//
// A field may be a struct with such a list. A struct whose fields belong to the same JSON object as its owner's is
// listed by `part.each_field(fields)`.
#pragma once
#include <optional>
#include <type_traits>
#include <utility>

namespace prun {

template <class T>
struct NamedField {
  const char* name;
  T& value;
  std::optional<T> unknown;  // written as null and read from a missing key; nullopt = the key is required
};

template <class T>
NamedField<T> field(const char* name, T& value) {
  return {name, value, std::nullopt};
}

// Fields added to a format later are optional, so that earlier files remain readable.
template <class T>
NamedField<T> optional_field(const char* name, T& value, std::type_identity_t<T> unknown = {}) {
  return {name, value, std::move(unknown)};
}

// Calls the list of a const struct, for a visitor that only reads.
template <class T, class Fields>
void each_field_of(const T& value, Fields&& fields) {
  const_cast<T&>(value).each_field(std::forward<Fields>(fields));
}

template <class T>
concept HasFields = requires(T& value, void (&fields)(...)) {
  value.each_field(fields);
};

}  // namespace prun
