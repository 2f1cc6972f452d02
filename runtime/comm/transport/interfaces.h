// The network interface that connects this host to others: the forms of `--interface`, and the default.
#pragma once
#include <string>
#include <vector>

namespace prun {

struct Interface {
  std::string name;
  bool up = false, loopback = false;
  std::vector<std::string> addresses;  // "10.0.0.2/24", IPv4 first
};

std::vector<Interface> list_interfaces();                        // of this network namespace, as the kernel orders them
std::string describe(const std::vector<Interface>& interfaces);  // "lo (127.0.0.1), eth0 (10.0.0.2), eth1 (down)"
std::string interface_towards(const std::string& host_port);     // whose address reaches it; "" unknown

struct InterfaceChoice {
  std::string name;  // "": none, transports stay on loopback
  std::string why;
};

// Chooses by `wanted`: names, beginnings of names, addresses or networks with commas between ("eth0", "eth", "=eth0",
// "10.0.0.2", "10.0.0.0/24"), or names to leave out ("^docker,virbr"). Of several that fit, the one that reaches the
// rendezvous (`towards`), else the first. Throws usage_error, listing the interfaces, when none fits, is up and has an
// address.
InterfaceChoice choose_interface(const std::string& wanted, const std::string& towards,
                                 const std::vector<Interface>& interfaces);

// WorldOptions::network_interface of a job of `nnodes` nodes; "" if none was wanted and none is needed.
std::string interface_of_job(const std::string& wanted, int nnodes, const std::string& rendezvous);

}  // namespace prun
