// What happens to a text before it is split: SentencePiece's forms put a sign for each space, and one in front.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace prun {

inline constexpr const char* kMetaspace = "\u2581";  // what stands for a space

class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  // Of a tokenizer.json: Replace of a text, Prepend, and sequences of them. Throws usage_error for others, by name.
  explicit Normalizer(const nlohmann::json& normalizer) { add(normalizer); }
  std::string operator()(std::string text) const;

 private:
  void add(const nlohmann::json& normalizer);
  // The text to look for and what stands for it; "": in front of a text that is not empty.
  std::vector<std::pair<std::string, std::string>> steps_;
};

std::string replace_all(std::string text, const std::string& from, const std::string& to);

}  // namespace prun
