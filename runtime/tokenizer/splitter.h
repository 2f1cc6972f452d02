// Splits a text into words before it is encoded: every match of a pattern is a word, and so is the text between
// matches.
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace prun {

// GPT-2's pattern: contractions, letters, digits and others, with the preceding space.
inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class Splitter {
 public:
  explicit Splitter(const std::string& pattern);  // throws usage_error
  // Appends the words of `text`. Throws usage_error if it is not UTF-8.
  void split(const std::string& text, std::vector<std::string>& words) const;

 private:
  std::shared_ptr<void> code_;
};

}  // namespace prun
