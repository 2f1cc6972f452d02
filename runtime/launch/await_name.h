// The name in --rendezvous may be known later than this process starts: Kubernetes publishes a pod's name when the pod
// is ready, and DHCP or cloud-init may come after a service.
#pragma once
#include "launch/launch.h"

namespace prun {

// Blocks until the host of `options.rendezvous` has an address, and reports on standard error every
// `options.join_report_s`; returns at once for "" and "unix:NAME". Throws Error(join) after `options.join_timeout_s`,
// usage for text that is not HOST:PORT.
void await_name(const LaunchOptions& options);

}  // namespace prun
