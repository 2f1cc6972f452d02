// Reads plain values of the script child's document: texts, numbers, lists, sites.
#pragma once
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/plan_field.h"

namespace prun::plan_document {

inline void read(const Field& field, std::string& value) { value = field.text(); }
inline void read(const Field& field, bool& value) { value = field.boolean(); }
inline void read(const Field& field, double& value) {
  value = field.number();
  if (!std::isfinite(value)) field.fail("a finite number");
}
inline void read(const Field& field, int64_t& value) { value = field.integer(); }
inline void read(const Field& field, uint64_t& value) { value = static_cast<uint64_t>(field.integer()); }

inline void read(const Field& field, int& value) {
  const int64_t whole = field.integer();
  value = static_cast<int>(whole);
  if (value != whole) field.fail("a smaller number");
}

template <class T>
void read(const Field& field, std::vector<T>& items) {
  field.each([&](const Field& item) { read(item, items.emplace_back()); });
}

inline void read(const Field& field, Site& site) {
  const std::optional<Site> read = field.as_site();
  if (!read) field.fail("[file, line]");
  site = *read;
}

}  // namespace prun::plan_document
