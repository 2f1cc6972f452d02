// One row per option; UCX itself knows which values are right (worker.cc).
#include "options.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "failure.h"

namespace prun_ucx {
namespace {

struct Key {
  std::string_view name, ucx_name, wants;
};
constexpr std::array<Key, 3> kKeys = {{
    {"devices", "NET_DEVICES", "network devices joined by +, such as eth0+mlx5_0:1"},
    {"rndv", "RNDV_THRESH", "the bytes from which the receiver fetches a message, or inf"},
    {"tls", "TLS", "UCX transports joined by +, such as posix+cma+self or ^tcp"},
}};

std::string all_keys() {
  std::string text;
  for (const Key& key : kKeys) text += (text.empty() ? "" : ", ") + std::string(key.name);
  return text;
}

}  // namespace

std::vector<Setting> parse_options(std::string_view text) {
  std::vector<Setting> settings;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    if (item.empty()) continue;
    const size_t equals = item.find('=');
    const std::string_view name = item.substr(0, equals);
    const auto key = std::find_if(kKeys.begin(), kKeys.end(), [&](const Key& k) { return k.name == name; });
    if (key == kKeys.end())
      throw Failure{
          PRUN_EINVAL, -1,
          fmt::format("ucx has no option '{}'; there are {} (and UCX's own variables, UCX_*)", name, all_keys())};
    std::string value(equals == std::string_view::npos ? "" : item.substr(equals + 1));
    if (value.empty())
      throw Failure{PRUN_EINVAL, -1, fmt::format("ucx option {} has no value: wants {}", name, key->wants)};
    std::replace(value.begin(), value.end(), '+', ',');
    settings.push_back({std::string(key->name), std::string(key->ucx_name), value});
  }
  return settings;
}

}  // namespace prun_ucx
