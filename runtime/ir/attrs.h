// Attributes of an op: a small ordered map from name to number, text or list of numbers. Copy-on-write: copies share
// the map until one is changed, because a program has the same attributes in every microbatch.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace prun {

using Attr = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;

class Attrs {
 public:
  using Values = std::map<std::string, Attr, std::less<>>;

  void set(std::string_view name, Attr value);
  void erase(std::string_view name);
  bool has(std::string_view name) const { return values_ && values_->contains(name); }
  // Return the attribute, or the fallback if it is absent; abort if it has another type. number() also accepts
  // integers.
  int64_t integer(std::string_view name, int64_t fallback = 0) const;
  double number(std::string_view name, double fallback = 0) const;
  std::string text(std::string_view name, std::string_view fallback = "") const;
  std::vector<int64_t> integers(std::string_view name) const;
  std::vector<double> numbers(std::string_view name) const;
  const Values& values() const;
  bool operator==(const Attrs& other) const { return values_ == other.values_ || values() == other.values(); }

 private:
  Values& own();
  std::shared_ptr<Values> values_;  // null = none
};

// Interns attributes: equal ones share one map, so that a thousand layers use one.
class SharedAttrs {
 public:
  Attrs of(const Attrs& attrs);
  // Returns `attrs` with `name` set to `value`.
  Attrs with(const Attrs& attrs, const std::string& name, int64_t value);

 private:
  std::unordered_multimap<size_t, Attrs> known_;                                                    // by hash
  std::map<std::tuple<const Attrs::Values*, std::string, int64_t>, std::pair<Attrs, Attrs>> made_;  // from, result
};

std::string attr_text(const Attr& attr);  // in the form of `prun dump`

// Write and read a JSON object with a member per attribute. Infinity is the text "inf". A list is read as numbers.
void to_json(nlohmann::ordered_json& json, const Attrs& attrs);
void from_json(const nlohmann::ordered_json& json, Attrs& attrs);

}  // namespace prun
