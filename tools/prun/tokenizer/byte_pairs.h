// Byte-pair encoding (Sennrich et al. 2016; over bytes: Radford et al. 2019): neighbours are joined, the pair first
// that was learnt first.
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
  // `merges`: in the order in which they were learnt. With `whole_words` a word that is a token is not taken apart.
  // Throws usage_error for a merge into what is no token.
  BytePairs(std::map<std::string, int32_t> ids, const std::vector<std::pair<std::string, std::string>>& merges,
            bool whole_words);
  // Adds the tokens of a word. Throws usage_error for a byte that is no token.
  void append(const std::string& word, std::vector<int32_t>& ids) const;

 private:
  struct Merge {
    int64_t rank = 0;
    int32_t id = 0;
  };
  std::map<std::string, int32_t> ids_;
  std::map<std::pair<int32_t, int32_t>, Merge> merges_;
  bool whole_words_;
};

}  // namespace prun
