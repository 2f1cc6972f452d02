// An immutable text whose copies share its characters: thousands of ops and buffers name the same file.
#pragma once
#include <memory>
#include <string>
#include <utility>

namespace prun {

class SharedText {
 public:
  SharedText() = default;
  SharedText(std::string text)  // NOLINT(google-explicit-constructor): used in place of a string
      : text_(text.empty() ? nullptr : std::make_shared<const std::string>(std::move(text))) {}
  SharedText(const char* text) : SharedText(std::string(text)) {}  // NOLINT(google-explicit-constructor)

  const std::string& str() const {
    static const std::string kEmpty;
    return text_ ? *text_ : kEmpty;
  }
  bool empty() const { return text_ == nullptr; }
  friend bool operator==(const SharedText& a, const SharedText& b) { return a.text_ == b.text_ || a.str() == b.str(); }

 private:
  std::shared_ptr<const std::string> text_;  // null = empty
};

}  // namespace prun
