// One row per option. UCX itself validates the values (worker.cc).
#include "options.h"

#include <prun/sdk/options.h>

#include <algorithm>

namespace prun::ucx {

std::vector<Setting> parse_options(const char* text) {
  Setting devices{"devices", "NET_DEVICES", ""}, rndv{"rndv", "RNDV_THRESH", ""}, tls{"tls", "TLS", ""};
  const sdk::Option rows[] = {
      {"devices", &devices.value, "network devices joined by +, such as eth0+mlx5_0:1"},
      {"rndv", &rndv.value, "the bytes from which the receiver fetches a message, or inf"},
      {"tls", &tls.value, "UCX transports joined by +, such as posix+cma+self or ^tcp"},
  };
  sdk::parse_options("ucx", text, rows);
  std::vector<Setting> settings;
  for (Setting& setting : {std::ref(devices), std::ref(rndv), std::ref(tls)}) {
    std::replace(setting.value.begin(), setting.value.end(), '+', ',');
    if (!setting.value.empty()) settings.push_back(setting);
  }
  return settings;
}

}  // namespace prun::ucx
