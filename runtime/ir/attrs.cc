// Typed access to attributes, their text form and their JSON.
#include "ir/attrs.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace prun {
namespace {

template <class T>
const T* find(const Attrs::Values& values, std::string_view name) {
  auto it = values.find(name);
  if (it == values.end()) return nullptr;
  const T* value = std::get_if<T>(&it->second);
  PRUN_CHECK(value != nullptr, fmt::format("attribute {} has variant {}", name, it->second.index()));
  return value;
}

}  // namespace

const Attrs::Values& Attrs::values() const {
  static const Values kNone;
  return values_ ? *values_ : kNone;
}

Attrs::Values& Attrs::own() {
  if (!values_)
    values_ = std::make_shared<Values>();
  else if (values_.use_count() > 1)
    values_ = std::make_shared<Values>(*values_);
  return *values_;
}

void Attrs::set(std::string_view name, Attr value) {
  Values& mine = own();
  const auto at = mine.lower_bound(name);
  if (at != mine.end() && at->first == name)
    at->second = std::move(value);
  else
    mine.emplace_hint(at, name, std::move(value));
}

void Attrs::erase(std::string_view name) {
  if (!has(name)) return;
  Values& mine = own();
  mine.erase(mine.find(name));
}

int64_t Attrs::integer(std::string_view name, int64_t fallback) const {
  const int64_t* value = find<int64_t>(values(), name);
  return value ? *value : fallback;
}

double Attrs::number(std::string_view name, double fallback) const {
  auto it = values().find(name);
  if (it == values().end()) return fallback;
  if (const int64_t* whole = std::get_if<int64_t>(&it->second)) return static_cast<double>(*whole);
  return *find<double>(values(), name);
}

std::string Attrs::text(std::string_view name, std::string_view fallback) const {
  const std::string* value = find<std::string>(values(), name);
  return value ? *value : std::string(fallback);
}

std::vector<int64_t> Attrs::integers(std::string_view name) const {
  const auto* value = find<std::vector<int64_t>>(values(), name);
  return value ? *value : std::vector<int64_t>();
}

std::vector<double> Attrs::numbers(std::string_view name) const {
  auto it = values().find(name);
  if (it == values().end()) return {};
  if (const auto* whole = std::get_if<std::vector<int64_t>>(&it->second)) return {whole->begin(), whole->end()};
  return *find<std::vector<double>>(values(), name);
}

namespace {

size_t hash_of(const Attrs::Values& values) {
  size_t hash = values.size();
  const auto mix = [&hash](size_t one) { hash = (hash ^ one) * 0x9E3779B97F4A7C15u; };
  for (const auto& [name, attr] : values) {
    mix(std::hash<std::string>()(name));
    std::visit(
        [&](const auto& value) {
          using Value = std::decay_t<decltype(value)>;
          if constexpr (requires { std::hash<Value>()(value); })
            mix(std::hash<Value>()(value));
          else
            for (const auto one : value) mix(std::hash<std::decay_t<decltype(one)>>()(one));
        },
        attr);
  }
  return hash;
}

}  // namespace

Attrs SharedAttrs::of(const Attrs& attrs) {
  const size_t hash = hash_of(attrs.values());
  const auto [first, last] = known_.equal_range(hash);
  for (auto known = first; known != last; ++known)
    if (known->second == attrs) return known->second;
  return known_.emplace(hash, attrs)->second;
}

Attrs SharedAttrs::with(const Attrs& attrs, const std::string& name, int64_t value) {
  // The first of the pair keeps the map alive whose address is the key.
  auto& [from, made] = made_[{&attrs.values(), name, value}];
  if (made.has(name)) return made;
  from = made = attrs;
  made.set(name, value);
  return made = of(made);
}

std::string attr_text(const Attr& attr) {
  if (const auto* v = std::get_if<int64_t>(&attr)) return fmt::format("{}", *v);
  if (const auto* v = std::get_if<double>(&attr)) return fmt::format("{}", *v);
  if (const auto* v = std::get_if<std::string>(&attr)) return fmt::format("\"{}\"", *v);
  if (const auto* v = std::get_if<std::vector<int64_t>>(&attr)) return fmt::format("[{}]", fmt::join(*v, ", "));
  return fmt::format("[{}]", fmt::join(std::get<std::vector<double>>(attr), ", "));
}

void to_json(nlohmann::ordered_json& json, const Attrs& attrs) {
  json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : attrs.values()) {
    const double* number = std::get_if<double>(&value);
    if (number != nullptr && !std::isfinite(*number))
      json[name] = "inf";
    else
      std::visit([&, &name = name](const auto& held) { json[name] = held; }, value);
  }
}

void from_json(const nlohmann::ordered_json& json, Attrs& attrs) {
  for (const auto& [name, value] : json.items()) {
    if (value.is_string() && value.get<std::string>() == "inf")
      attrs.set(name, std::numeric_limits<double>::infinity());
    else if (value.is_string())
      attrs.set(name, value.get<std::string>());
    else if (value.is_number_integer())
      attrs.set(name, value.get<int64_t>());
    else if (value.is_number())
      attrs.set(name, value.get<double>());
    else
      attrs.set(name, value.get<std::vector<double>>());
  }
}

}  // namespace prun
