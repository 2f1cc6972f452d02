// Splits texts with PCRE2, because these patterns need Unicode's letters and digits.
#include "tokenizer/splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include "base/error.h"

namespace prun {
namespace {

std::string words_of(int code) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(code, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

pcre2_code* code_of(const std::shared_ptr<void>& code) { return static_cast<pcre2_code*>(code.get()); }

}  // namespace

Splitter::Splitter(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE at = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                                   &error, &at, nullptr);
  if (code == nullptr) throw usage_error(fmt::format("its pattern '{}' at {}: {}", pattern, at, words_of(error)));
  code_.reset(code, [](void* made) { pcre2_code_free(static_cast<pcre2_code*>(made)); });
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // falls back to interpretation
}

void Splitter::split(const std::string& text, std::vector<std::string>& words) const {
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> match(
      pcre2_match_data_create_from_pattern(code_of(code_), nullptr), pcre2_match_data_free);
  size_t from = 0, behind = 0;  // offset of the end of the last word
  while (from < text.size()) {
    const int found = pcre2_match(code_of(code_), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                                  PCRE2_NOTEMPTY, match.get(), nullptr);
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) throw usage_error(fmt::format("the text to encode: {}", words_of(found)));
    const PCRE2_SIZE* place = pcre2_get_ovector_pointer(match.get());
    if (place[0] > behind) words.push_back(text.substr(behind, place[0] - behind));
    words.push_back(text.substr(place[0], place[1] - place[0]));
    from = behind = place[1];
  }
  if (behind < text.size()) words.push_back(text.substr(behind));
}

}  // namespace prun
