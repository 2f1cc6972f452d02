// Attributes of an op: a small ordered map from name to number, text or list of numbers.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace prun {

using Attr = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;

class Attrs {
 public:
  void set(const std::string& name, Attr value) { values_[name] = std::move(value); }
  bool has(const std::string& name) const { return values_.count(name) != 0; }
  // Absent: the fallback. Of another type: a bug of ours, aborts. A whole number serves as a double.
  int64_t integer(const std::string& name, int64_t fallback = 0) const;
  double number(const std::string& name, double fallback = 0) const;
  std::string text(const std::string& name, const std::string& fallback = "") const;
  std::vector<int64_t> integers(const std::string& name) const;
  std::vector<double> numbers(const std::string& name) const;
  const std::map<std::string, Attr>& values() const { return values_; }
  std::map<std::string, Attr>& values() { return values_; }
  bool operator==(const Attrs&) const = default;

 private:
  std::map<std::string, Attr> values_;
};

std::string attr_text(const Attr& attr);  // as `prun dump` prints it

}  // namespace prun
