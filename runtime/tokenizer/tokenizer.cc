// Reads tokenizer.json in the format of Hugging Face's tokenizers (https://huggingface.co/docs/tokenizers).
//
// A vocabulary over bytes represents each byte as a character, so that 0x20 is "Ġ" and a newline "Ċ"; here they are
// converted back to bytes. One over characters has "▁" for a space, and may have <0x0A> for a byte.
#include "tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/byte_pairs.h"
#include "tokenizer/normalizer.h"
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
  std::string content;  // the text as it is searched for
  int32_t id = 0;
  bool special = false, normalized = false;  // the token is searched for in the normalized text
};

// Names of end-of-text tokens.
constexpr std::string_view kEnds[] = {"<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "</s>",
                                      "<eos>",         "<|eos|>",         "<|im_end|>", "[SEP]"};

class FromFile final : public Tokenizer {
 public:
  explicit FromFile(const Json& file) {
    require_model(file.at("model"));
    normalizer_ = Normalizer(file.value("normalizer", Json()));
    read_pre_tokenizer(file.value("pre_tokenizer", Json()));
    read_model(file.at("model"));
    read_added(file.value("added_tokens", Json::array()));
    read_post_processor(file.value("post_processor", Json()));
    read_decoder(file.value("decoder", Json()));
  }

  std::vector<int32_t> encode(const std::string& text) const override {
    std::vector<int32_t> ids = before_;
    between_added(text, false, ids, [&](size_t at, const std::string& part) {
      const std::string normal = normalizer_(part);
      between_added(normal, true, ids,
                    [&](size_t inside, const std::string& words) { append(words, at + inside == 0, ids); });
    });
    ids.insert(ids.end(), behind_.begin(), behind_.end());
    return ids;
  }

  std::string piece(int64_t token) const override {
    const auto found = pieces_.find(token);
    return found == pieces_.end() ? "" : found->second;
  }
  int64_t size() const override { return size_; }

  std::vector<int32_t> ends() const override { return ends_; }

 private:
  [[noreturn]] static void refuse(std::string_view what, const std::string& type, std::string_view known) {
    throw usage_error(fmt::format("its {} is {}; prun reads {}", what, type, known));
  }

  void keep(int32_t id, std::string bytes) {
    size_ = std::max<int64_t>(size_, int64_t{id} + 1);
    pieces_[id] = std::move(bytes);
  }

  static int32_t id_of(const Json& id) {
    constexpr int64_t kMostIds = int64_t{1} << 24;
    if (!id.is_number_integer() || id < 0 || id >= kMostIds)
      throw usage_error(fmt::format("a token's id is a whole number below {}, not {}", kMostIds, id.dump()));
    return id;
  }

