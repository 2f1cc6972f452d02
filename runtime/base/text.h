// Text for people: the likely right word, byte counts, durations.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace prun {

// The candidate that is `word` but for upper and lower case, else the nearest by edit distance with transpositions, or
// "" when none is near enough to be meant (more than a third of the word would change).
std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates);

// " (did you mean 'x'?)", or "" when nothing is near: for a message that lists the candidates itself.
std::string if_near(std::string_view word, const std::vector<std::string>& candidates);

// The same, or when nothing is near " (one of: a, b, c)"; "" without candidates.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

// The parts between separators; none of an empty text, and none behind a separator at the end.
std::vector<std::string> split(const std::string& text, char separator);
std::string join(const std::vector<std::string>& parts, std::string_view separator);
// With \x1b for each control character but newlines and tabs: what a plan names must not command the terminal.
std::string printable(std::string_view text);
std::string grouped(int64_t number);                                 // "1,234,567"
std::string short_number(double value, std::string_view unit = "");  // "8.2k", three digits; with a unit "412 TFLOP/s"
std::string counted(int64_t count, std::string_view noun);           // "1 rank", "8 ranks"
std::string human_bytes(int64_t bytes);                              // "12.3 MiB"
std::string human_seconds(double seconds);                           // "1.2 s", "34 ms", "2 min 5 s"

inline constexpr int kMostWhole = 1000000;
// Parses the value of a command line's option, from `least` to kMostWhole. Throws usage_error.
int whole_number(const std::string& option, const std::string& text, int least);

std::string shell_word(const std::string& word);  // in quotes where it needs them

}  // namespace prun
