// A plugin's options, "key=value,key=value": a table with one row per key, which holds its variable and its range.
#pragma once
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "prun/sdk/failure.h"

namespace prun::sdk {

struct Option {
  Option(std::string_view name_, bool* to) : name(name_), value(to), wants("0 or 1"), most(1) {}
  // A whole number. If the unit is "bytes", K, M and G may follow it.
  template <class Number>
  Option(std::string_view name_, Number* to, uint64_t least_, uint64_t most_, std::string_view unit = "")
      : name(name_),
        value(to),
        wants(concat(least_, " .. ", most_, unit.empty() ? "" : " ", unit)),
        least(least_),
        most(most_),
        in_bytes(unit == "bytes") {}
  // A text; `wants_` describes it in error messages. If `words_` is not empty, only these values are valid.
  Option(std::string_view name_, std::string* to, std::string_view wants_, std::vector<std::string_view> words_ = {})
      : name(name_), value(to), wants(wants_), words(std::move(words_)) {}

  std::string_view name;
  std::variant<bool*, int*, uint32_t*, size_t*, std::string*> value;
  std::string wants;  // for error messages
  uint64_t least = 0, most = 0;
  bool in_bytes = false;
  std::vector<std::string_view> words;

  // Parses and stores the value. Returns false if it is invalid.
  bool set(std::string_view text) const {
    if (auto* const* to = std::get_if<std::string*>(&value)) {
      **to = text;
      return words.empty() || std::find(words.begin(), words.end(), text) != words.end();
    }
    uint64_t number = 0;
    const char* const stop = text.data() + text.size();
    auto [end, error] = std::from_chars(text.data(), stop, number);
    const size_t unit = in_bytes && stop - end == 1 ? std::string_view("KMG").find(*end) : std::string_view::npos;
    if (unit != std::string_view::npos && number < uint64_t{1} << 32) number <<= 10 * (unit + 1), ++end;
    if (error != std::errc{} || end != stop || number < least || number > most) return false;
    std::visit(
        [&](auto* to) {
          if constexpr (!std::is_same_v<decltype(to), std::string*>)
            *to = static_cast<std::remove_pointer_t<decltype(to)>>(number);
        },
        value);
    return true;
  }
  std::string text() const {
    return std::visit([](auto* from) { return concat(*from); }, value);
  }
};

// Returns "did you mean 'chunk'?" with the nearest row if at most a third of the letters differ (half if the first
// letters are equal); otherwise the list of all rows.
inline std::string suggest_option(std::string_view word, std::span<const Option> rows) {
  const Option* nearest = nullptr;
  size_t best = word.size() + 1;
  std::string all;
  for (const Option& row : rows) {
    std::vector<size_t> distance(row.name.size() + 1);  // edit distance of prefixes
    std::iota(distance.begin(), distance.end(), size_t{0});
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal = std::exchange(distance[0], i);
      for (size_t j = 1; j <= row.name.size(); ++j) {
        const size_t replaced = diagonal + (word[i - 1] != row.name[j - 1]);
        diagonal = distance[j];
        distance[j] = std::min({distance[j] + 1, distance[j - 1] + 1, replaced});
      }
    }
    const bool begins_alike = !word.empty() && !row.name.empty() && word[0] == row.name[0];
    const size_t most = begins_alike ? word.size() / 2 : std::max<size_t>(1, word.size() / 3);
    if (distance.back() <= most && distance.back() < best) best = distance.back(), nearest = &row;
    all += concat(all.empty() ? "" : ", ", row.name);
  }
  return nearest != nullptr ? concat("did you mean '", nearest->name, "'?") : "one of: " + all;
}

// Stores the values in `text`, which may be null. Throws PRUN_EINVAL with a message that begins with `plugin`.
inline void parse_options(std::string_view plugin, const char* text, std::span<const Option> rows) {
  std::string_view rest = text != nullptr ? text : "";
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    if (item.empty()) continue;
    const std::string_view name = item.substr(0, item.find('='));
    const std::string_view value = item.substr(std::min(item.size(), name.size() + 1));
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const Option& each) { return each.name == name; });
    if (row == rows.end())
      throw Failure(PRUN_EINVAL, -1, plugin, " has no option '", name, "' (", suggest_option(name, rows), ")");
    if (value.empty())
      throw Failure(PRUN_EINVAL, -1, plugin, " option ", name, " has no value; it must be ", row->wants);
    if (!row->set(value))
      throw Failure(PRUN_EINVAL, -1, plugin, " option ", name, "=", value, ": must be ", row->wants);
  }
}

// Returns all options with their current values, in the order of the rows, for comparison between ranks.
inline std::string options_text(std::span<const Option> rows) {
  std::string text;
  for (const Option& row : rows) text += concat(text.empty() ? "" : ",", row.name, "=", row.text());
  return text;
}

}  // namespace prun::sdk
