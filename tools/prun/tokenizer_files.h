// The tokenizer that weights were trained with: where it is, and the files that transformers wants of it.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ir/model_description.h"

namespace prun {

// The tokenizer.json of a Hugging Face folder; of a checkpoint that beside the token files that it was trained on,
// where tools/tokenize puts it. "": there is none.
std::string known_tokenizer(const std::string& weights);

struct TokenizerFiles {
  std::map<std::string, std::string> contents;  // by name, for an exported folder
  std::vector<int32_t> ends;                    // tokens that end a text
};
// `path`: a tokenizer.json, or a folder that has one. Throws usage_error for one that is none, or has more tokens than
// the model.
TokenizerFiles tokenizer_files(const std::string& path, const ModelDescription& model);

}  // namespace prun
