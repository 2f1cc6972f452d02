// The features requested from UCX, and its configuration. The precedence is: an option of the plugin, the user's UCX_*
// variable, our default.
//
// UCX only warns about a missing device or transport and continues without it. An unknown name in an option is an error
// here.
#include "worker.h"

#include <fmt/format.h>
#include <net/if.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "log.h"

namespace prun::ucx {
namespace {

using Config = std::unique_ptr<ucp_config_t, decltype(&ucp_config_release)>;

bool user_set(const std::string& name) { return std::getenv(("UCX_" + name).c_str()) != nullptr; }

void set_default(ucp_config_t* config, const char* name, const char* value) {
  if (!user_set(name)) check(fmt::format("UCX_{}={}", name, value), ucp_config_modify(config, name, value));
}

void set(ucp_config_t* config, const Setting& setting) {
  const ucs_status_t status = ucp_config_modify(config, setting.ucx_name.c_str(), setting.value.c_str());
  if (status == UCS_OK) return;
  throw Failure{
      PRUN_EINVAL, -1,
      fmt::format("ucx option {}={}: UCX says '{}'", setting.option, setting.value, ucs_status_string(status))};
}

void check_interface(const std::string& name) {
  const std::string rdma = "/sys/class/infiniband/" + name.substr(0, name.find(':'));
  if (if_nametoindex(name.c_str()) == 0 && access(rdma.c_str(), F_OK) != 0)
    throw Failure{PRUN_EINVAL, fmt::format("there is no network interface and no RDMA device '{}'", name)};
}

Config make_config(const prun_open_params& params, std::vector<Setting> settings) {
  ucp_config_t* read = nullptr;
  check("ucp_config_read", ucp_config_read(nullptr, nullptr, &read));
  Config config(read, ucp_config_release);
  // Memory for peers is zeroed kernel memory; UCX's own default may use malloc.
  set_default(read, "ALLOC_PRIO", "md:sysv,md:posix,huge,thp,md:*,mmap");
  // UCX listens on all devices without authentication, so jobs of one host use only the loopback device.
  if (params.local_ranks == params.ranks) set_default(read, "NET_DEVICES", "lo");
  if (params.interface_name != nullptr) {
    check_interface(params.interface_name);
    settings.insert(settings.begin(), {"--interface", "NET_DEVICES", params.interface_name});
  }
  for (const Setting& setting : settings) set(read, setting);
  return config;
}

// Turns a UCX warning about an unknown name ("transport 'x' is not available, please use one or more of: ...") into a
// Failure if the name came from an option. For names from UCX_* variables UCX's behaviour is kept.
void judge(const std::string& warned, const prun_host& host, bool ours) {
  if (warned.empty()) return;
  if (ours && warned.find("not available") != std::string::npos) throw Failure{PRUN_EINVAL, warned};
  if (host.log != nullptr) host.log(2, ("ucx: " + warned).c_str());
}

}  // namespace

Worker::Worker(const prun_open_params& params, const std::vector<Setting>& settings, uint64_t tag_sender_mask,
               const prun_host& host) {
  const Config config = make_config(params, settings);
  ucp_params_t wanted{};
  wanted.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_TAG_SENDER_MASK | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS |
                      UCP_PARAM_FIELD_ESTIMATED_NUM_PPN;
  wanted.features = UCP_FEATURE_TAG | UCP_FEATURE_RMA | UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  wanted.tag_sender_mask = tag_sender_mask;
  wanted.estimated_num_eps = static_cast<size_t>(params.ranks);
  wanted.estimated_num_ppn = static_cast<size_t>(params.local_ranks);
  ucp_worker_params_t how{};
  how.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  how.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // the Context's lock serializes all calls
  Overheard warnings;
  ucp_context_h context = nullptr;
  ucs_status_t status = ucp_init(&wanted, config.get(), &context);
  context_.reset(context);
  judge(warnings.take(), host, !settings.empty() || params.interface_name != nullptr);
  check("ucp_init", status);
  ucp_worker_h worker = nullptr;
  status = ucp_worker_create(context, &how, &worker);
  worker_.reset(worker);
  judge(warnings.take(), host, false);
  check("ucp_worker_create", status);
  check("ucp_worker_get_efd", ucp_worker_get_efd(worker, &fd_));
}

std::string Worker::address() const {
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  check("ucp_worker_get_address", ucp_worker_get_address(get(), &address, &bytes));
  std::string copy(reinterpret_cast<const char*>(address), bytes);
  ucp_worker_release_address(get(), address);
  return copy;
}

}  // namespace prun::ucx
