// A recursive-descent parser that evaluates while it reads.
#include "checkpoint/hf/formula.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/error.h"

namespace prun::checkpoint {
namespace {

constexpr int kDeepest = 50;  // brackets within brackets

// Numbers of foreign files may overflow, so they wrap around as unsigned numbers do.
int64_t wrapped(uint64_t value) { return static_cast<int64_t>(value); }

class FormulaReader {
 public:
  FormulaReader(const std::string& text, const std::function<int64_t(const std::string&)>& value_of)
      : text_(text), value_of_(value_of) {
    next();
  }

  int64_t read() {
    const int64_t value = either();
    if (!token_.empty()) fail();
    return value;
  }

 private:
  [[noreturn]] void fail() const {
    throw usage_error(fmt::format("'{}' is no formula: {}", text_,
                                  token_.empty() ? "it ends too early" : fmt::format("'{}' is unexpected", token_)));
  }

  static bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

  void next() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    const size_t begin = at_;
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    if (at_ == begin && at_ < text_.size()) ++at_;
    token_ = text_.substr(begin, at_ - begin);
  }

  bool take(std::string_view token) {
    if (token_ != token) return false;
    next();
    return true;
  }

  int64_t either() {
    int64_t value = both();
    while (take("or")) value = static_cast<int64_t>((both() != 0) || value != 0);
    return value;
  }

  int64_t both() {
    int64_t value = truth();
    while (take("and")) value = static_cast<int64_t>((truth() != 0) && value != 0);
    return value;
  }

  int64_t truth() { return take("not") ? static_cast<int64_t>(truth() == 0) : sum(); }

  int64_t sum() {
    int64_t value = product();
    for (;;) {
      if (take("+"))
        value = wrapped(static_cast<uint64_t>(value) + static_cast<uint64_t>(product()));
      else if (take("-"))
        value = wrapped(static_cast<uint64_t>(value) - static_cast<uint64_t>(product()));
      else
        return value;
    }
  }

  int64_t product() {
    int64_t value = single();
    for (;;) {
      if (take("*")) {
        value = wrapped(static_cast<uint64_t>(value) * static_cast<uint64_t>(single()));
      } else if (take("/")) {
        const int64_t by = single();
        value = by < 1 ? 0 : value / by;
      } else {
        return value;
      }
    }
  }

  int64_t single() {
    if (++depth_ > kDeepest) fail();
    int64_t value = 0;
    if (take("(")) {
      value = either();
      if (!take(")")) fail();
    } else if (token_.empty() || !is_word(token_[0])) {
      fail();
    } else {
      const std::string word = token_;
      next();
      if (word == "true" || word == "false")
        value = static_cast<int64_t>(word == "true");
      else if (std::isdigit(static_cast<unsigned char>(word[0])) == 0)
        value = value_of_(word);
      else if (word.size() < 16 && std::ranges::all_of(word, [](unsigned char c) { return std::isdigit(c) != 0; }))
        value = std::stoll(word);
      else
        throw usage_error(fmt::format("'{}' is no formula: '{}' is unexpected", text_, word));
    }
    --depth_;
    return value;
  }

  const std::string& text_;
  const std::function<int64_t(const std::string&)>& value_of_;
  size_t at_ = 0;
  std::string token_;  // "" = the end
  int depth_ = 0;
};

}  // namespace

std::vector<std::string> names_in(const std::string& formula) {
  std::vector<std::string> names;
  const std::function<int64_t(const std::string&)> note = [&](const std::string& name) {
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    return int64_t{1};
  };
  FormulaReader(formula, note).read();
  return names;
}

int64_t evaluate(const std::string& formula, const std::function<int64_t(const std::string&)>& value_of) {
  return FormulaReader(formula, value_of).read();
}

}  // namespace prun::checkpoint
