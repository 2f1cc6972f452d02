// Converts text to tokens and back: bytes, or the BPE of a tokenizer.json, over bytes (GPT-2, Llama 3 and most others)
// or over characters (SentencePiece, for Llama 2 and Mistral).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace prun {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Includes special tokens that the model expects before a text, such as <|begin_of_text|>. Throws usage_error for
  // text that the tokenizer cannot encode.
  virtual std::vector<int32_t> encode(const std::string& text) const = 0;
  // Returns the bytes of a token, which may be part of a character; "" for special and unknown tokens.
  virtual std::string piece(int64_t token) const = 0;
  virtual int64_t size() const = 0;               // the largest token plus 1
  virtual std::vector<int32_t> ends() const = 0;  // end-of-text tokens
};

std::unique_ptr<Tokenizer> byte_tokenizer();
// Returns the end-of-text tokens in the content of a tokenizer.json, even of an unsupported type.
std::vector<int32_t> ends_of_tokenizer(const std::string& text);
// Throws usage_error with the file's name if the file is not a tokenizer, or is of an unsupported type, which the error
// names.
std::unique_ptr<Tokenizer> read_tokenizer(const std::string& path);

}  // namespace prun
