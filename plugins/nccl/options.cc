// One row per key in kKeys; the row knows its bounds and where its value goes.
#include "options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "failure.h"

namespace prun_nccl {
namespace {

struct Key {
  std::string_view name, range;  // for people
  int least, most;               // of a number
  void (*set_number)(Options&, int);
  bool (*set_word)(Options&, std::string_view);  // false: not one of its words
};

bool set_policy(Options& options, std::string_view word) {
  options.cta_policy = word;
  return word == "default" || word == "efficiency" || word == "zero";
}

constexpr Key kKeys[] = {
    {"abort_ms", "100 .. 600000", 100, 600000, [](Options& o, int v) { o.abort_ms = v; }, nullptr},
    {"check", "0 or 1", 0, 1, [](Options& o, int v) { o.check = v != 0; }, nullptr},
    {"cta_policy", "default, efficiency or zero", 0, 0, nullptr, set_policy},
    {"cudart", "a file", 0, 0, nullptr, [](Options& o, std::string_view v) { return o.cudart = v, !v.empty(); }},
    {"device", "0 .. 1023", 0, 1023, [](Options& o, int v) { o.device = v; }, nullptr},
    {"library", "a file", 0, 0, nullptr, [](Options& o, std::string_view v) { return o.library = v, !v.empty(); }},
    {"max_ctas", "1 .. 64", 1, 64, [](Options& o, int v) { o.max_ctas = v; }, nullptr},
    {"min_ctas", "1 .. 64", 1, 64, [](Options& o, int v) { o.min_ctas = v; }, nullptr},
    {"register", "0 or 1", 0, 1, [](Options& o, int v) { o.register_buffers = v != 0; }, nullptr},
    {"split_share", "0 or 1", 0, 1, [](Options& o, int v) { o.split_share = v != 0; }, nullptr},
};

std::string all_keys() {
  std::string all;
  for (const Key& key : kKeys) all += (all.empty() ? "" : ", ") + std::string(key.name);
  return all;
}

bool set(Options& options, const Key& key, std::string_view value) {
  if (key.set_word != nullptr) return key.set_word(options, value);
  int number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || number < key.least || number > key.most)
    return false;
  key.set_number(options, number);
  return true;
}

}  // namespace

Options parse_options(std::string_view text) {
  Options options;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    if (item.empty()) continue;
    const size_t equals = std::min(item.find('='), item.size());
    const std::string_view name = item.substr(0, equals), value = item.substr(std::min(item.size(), equals + 1));
    const auto* key = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const Key& k) { return k.name == name; });
    if (key == std::end(kKeys))
      throw Failure{PRUN_EINVAL, -1, fmt::format("nccl has no option '{}'; it has {}", name, all_keys())};
    if (!set(options, *key, value))
      throw Failure{PRUN_EINVAL, -1, fmt::format("nccl option {}={}: wants {}", name, value, key->range)};
  }
  if (options.max_ctas != 0 && options.min_ctas > options.max_ctas)
    throw Failure{PRUN_EINVAL, -1,
                  fmt::format("nccl options min_ctas={} and max_ctas={}: the first is larger", options.min_ctas,
                              options.max_ctas)};
  return options;
}

}  // namespace prun_nccl
