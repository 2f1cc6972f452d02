// Byte-pair encoding (Sennrich et al. 2016; over bytes: Radford et al. 2019; over characters, with bytes for those that
// are no tokens: SentencePiece's): neighbours are joined, the pair first that was learnt first.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace prun {

// The bytes that GPT-2's characters for bytes stand for; nothing for a text with another character.
std::optional<std::string> bytes_of_characters(std::string_view text);

class BytePairs {
 public:
  struct Rules {
    bool whole_words = false;        // a word that is a token is not taken apart
    bool characters = false;         // words are made of characters, not of bytes
    bool byte_fallback = false;      // of characters: one that is no token is its bytes, <0x00> to <0xFF>
    std::optional<int32_t> unknown;  // what is no token
    bool fuse_unknown = false;       // one for a run of them
  };
  // `merges`: in the order in which they were learnt. Throws usage_error for a merge into what is no token.
  BytePairs(std::map<std::string, int32_t> ids, const std::vector<std::pair<std::string, std::string>>& merges,
            const Rules& rules);
  // Adds the tokens of a word. Throws usage_error for what is no token.
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
