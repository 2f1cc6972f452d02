// Splits a text into words before it is encoded: every match of a pattern is a word, and what lies between matches,
// too.
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace prun {

// GPT-2's: contractions, letters, digits and others, with the space before them.
inline constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class Splitter {
 public:
  explicit Splitter(const std::string& pattern);  // throws usage_error
  // Adds the words of `text`. Throws usage_error where it is no UTF-8.
  void split(const std::string& text, std::vector<std::string>& words) const;

 private:
  std::shared_ptr<void> code_;
};

}  // namespace prun