  static void require_model(const Json& model) {
    if (model.at("type") != "BPE")
      refuse("model", model.at("type"), "BPE, over bytes as GPT-2 and Llama 3 have it or over characters as Llama 2");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const Json affix = model.value(name, Json()); affix.is_string() && !affix.get<std::string>().empty())
        refuse(name, affix, "none");
    if (const Json dropout = model.value("dropout", Json()); dropout.is_number() && dropout != 0)
      refuse("model", "BPE with dropout", "BPE without");
  }

  // Returns a token of the vocabulary in the units of words: bytes, or characters.
  std::optional<std::string> words_of(const std::string& token) const {
    return characters_ ? token : bytes_of_characters(token);
  }

  void read_model(const Json& model) {
    const auto flag = [&](const char* name) {
      const Json value = model.value(name, Json());
      return value.is_boolean() && value.get<bool>();
    };
    BytePairs::Rules rules{flag("ignore_merges"), characters_, flag("byte_fallback"), {}, flag("fuse_unk")};
    std::map<std::string, int32_t> ids;
    for (const auto& [text, id] : model.at("vocab").items()) {
      const std::optional<std::string> words = words_of(text);
      if (!words) continue;  // not a text: usually an added token
      ids[*words] = id_of(id);
      keep(ids[*words], characters_ ? text_of(text, rules.byte_fallback) : *words);
    }
    if (const Json unknown = model.value("unk_token", Json()); unknown.is_string())
      if (const auto found = ids.find(unknown.get<std::string>()); found != ids.end()) rules.unknown = found->second;
    std::vector<std::pair<std::string, std::string>> merges;
    for (const Json& merge : model.at("merges")) {
      std::string left, right;
      if (merge.is_array()) {
        left = merge.at(0), right = merge.at(1);
      } else {
        const std::string both = merge;
        left = both.substr(0, both.find(' ')), right = both.substr(both.find(' ') + 1);
      }
      const std::optional<std::string> a = words_of(left), b = words_of(right);
      if (!a || !b) refuse("model", fmt::format("BPE over characters ('{} {}')", left, right), "BPE over bytes");
      merges.emplace_back(*a, *b);
    }
    pairs_.emplace(std::move(ids), merges, rules);
  }

  // Returns the text of a token over characters: "▁" is a space, <0x0A> a newline.
  static std::string text_of(const std::string& token, bool has_bytes) {
    if (has_bytes && token.size() == 6 && token.starts_with("<0x") && token.ends_with(">"))
      return std::string(1, static_cast<char>(std::stoi(token.substr(3, 2), nullptr, 16)));
    return replace_all(token, kMetaspace, " ");
  }

  void read_added(const Json& tokens) {
    for (const Json& token : tokens) {
      for (const char* name : {"single_word", "lstrip", "rstrip"})
        if (token.value(name, false))
          refuse("added token " + token.at("content").get<std::string>(), fmt::format("one with {}", name),
                 "those that stand anywhere");
      const std::string content = token.at("content");
      AddedToken added{content, id_of(token.at("id")), token.value("special", false), token.value("normalized", false)};
      if (added.normalized) added.content = normalizer_(content);
      keep(added.id, added.special ? "" : content);
      if (std::ranges::find(kEnds, content) != std::end(kEnds)) ends_.push_back(added.id);
      added_.push_back(std::move(added));
    }
  }

  void read_pre_tokenizer(const Json& pre) {
    if (pre.is_null()) return;  // the whole text is one word
    const std::string type = pre.at("type");
    if (type == "Sequence") {
      for (const Json& one : pre.at("pretokenizers")) read_pre_tokenizer(one);
    } else if (type == "ByteLevel") {
      characters_ = false;
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
    } else if (type == "Metaspace") {
      if (pre.value("replacement", kMetaspace) != kMetaspace)
        refuse("Metaspace", "by " + pre.at("replacement").get<std::string>(), std::string("by ") + kMetaspace);
      // Older files have add_prefix_space.
      prepends_ = pre.value("prepend_scheme", pre.value("add_prefix_space", true) ? "always" : "never");
      metaspace_ = true;
      if (pre.value("split", true)) splitters_.emplace_back("\u2581[^\u2581]*");
    } else {
      refuse("pre_tokenizer", type, "ByteLevel, Metaspace, Split, Digits and sequences of them");
    }
  }

  static void read_decoder(const Json& decoder) {
    if (decoder.is_null()) return;
    const std::string type = decoder.at("type");
    if (type == "Sequence") {
      for (const Json& one : decoder.at("decoders")) read_decoder(one);
      return;
    }
    static constexpr std::string_view kKnown[] = {"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"};
    if (std::ranges::find(kKnown, type) == std::end(kKnown))
      refuse("decoder", type, "ByteLevel, Metaspace, Replace, ByteFallback, Fuse, Strip");
  }

  void read_post_processor(const Json& post) {
    if (post.is_null()) return;
    const std::string type = post.at("type");
    if (type == "ByteLevel") return;  // affects offsets only
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
      for (const Json& id : post.at("special_tokens").at(name).at("ids"))
        (text ? behind_ : before_).push_back(id_of(id));
    }
  }

  // Appends the added tokens of one kind in the text, and calls rest(position, text) for the text between them.
  template <class Rest>
  void between_added(const std::string& text, bool normalized, std::vector<int32_t>& ids, const Rest& rest) const {
    for (size_t from = 0; from < text.size();) {
      const auto [at, token] = next_added(text, from, normalized);
      if (at > from) rest(from, text.substr(from, at - from));
      if (token == nullptr) break;
      ids.push_back(token->id);
      from = at + token->content.size();
    }
  }

  // Returns the first added token from `from` on; the longest one if several begin there.
  std::pair<size_t, const AddedToken*> next_added(const std::string& text, size_t from, bool normalized) const {
    std::pair<size_t, const AddedToken*> first{text.size(), nullptr};
    for (const AddedToken& token : added_) {
      if (token.normalized != normalized) continue;
      const size_t at = text.find(token.content, from);
      if (at == std::string::npos || token.content.empty() || at > first.first) continue;
      if (at < first.first || first.second == nullptr || token.content.size() > first.second->content.size())
        first = {at, &token};
    }
    return first;
  }

  void append(std::string text, bool first, std::vector<int32_t>& ids) const {
    if (prefix_space_ && text.find_first_of(" \t\n\r\v\f") != 0) text.insert(0, " ");
    if (metaspace_) {
      text = replace_all(std::move(text), " ", kMetaspace);
      const bool prepends = prepends_ == "always" || (prepends_ == "first" && first);
      if (prepends && !text.starts_with(kMetaspace)) text.insert(0, kMetaspace);
    }
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
  Normalizer normalizer_;
  std::vector<int32_t> ends_;
  bool characters_ = true;  // words are made of characters, not of bytes
  bool prefix_space_ = false, metaspace_ = false;
  std::string prepends_;  // when Metaspace prepends a space: always, first, never
  std::map<int64_t, std::string> pieces_;
  int64_t size_ = 0;
};

}  // namespace

std::unique_ptr<Tokenizer> byte_tokenizer() { return std::make_unique<Bytes>(); }

std::vector<int32_t> ends_of_tokenizer(const std::string& text) {
  std::vector<int32_t> ids;
  const Json file = Json::parse(text);
  for (const Json& token : file.value("added_tokens", Json::array()))
    if (std::ranges::find(kEnds, token.at("content").get<std::string>()) != std::end(kEnds))
      ids.push_back(token.at("id"));
  return ids;
}

std::unique_ptr<Tokenizer> read_tokenizer(const std::string& path) {
  try {
    const bool folder = std::filesystem::is_directory(path);
    std::ifstream file(folder ? path + "/tokenizer.json" : path);
    if (!file) throw usage_error("it cannot be opened");
    const Json json = Json::parse(file, nullptr, false);
    if (!json.is_object() || !json.contains("model")) throw usage_error("not a tokenizer.json of Hugging Face");
    return std::make_unique<FromFile>(json);
  } catch (const Json::exception& error) {
    throw usage_error(fmt::format("{}: no tokenizer.json of Hugging Face's: {}", path, error.what()));
  } catch (Error& error) {
    throw error.prefix(path);
  }
}

}  // namespace prun
