// Transforms a text before it is split: SentencePiece replaces spaces by a sign, and prepends one.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace prun {

inline constexpr const char* kMetaspace = "\u2581";  // replaces a space

class Normalizer {
 public:
  Normalizer() = default;  // changes nothing
  // Reads a tokenizer.json: Replace, Prepend, and sequences of them. Throws usage_error that names any other
  // normalizer.
  explicit Normalizer(const nlohmann::json& normalizer) { add(normalizer); }
  std::string operator()(std::string text) const;

 private:
  void add(const nlohmann::json& normalizer);
  // The pattern and its replacement; pattern "": prepend to a non-empty text.
  std::vector<std::pair<std::string, std::string>> steps_;
};

std::string replace_all(std::string text, const std::string& from, const std::string& to);

}  // namespace prun
