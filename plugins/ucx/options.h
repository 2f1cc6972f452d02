// The plugin's options, "key=value,key=value". Each sets a UCX configuration entry that otherwise comes from UCX_*.
#pragma once
#include <string>
#include <vector>

namespace prun::ucx {

struct Setting {
  std::string option;    // "tls", or the origin of the setting: "--interface"
  std::string ucx_name;  // "TLS", as ucp_config_modify takes it
  std::string value;
};

// Parses `text`, which may be null; `+` in a value becomes UCX's comma. Throws Failure(PRUN_EINVAL) that names the
// unknown key and the valid ones.
std::vector<Setting> parse_options(const char* text);

}  // namespace prun::ucx
