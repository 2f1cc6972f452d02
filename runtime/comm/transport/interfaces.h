// The network interface that connects this host to others: the syntax of `--interface`, and the default.
#pragma once
#include <string>
#include <vector>

namespace prun {

struct WorldOptions;

struct Interface {
  std::string name;
  bool up = false, loopback = false;
  std::vector<std::string> addresses;  // "10.0.0.2/24", IPv4 first
};

// Returns the interfaces of this network namespace, in the kernel's order.
std::vector<Interface> list_interfaces();
std::string describe(const std::vector<Interface>& interfaces);  // "lo (127.0.0.1), eth0 (10.0.0.2), eth1 (down)"
std::string interface_towards(const std::string& host_port);     // the interface whose address reaches it; "" = unknown

struct InterfaceChoice {
  std::string name;  // "" = none: transports use loopback only
  std::string why;
};

// Chooses by the value of --interface: comma-separated names, name prefixes, addresses or networks ("eth0", "eth",
// "=eth0", "10.0.0.2", "10.0.0.0/24"), or names to exclude ("^docker,virbr"). If several match, takes the one that
// reaches the rendezvous (`towards`), otherwise the first. Throws usage_error that lists the interfaces if no match is
// up and has an address.
InterfaceChoice choose_interface(const std::string& wanted, const std::string& towards,
                                 const std::vector<Interface>& interfaces);

// Returns WorldOptions::network_interface of a job of `nnodes` nodes; "" if none was requested and none is needed.
std::string interface_of_job(const std::string& wanted, int nnodes, const std::string& rendezvous);

// Returns the address of the chosen interface at which other hosts reach this one: the one that --interface names by
// address or network, otherwise the source address of packets to the rendezvous (`source`); "" if neither is an address
// of the interface. An interface may have several, and peers may have no route to the first.
std::string address_of(const Interface& chosen, const std::string& wanted, const std::string& source);

// Sets the interface and its address.
void settle_network(WorldOptions& world, int nnodes, const std::string& rendezvous);

// Returns the address that settle_network has set, otherwise the interface's first; loopback if there is no interface.
std::string listening_address(const WorldOptions& world);

}  // namespace prun
