#include "tokenizer/normalizer.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace prun {

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

void Normalizer::add(const nlohmann::json& normalizer) {
  if (normalizer.is_null()) return;
  const std::string type = normalizer.at("type");
  if (type == "Sequence") {
    for (const nlohmann::json& one : normalizer.at("normalizers")) add(one);
  } else if (type == "Prepend") {
    steps_.emplace_back("", normalizer.at("prepend"));
  } else if (type == "Replace" && normalizer.at("pattern").contains("String")) {
    steps_.emplace_back(normalizer.at("pattern").at("String"), normalizer.at("content"));
    if (steps_.back().first.empty()) throw usage_error("its normalizer replaces an empty text");
  } else {
    throw usage_error(fmt::format("its normalizer is {}; prun reads Prepend and Replace of a text",
                                  type == "Replace" ? "Replace of a Regex" : type));
  }
}

std::string Normalizer::operator()(std::string text) const {
  for (const auto& [from, to] : steps_) {
    if (!from.empty())
      text = replace_all(std::move(text), from, to);
    else if (!text.empty())
      text.insert(0, to);
  }
  return text;
}

}  // namespace prun
