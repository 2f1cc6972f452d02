// Edit distance as in Damerau (1964), restricted to adjacent transpositions.
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "base/error.h"

namespace prun {
namespace {

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t same = a[i - 1] == b[j - 1] ? 0 : 1;
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + same});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

bool same_but_for_case(std::string_view a, std::string_view b) {
  const auto lower = [](unsigned char c) { return std::tolower(c); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace

// The second set of control characters, 0x80 to 0x9f, has two bytes in UTF-8: 0xc2 and the character.
std::string printable(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f)
      shown += fmt::format("\\x{:02x}", byte);
    else if (byte == 0xc2 && next >= 0x80 && next < 0xa0)
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[++i]));
    else
      shown += text[i];
  }
  return shown;
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  for (const std::string& candidate : candidates)
    if (same_but_for_case(word, candidate)) return candidate;
  std::string best;
  size_t best_distance = std::max<size_t>(1, (std::max<size_t>(word.size(), 3) + 2) / 3) + 1;
  for (const std::string& candidate : candidates) {
    size_t distance = edit_distance(word, candidate);
    if (distance < best_distance) best = candidate, best_distance = distance;
  }
  return best;
}

std::string if_near(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = nearest_word(word, candidates);
  return near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near);
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  if (candidates.empty()) return "";
  std::string near = if_near(word, candidates);
  if (!near.empty()) return near;
  return fmt::format(" (one of: {})", join(candidates, ", "));
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string short_number(double value, std::string_view unit) {
  constexpr const char* kPrefix[] = {"", "k", "M", "G", "T", "P", "E"};
  size_t power = 0;
  while (value >= 999.5 && power < 6) value /= 1000, power++;
  const bool whole = unit.empty() && power == 0 && value == std::floor(value);
  const int digits = whole ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f}{}{}{}", value, digits, unit.empty() ? "" : " ", kPrefix[power], unit);
}

std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (int64_t at = std::ssize(text) - 3; at > (number < 0 ? 1 : 0); at -= 3) text.insert(at, ",");
  return text;
}

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string human_bytes(int64_t bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (std::fabs(value) >= 1024 && unit < 5) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, kUnits[unit]);
}

std::string human_seconds(double s) {
  if (s < 1e-3) return fmt::format("{:.1f} us", s * 1e6);
  if (s < 1) return fmt::format("{:.1f} ms", s * 1e3);
  if (s < 120) return fmt::format("{:.1f} s", s);
  if (s < 7200) return fmt::format("{} min {} s", static_cast<int>(s) / 60, static_cast<int>(s) % 60);
  return fmt::format("{} h {} min", static_cast<int>(s) / 3600, static_cast<int>(s) / 60 % 60);
}

int whole_number(const std::string& option, const std::string& text, int least) {
  char* end = nullptr;
  long value = std::strtol(text.c_str(), &end, 10);
  const bool whole = !text.empty() && *end == '\0';
  if (whole && value > kMostWhole)
    throw usage_error(fmt::format("{} must be a whole number of at most {}, not '{}'", option, kMostWhole, text));
  if (!whole || value < least)
    throw usage_error(fmt::format("{} must be a whole number of at least {}, not '{}'", option, least, text));
  return static_cast<int>(value);
}

std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || std::string_view("_-+=./:,").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace prun
