// Byte-pair encoding (Sennrich et al. 2016): merges neighbours, in the order in which the merges were learnt. It works
// over bytes as in Radford et al. 2019, or over characters as in SentencePiece; characters without a token become
// bytes.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace prun {

// Returns the bytes that GPT-2's byte characters represent; nullopt for a text with another character.
std::optional<std::string> bytes_of_characters(std::string_view text);

class BytePairs {
 public:
  struct Rules {
    bool whole_words = false;        // a word that is a token is not split
    bool characters = false;         // words consist of characters, not bytes
    bool byte_fallback = false;      // characters without a token become byte tokens, <0x00> to <0xFF>
    std::optional<int32_t> unknown;  // token for characters without one
    bool fuse_unknown = false;       // a run of unknown characters becomes one such token
  };
  // `merges` are in the order in which they were learnt. Throws usage_error for a merge whose result is not a token.
  BytePairs(std::map<std::string, int32_t> ids, const std::vector<std::pair<std::string, std::string>>& merges,
            const Rules& rules);
  // Appends the tokens of a word. Throws usage_error for a character without a token.
  void append(const std::string& word, std::vector<int32_t>& ids) const;

 private:
  std::vector<int32_t> units(const std::string& word) const;
  std::optional<std::vector<int32_t>> bytes_of(const std::string& character) const;
  struct Merge {
    int64_t rank = 0;
    int32_t id = 0;
  };
  std::map<std::string, int32_t> ids_;
  std::map<std::pair<int32_t, int32_t>, Merge> merges_;
  Rules rules_;
};

}  // namespace prun
