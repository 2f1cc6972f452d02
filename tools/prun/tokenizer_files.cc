// Finds and reads tokenizers. A tokenizer.json with which prun cannot encode (for example Unigram) is copied
// nevertheless.
#include "tokenizer_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_whole.h"
#include "checkpoint/folder.h"
#include "checkpoint/hf/folder.h"
#include "checkpoint/history.h"
#include "checkpoint/index.h"
#include "tokenizer/tokenizer.h"

namespace prun {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Files that transformers reads besides tokenizer.json.
constexpr const char* kBeside[] = {
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json",
    "chat_template.jinja",   "tokenizer.model",         "vocab.json",        "merges.txt"};

int64_t largest_id(const Json& file) {
  int64_t largest = -1;
  const Json model = file.value("model", Json::object());
  const Json vocab = model.is_object() ? model.value("vocab", Json()) : Json();
  if (vocab.is_array()) largest = std::ssize(vocab) - 1;  // a Unigram model
  if (vocab.is_object())
    for (const auto& [text, id] : vocab.items()) largest = std::max(largest, json_whole(id));
  for (const Json& token : file.value("added_tokens", Json::array()))
    largest = std::max(largest, json_whole(token.at("id")));
  return largest;
}

std::string tokenizer_config(const Json& file, const ModelDescription& model, const std::vector<int32_t>& ends) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  if (const int64_t context = model.arguments.integer("context"); context > 0) config["model_max_length"] = context;
  for (const Json& token : file.value("added_tokens", Json::array()))
    if (!ends.empty() && token.at("id") == ends.front()) config["eos_token"] = token.at("content");
  return config.dump(2) + "\n";
}

}  // namespace

std::string known_tokenizer(const std::string& weights) {
  fs::path folder = weights;
  if (!checkpoint::is_hf_folder(weights)) {
    if (!fs::exists(folder / "index.json") && checkpoint::whole_checkpoints(weights).empty()) return "";
    const checkpoint::SavedData data = checkpoint::read_index(checkpoint::resolve(weights)).data;
    if (!data.kind.starts_with("tokens") || data.path.empty()) return "";  // "tokens in epochs"
    folder = fs::path(data.path).parent_path();
  }
  const fs::path file = folder / "tokenizer.json";
  return fs::exists(file) ? file.string() : "";
}

TokenizerFiles tokenizer_files(const std::string& path, const ModelDescription& model) {
  const fs::path file = fs::is_directory(path) ? fs::path(path) / "tokenizer.json" : fs::path(path);
  if (!fs::is_regular_file(file)) throw usage_error(fmt::format("--tokenizer: no file '{}'", file.string()));
  TokenizerFiles files;
  const std::string text = checkpoint::read_file(file.string());
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("model"))
    throw usage_error(fmt::format("{} is not a tokenizer.json of Hugging Face", file.string()));
  try {
    const int64_t vocabulary = model.arguments.integer("vocab"), largest = largest_id(json);
    if (vocabulary > 0 && largest >= vocabulary)
      throw usage_error(
          fmt::format("the tokenizer {} has tokens up to {}, and the model has {}: its weights were "
                      "made with another one (--tokenizer FILE, or --tokenizer none)",
                      file.string(), largest, vocabulary));
    files.ends = ends_of_tokenizer(text);
    files.contents["tokenizer.json"] = text;
    for (const char* name : kBeside)
      if (const fs::path beside = file.parent_path() / name; fs::is_regular_file(beside))
        files.contents[name] = checkpoint::read_file(beside.string());
    if (!files.contents.contains("tokenizer_config.json"))
      files.contents["tokenizer_config.json"] = tokenizer_config(json, model, files.ends);
    if (!files.contents.contains("generation_config.json") && !files.ends.empty())
      files.contents["generation_config.json"] =
          Json{{"_from_model_config", true}, {"eos_token_id", files.ends}}.dump(2) + "\n";
  } catch (const Json::exception& error) {
    throw usage_error(fmt::format("{}: no tokenizer.json of Hugging Face's: {}", file.string(), error.what()));
  }
  return files;
}

}  // namespace prun
