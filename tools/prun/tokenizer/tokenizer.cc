// Reads tokenizer.json as Hugging Face's tokenizers write it (https://huggingface.co/docs/tokenizers).
//
// Surprising fact: its vocabulary has bytes as characters, one for each, so that 0x20 is "Ġ" and a newline "Ċ"; here
// they are bytes again.
#include "tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/byte_pairs.h"
#include "tokenizer/splitter.h"

namespace prun {
namespace {

using Json = nlohmann::json;

class Bytes final : public Tokenizer {
 public:
  std::vector<int32_t> encode(const std::string& text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string piece(int64_t token) const override {
    return token < size() ? std::string(1, static_cast<char>(token)) : "";
  }
  int64_t size() const override { return 256; }
  std::vector<int32_t> ends() const override { return {}; }
};

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
};

class FromFile final : public Tokenizer {
 public:
  explicit FromFile(const Json& file) {
    if (const Json& normalizer = file.value("normalizer", Json()); !normalizer.is_null())
      refuse("normalizer", normalizer.value("type", "?"), "none");
    read_model(file.at("model"));
    read_added(file.value("added_tokens", Json::array()));
    read_pre_tokenizer(file.value("pre_tokenizer", Json()));
    read_post_processor(file.value("post_processor", Json()));
    if (const Json decoder = file.value("decoder", Json()); !decoder.is_null() && decoder.at("type") != "ByteLevel")
      refuse("decoder", decoder.at("type"), "ByteLevel");
  }

  std::vector<int32_t> encode(const std::string& text) const override {
    std::vector<int32_t> ids = before_;
    size_t from = 0;
    while (from < text.size()) {
      const auto [at, token] = next_added(text, from);
      if (at > from) append(text.substr(from, at - from), ids);
      if (token == nullptr) break;
      ids.push_back(token->id);
      from = at + token->content.size();
    }
    ids.insert(ids.end(), behind_.begin(), behind_.end());
    return ids;
  }

  std::string piece(int64_t token) const override {
    const auto found = pieces_.find(token);
    return found == pieces_.end() ? "" : found->second;
  }
  int64_t size() const override { return size_; }

  std::vector<int32_t> ends() const override {
    static constexpr std::string_view kNames[] = {"<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "</s>",
                                                  "<|im_end|>"};
    std::vector<int32_t> ids;
    for (const AddedToken& token : added_)
      if (std::ranges::find(kNames, token.content) != std::end(kNames)) ids.push_back(token.id);
    return ids;
  }

 private:
  [[noreturn]] static void refuse(std::string_view what, const std::string& type, std::string_view known) {
    throw usage_error(fmt::format("its {} is {}; prun reads {}", what, type, known));
  }

  void keep(int32_t id, std::string bytes) {
    size_ = std::max<int64_t>(size_, int64_t{id} + 1);
    pieces_[id] = std::move(bytes);
  }

  void read_model(const Json& model) {
    if (model.at("type") != "BPE") refuse("model", model.at("type"), "BPE over bytes, as GPT-2 and Llama 3 have it");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const Json affix = model.value(name, Json()); affix.is_string() && affix != "") refuse(name, affix, "none");
    for (const char* name : {"byte_fallback", "fuse_unk"})
      if (const Json flag = model.value(name, Json()); flag.is_boolean() && flag)
        refuse("model", fmt::format("BPE with {}", name), "BPE over bytes");
    if (const Json dropout = model.value("dropout", Json()); dropout.is_number() && dropout != 0)
      refuse("model", "BPE with dropout", "BPE without");
    std::map<std::string, int32_t> ids;
    for (const auto& [text, id] : model.at("vocab").items()) {
      const std::optional<std::string> bytes = bytes_of_characters(text);
      if (!bytes) continue;  // of no text: an added token, as a rule
      ids[*bytes] = id;
      keep(id, *bytes);
    }
    std::vector<std::pair<std::string, std::string>> merges;
    for (const Json& merge : model.at("merges")) {
      std::string left, right;
      if (merge.is_array()) {
        left = merge.at(0), right = merge.at(1);
      } else {
        const std::string both = merge;
        left = both.substr(0, both.find(' ')), right = both.substr(both.find(' ') + 1);
      }
      const std::optional<std::string> a = bytes_of_characters(left), b = bytes_of_characters(right);
      if (!a || !b) refuse("model", fmt::format("BPE over characters ('{} {}')", left, right), "BPE over bytes");
      merges.emplace_back(*a, *b);
    }
    pairs_.emplace(std::move(ids), merges, model.value("ignore_merges", false));
  }

