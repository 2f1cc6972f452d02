// Attributes of an op: a small ordered map from name to number, text or list of numbers. Copies share it until one of
// them is changed: a program has the same attributes in every microbatch.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

namespace prun {

using Attr = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;

class Attrs {
 public:
  using Values = std::map<std::string, Attr>;

  void set(const std::string& name, Attr value) { own()[name] = std::move(value); }
  void erase(const std::string& name);
  bool has(const std::string& name) const { return values().count(name) != 0; }
  // Absent: the fallback. Of another type: a bug of ours, aborts. A whole number serves as a double.
  int64_t integer(const std::string& name, int64_t fallback = 0) const;
  double number(const std::string& name, double fallback = 0) const;
  std::string text(const std::string& name, const std::string& fallback = "") const;
  std::vector<int64_t> integers(const std::string& name) const;
  std::vector<double> numbers(const std::string& name) const;
  const Values& values() const;
  bool operator==(const Attrs& other) const { return values_ == other.values_ || values() == other.values(); }

 private:
  Values& own();
  std::shared_ptr<Values> values_;  // null: none
};

std::string attr_text(const Attr& attr);  // as `prun dump` prints it

}  // namespace prun
