// The tokenizer of a model's training: its location, and the files that transformers needs.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "ir/model_description.h"

namespace prun {

// Returns the tokenizer.json of a Hugging Face folder. For a checkpoint, returns the one next to its training data's
// token files, where tools/tokenize writes it. "": there is none.
std::string known_tokenizer(const std::string& weights);

struct TokenizerFiles {
  std::map<std::string, std::string> contents;  // contents of the files by name, for an exported folder
  std::vector<int32_t> ends;                    // end-of-text tokens
};
// Reads a tokenizer. `path`: a tokenizer.json, or a folder that contains one. Throws usage_error if it is invalid, or
// has more tokens than the model.
TokenizerFiles tokenizer_files(const std::string& path, const ModelDescription& model);

}  // namespace prun
