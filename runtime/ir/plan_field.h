// A value of the script child's document. Errors for values that violate the schema name their place
// ("nodes[3].inputs") and the site of the nearest enclosing struct, a line of the plan.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"

// plan_reader.cc adds the read() functions that `need` and `may` call to this namespace.
namespace prun::plan_document {

// A value of the document and its path: the enclosing field, which must outlive it, and a name or an index.
class Field {
 public:
  explicit Field(const nlohmann::json& root) : Field(root, nullptr, "", 0) {}

  bool has(const char* name) const { return child(name) != nullptr; }
  Field at(const char* name) const {
    const nlohmann::json* found = child(name);
    if (found == nullptr) throw plan_error(fmt::format("the plan has no {}", below(name)), site());
    return Field(*found, this, name, 0);
  }
  // Read required (need) or optional (may) members of the document: a name, the member, and so on.
  template <class T, class... Rest>
  void need(const char* name, T& member, Rest&&... rest) const {
    read(at(name), member);
    if constexpr (sizeof...(rest) > 0) need(rest...);
  }
  template <class T, class... Rest>
  void may(const char* name, T& member, Rest&&... rest) const {
    if (const nlohmann::json* found = child(name); found != nullptr) read(Field(*found, this, name, 0), member);
    if constexpr (sizeof...(rest) > 0) may(rest...);
  }
  // Calls `take` with each element.
  template <class Take>
  void each(Take take) const {
    // Lua does not distinguish an empty list from an empty table.
    if (json_.is_object() && json_.empty()) return;
    if (!json_.is_array()) fail("a list");
    for (size_t i = 0; i < json_.size(); ++i) take(Field(json_[i], this, nullptr, i));
  }
  Field element(size_t number) const { return Field(json_.at(number), this, nullptr, number); }
  size_t size() const { return json_.size(); }

  std::string text() const {
    if (!json_.is_string()) fail("a text");
    std::string text = json_.get<std::string>();
    if (printable(text) != text) fail("a text without control characters");
    return text;
  }
  // Lua's division returns floats, so that a float with an integral value counts as whole.
  bool whole() const {
    if (json_.is_number_unsigned()) return json_.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
    if (json_.is_number_integer()) return true;
    if (!json_.is_number_float()) return false;
    double value = json_.get<double>();
    return std::abs(value) <= 9007199254740992.0 && value == std::trunc(value);
  }
  int64_t integer() const {
    if (!whole()) fail("a whole number");
    return json_.is_number_float() ? static_cast<int64_t>(json_.get<double>()) : json_.get<int64_t>();
  }
  double number() const {
    if (!json_.is_number()) fail("a number");
    return json_.get<double>();
  }
  bool boolean() const {
    if (!json_.is_boolean()) fail("true or false");
    return json_.get<bool>();
  }
  // Returns an index into an array of `size` elements; least = -1 also permits -1.
  int index(size_t size, int least = 0) const {
    int64_t value = integer();
    if (value < least || value >= static_cast<int64_t>(size)) fail(fmt::format("an index below {}", size));
    return static_cast<int>(value);
  }
  // Returns the position of the text in `words`.
  int word(const std::vector<std::string>& words) const {
    const auto found = std::find(words.begin(), words.end(), text());
    if (found != words.end()) return found - words.begin();
    fail(join({words.begin(), words.end() - 1}, ", ") + " or " + words.back());
  }
  template <class Id>
  void indices(size_t size, std::vector<Id>& ids) const {
    each([&](const Field& item) { ids.push_back(item.index(size)); });
  }
  const nlohmann::json& json() const { return json_; }
  std::optional<Site> as_site() const {
    if (!json_.is_array() || json_.size() != 2 || !json_[0].is_string() || !json_[1].is_number_integer())
      return std::nullopt;
    return Site{json_[0].get<std::string>(), json_[1].get<int>()};
  }
  [[noreturn]] void fail(const std::string& expected) const {
    std::string found = json_.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    if (found.size() > 60) found = found.substr(0, 57) + "...";
    throw plan_error(fmt::format("the plan's {} should be {}, is {}", path(), expected, found), site());
  }

 private:
  Field(const nlohmann::json& json, const Field* around, const char* name, size_t number)
      : json_(json), around_(around), name_(name), number_(number) {}

  const nlohmann::json* child(const char* name) const {
    if (!json_.is_object()) return nullptr;
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  // Returns the site of the nearest enclosing struct.
  std::optional<Site> site() const {
    for (const Field* field = this; field != nullptr; field = field->around_)
      if (field->has("site")) return field->at("site").as_site();
    return std::nullopt;
  }
  std::string path() const {
    if (around_ == nullptr) return "";
    return name_ != nullptr ? around_->below(name_) : fmt::format("{}[{}]", around_->path(), number_);
  }
  std::string below(const char* name) const {
    std::string above = path();
    return above.empty() ? name : above + "." + name;
  }

  const nlohmann::json& json_;
  const Field* around_;  // null = the document
  const char* name_;     // null = number_ is the index
  size_t number_;
};

}  // namespace prun::plan_document
