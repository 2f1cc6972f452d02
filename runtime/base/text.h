// Text for users: suggestions for mistyped words, byte counts, durations.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace prun {

// Returns the candidate that differs from `word` only in case, otherwise the nearest by edit distance with
// transpositions; "" if more than a third of the word would change.
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);

// Returns " (did you mean 'x'?)", or "" if nothing is near. Meant for messages that list the candidates themselves.
std::string if_near(std::string_view word, const std::vector<std::string>& candidates);

// Returns " (did you mean 'x'?)", or " (one of: a, b, c)" if nothing is near; "" without candidates.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

// Returns the parts between separators. An empty text has none; a final separator adds none.
std::vector<std::string> split(const std::string& text, char separator);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
// Replaces control characters except newlines and tabs by "\x1b" and the like, so that text from a plan cannot control
// the terminal.
std::string printable(std::string_view text);
std::string grouped(int64_t number);                                 // "1,234,567"
std::string short_number(double value, std::string_view unit = "");  // "8.2k", three digits; with a unit "412 TFLOP/s"
std::string counted(int64_t count, std::string_view noun);           // "1 rank", "8 ranks"
std::string human_bytes(int64_t bytes);                              // "12.3 MiB"
std::string human_seconds(double seconds);                           // "1.2 s", "34 ms", "2 min 5 s"

inline constexpr int kMostWhole = 1000000;
// Parses the value of a command-line option, from `least` to kMostWhole. Throws usage_error.
int whole_number(const std::string& option, const std::string& text, int least);

std::string shell_word(const std::string& word);  // quoted if necessary

}  // namespace prun
