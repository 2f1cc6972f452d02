// Text to tokens and back: bytes, or the BPE of a tokenizer.json: over bytes, which GPT-2, Llama 3 and most of their
// kin have, or over characters, as SentencePiece makes it for Llama 2 and Mistral.
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
  // With what its model expects before a text, such as <|begin_of_text|>. Throws usage_error for what it cannot say.
  virtual std::vector<int32_t> encode(const std::string& text) const = 0;
  // The bytes of a token, which may be a part of a character; "" for a special one, and for none of its own.
  virtual std::string piece(int64_t token) const = 0;
  virtual int64_t size() const = 0;               // its largest token, and one
  virtual std::vector<int32_t> ends() const = 0;  // tokens that end a text
};

std::unique_ptr<Tokenizer> byte_tokenizer();
// The ids of tokens that end a text, of a tokenizer.json's text, be it of a type that is read or not.
std::vector<int32_t> ends_of_tokenizer(const std::string& text);
// Throws usage_error with the file's name for one that is none, or of a type that is not read, which it names.
std::unique_ptr<Tokenizer> read_tokenizer(const std::string& path);

}  // namespace prun