  void read_added(const Json& tokens) {
    for (const Json& token : tokens) {
      for (const char* name : {"single_word", "lstrip", "rstrip"})
        if (token.value(name, false))
          refuse("added token " + token.at("content").get<std::string>(), fmt::format("one with {}", name),
                 "those that stand anywhere");
      added_.push_back({token.at("content"), token.at("id"), token.value("special", false)});
      keep(added_.back().id, added_.back().special ? "" : added_.back().content);
    }
  }

  void read_pre_tokenizer(const Json& pre) {
    if (pre.is_null()) refuse("pre_tokenizer", "null", "ByteLevel");
    const std::string type = pre.at("type");
    if (type == "Sequence") {
      for (const Json& one : pre.at("pretokenizers")) read_pre_tokenizer(one);
    } else if (type == "ByteLevel") {
      prefix_space_ = prefix_space_ || pre.value("add_prefix_space", true);
      if (pre.value("use_regex", true)) splitters_.emplace_back(kGpt2Pattern);
    } else if (type == "Digits") {
      splitters_.emplace_back(pre.value("individual_digits", false) ? "\\p{N}" : "\\p{N}+");
    } else if (type == "Split") {
      if (pre.at("behavior") != "Isolated" || pre.value("invert", false))
        refuse(
            "Split",
            fmt::format("{}{}", pre.at("behavior").get<std::string>(), pre.value("invert", false) ? ", inverted" : ""),
            "Isolated");
      const Json& pattern = pre.at("pattern");
      if (!pattern.contains("Regex")) refuse("Split", "by a text", "by a Regex");
      splitters_.emplace_back(pattern.at("Regex").get<std::string>());
    } else {
      refuse("pre_tokenizer", type, "ByteLevel, Split, Digits and sequences of them");
    }
  }

  void read_post_processor(const Json& post) {
    if (post.is_null()) return;
    const std::string type = post.at("type");
    if (type == "ByteLevel") return;  // of offsets
    if (type == "Sequence") {
      for (const Json& one : post.at("processors")) read_post_processor(one);
      return;
    }
    if (type != "TemplateProcessing") refuse("post_processor", type, "ByteLevel and TemplateProcessing");
    bool text = false;
    for (const Json& part : post.at("single")) {
      if (part.contains("Sequence")) {
        text = true;
        continue;
      }
      const std::string name = part.at("SpecialToken").at("id");
      for (const int32_t id : post.at("special_tokens").at(name).at("ids")) (text ? behind_ : before_).push_back(id);
    }
  }

  // The added token that comes first from `from` on, the longest of those at one place.
  std::pair<size_t, const AddedToken*> next_added(const std::string& text, size_t from) const {
    std::pair<size_t, const AddedToken*> first{text.size(), nullptr};
    for (const AddedToken& token : added_) {
      const size_t at = text.find(token.content, from);
      if (at == std::string::npos || token.content.empty() || at > first.first) continue;
      if (at < first.first || first.second == nullptr || token.content.size() > first.second->content.size())
        first = {at, &token};
    }
    return first;
  }

  void append(std::string text, std::vector<int32_t>& ids) const {
    if (prefix_space_ && text.find_first_of(" \t\n\r\v\f") != 0) text.insert(0, " ");
    std::vector<std::string> words = {std::move(text)};
    for (const Splitter& splitter : splitters_) {
      std::vector<std::string> parts;
      for (const std::string& word : words) splitter.split(word, parts);
      words = std::move(parts);
    }
    for (const std::string& word : words) pairs_->append(word, ids);
  }

  std::optional<BytePairs> pairs_;
  std::vector<Splitter> splitters_;
  std::vector<AddedToken> added_;
  std::vector<int32_t> before_, behind_;  // special tokens around a text
  bool prefix_space_ = false;
  std::map<int64_t, std::string> pieces_;
  int64_t size_ = 0;
};

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() { return std::make_unique<Bytes>(); }

std::unique_ptr<Tokenizer> read_tokenizer(const std::string& path) {
  try {
    std::ifstream file(path);
    if (!file) throw usage_error("it cannot be opened");
    return std::make_unique<FromFile>(Json::parse(file));
  } catch (const Json::exception& error) {
    throw usage_error(fmt::format("{}: no tokenizer.json of Hugging Face's: {}", path, error.what()));
  } catch (Error& error) {
    throw error.prefix(path);
  }
}

}  // namespace prun
