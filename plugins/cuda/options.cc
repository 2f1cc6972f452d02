// One row per key; all of them are switches, 0 or 1.
#include "options.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "failure.h"

namespace prun_cuda {
namespace {

struct Key {
  std::string_view name;
  bool Options::*value;
};

constexpr Key kKeys[] = {
    {"cudnn", &Options::cudnn},
    {"tf32", &Options::tf32},
    {"autotune", &Options::autotune},
    {"deterministic", &Options::deterministic},
};

std::string all_keys() {
  std::string all;
  for (const Key& key : kKeys) all += (all.empty() ? "" : ", ") + std::string(key.name);
  return all;
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
    const Key* key = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const Key& k) { return k.name == name; });
    if (key == std::end(kKeys))
      throw Failure(PRUN_EINVAL, fmt::format("there is no option '{}' (there are: {})", name, all_keys()));
    if (value != "0" && value != "1")
      throw Failure(PRUN_EINVAL, fmt::format("option {}={}: wants 0 or 1", name, value));
    options.*key->value = value == "1";
  }
  return options;
}

}  // namespace prun_cuda
