// What a file of token ids begins with: nothing (nanoGPT's, Megatron's .bin), or llm.c's header of 256 int32, which
// says what follows: magic, version, number of tokens.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "data/element.h"

namespace prun {

inline constexpr int64_t kTokenHeaderBytes = 1024;

struct TokenHeader {
  Element element = Element::u16;
  int64_t tokens = 0;  // that the header counts
};

// `begin`: the first bytes of the file, kTokenHeaderBytes or all there are. None: the file has no such header. Throws
// plan_error, with what is wrong in words, where it has one of another version, or is another kind of file.
std::optional<TokenHeader> parse_token_header(std::string_view begin);

}  // namespace prun
