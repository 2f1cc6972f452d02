// The plugin's options, "key=value,key=value": each sets one of UCX's own, which otherwise come from UCX_* variables.
#pragma once
#include <string>
#include <vector>

namespace prun::ucx {

struct Setting {
  std::string option;    // "tls", or where it comes from: "--interface"
  std::string ucx_name;  // "TLS", as ucp_config_modify takes it
  std::string value;
};

// `text` may be null. `+` in a value stands for UCX's comma. Throws Failure(PRUN_EINVAL) that names the word and what
// there is.
std::vector<Setting> parse_options(const char* text);

}  // namespace prun::ucx
