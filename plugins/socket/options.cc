// Parses "key=value,key=value". One row per key in kKeys; the row knows how to set, to bound and to print it.
#include "options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <numeric>
#include <vector>

#include "failure.h"

namespace prun_socket {
namespace {

struct Key {
  std::string_view name;
  std::string_view range;  // for people
  uint64_t least, most;    // of a number; both 0: a word
  void (*set_number)(Options&, uint64_t);
  void (*set_word)(Options&, std::string_view);
  std::string (*print)(const Options&);
};

constexpr std::array<Key, 7> kKeys = {{
    {"buffer", "0 .. 268435456 bytes", 0, 1 << 28, [](Options& o, uint64_t v) { o.buffer = static_cast<uint32_t>(v); },
     nullptr, [](const Options& o) { return fmt::to_string(o.buffer); }},
    {"chunk", "4096 .. 1073741824 bytes", 4096, 1 << 30,
     [](Options& o, uint64_t v) { o.chunk = static_cast<uint32_t>(v); }, nullptr,
     [](const Options& o) { return fmt::to_string(o.chunk); }},
    {"congestion", "auto, system or a name of net.ipv4.tcp_available_congestion_control", 0, 0, nullptr,
     [](Options& o, std::string_view v) { o.congestion = v; }, [](const Options& o) { return o.congestion; }},
    {"connections", "1 .. 16", 1, 16, [](Options& o, uint64_t v) { o.connections = static_cast<int>(v); }, nullptr,
     [](const Options& o) { return fmt::to_string(o.connections); }},
    {"crc", "0 or 1", 0, 1, [](Options& o, uint64_t v) { o.tcp_crc = v != 0; }, nullptr,
     [](const Options& o) { return fmt::to_string(static_cast<int>(o.tcp_crc)); }},
    {"eager", "0 .. 16777216 bytes", 0, 1 << 24, [](Options& o, uint64_t v) { o.eager = static_cast<uint32_t>(v); },
     nullptr, [](const Options& o) { return fmt::to_string(o.eager); }},
    {"unix", "0 or 1", 0, 1, [](Options& o, uint64_t v) { o.use_unix = v != 0; }, nullptr,
     [](const Options& o) { return fmt::to_string(static_cast<int>(o.use_unix)); }},
}};

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string did_you_mean(std::string_view word) {
  const Key* nearest = nullptr;
  size_t best = std::max<size_t>(1, word.size() / 3) + 1;
  std::string all;
  for (const Key& key : kKeys) {
    const size_t distance = edit_distance(word, key.name);
    if (distance < best) best = distance, nearest = &key;
    all += (all.empty() ? "" : ", ") + std::string(key.name);
  }
  return nearest ? fmt::format("did you mean '{}'?", nearest->name) : fmt::format("one of: {}", all);
}

void set(Options& options, const Key& key, std::string_view value) {
  if (key.set_word != nullptr && !value.empty()) return key.set_word(options, value);
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  const bool parsed = error == std::errc{} && end == value.data() + value.size() && !value.empty();
  if (key.set_word != nullptr || !parsed || number < key.least || number > key.most)
    throw Failure{PRUN_EINVAL, -1, fmt::format("socket option {}={}: wants {}", key.name, value, key.range)};
  key.set_number(options, number);
}

}  // namespace

uint32_t Options::window() const { return 4 * (eager + kMessageCost); }

std::string Options::text() const {
  std::string out;
  for (const Key& key : kKeys) out += fmt::format("{}{}={}", out.empty() ? "" : ",", key.name, key.print(*this));
  return out;
}

Options parse_options(std::string_view text) {
  Options options;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    const std::string_view name = item.substr(0, equals);
    const auto key = std::find_if(kKeys.begin(), kKeys.end(), [&](const Key& k) { return k.name == name; });
    if (key == kKeys.end())
      throw Failure{PRUN_EINVAL, -1, fmt::format("socket has no option '{}' ({})", name, did_you_mean(name))};
    if (equals == std::string_view::npos)
      throw Failure{PRUN_EINVAL, -1, fmt::format("socket option {} has no value: wants {}", name, key->range)};
    set(options, *key, item.substr(equals + 1));
  }
  return options;
}

}  // namespace prun_socket
