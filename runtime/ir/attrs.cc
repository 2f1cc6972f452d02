// Typed access to attributes, and their text form.
#include "ir/attrs.h"

#include <fmt/format.h>

#include "base/error.h"

namespace prun {
namespace {

template <class T>
const T* find(const std::map<std::string, Attr>& values, const std::string& name) {
  auto it = values.find(name);
  if (it == values.end()) return nullptr;
  const T* value = std::get_if<T>(&it->second);
  PRUN_CHECK(value != nullptr, fmt::format("attribute {} has variant {}", name, it->second.index()));
  return value;
}

}  // namespace

int64_t Attrs::integer(const std::string& name, int64_t fallback) const {
  const int64_t* value = find<int64_t>(values_, name);
  return value ? *value : fallback;
}

double Attrs::number(const std::string& name, double fallback) const {
  auto it = values_.find(name);
  if (it == values_.end()) return fallback;
  if (const int64_t* whole = std::get_if<int64_t>(&it->second)) return static_cast<double>(*whole);
  return *find<double>(values_, name);
}

std::string Attrs::text(const std::string& name, const std::string& fallback) const {
  const std::string* value = find<std::string>(values_, name);
  return value ? *value : fallback;
}

std::vector<int64_t> Attrs::integers(const std::string& name) const {
  const auto* value = find<std::vector<int64_t>>(values_, name);
  return value ? *value : std::vector<int64_t>();
}

std::vector<double> Attrs::numbers(const std::string& name) const {
  auto it = values_.find(name);
  if (it == values_.end()) return {};
  if (const auto* whole = std::get_if<std::vector<int64_t>>(&it->second)) return {whole->begin(), whole->end()};
  return *find<std::vector<double>>(values_, name);
}

std::string attr_text(const Attr& attr) {
  if (const auto* v = std::get_if<int64_t>(&attr)) return fmt::format("{}", *v);
  if (const auto* v = std::get_if<double>(&attr)) return fmt::format("{}", *v);
  if (const auto* v = std::get_if<std::string>(&attr)) return fmt::format("\"{}\"", *v);
  if (const auto* v = std::get_if<std::vector<int64_t>>(&attr)) return fmt::format("[{}]", fmt::join(*v, ", "));
  return fmt::format("[{}]", fmt::join(std::get<std::vector<double>>(attr), ", "));
}

}  // namespace prun
