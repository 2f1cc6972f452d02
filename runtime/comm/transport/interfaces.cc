// Network interfaces by name, address or network. Finding the one that reaches a host sends no packet: connecting a UDP
// socket makes the kernel choose its source address.
#include "comm/transport/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "comm/comm.h"

namespace prun {
namespace {

using Bytes = std::vector<unsigned char>;

// Returns the address as 4 or 16 bytes; nothing if the text is not an address.
std::optional<Bytes> parse_address(const std::string& text) {
  Bytes bytes(16);
  if (inet_pton(AF_INET, text.c_str(), bytes.data()) == 1) return Bytes(bytes.begin(), bytes.begin() + 4);
  if (inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1) return bytes;
  return std::nullopt;
}

std::string address_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address->sa_family == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(address)->sin_addr, text, sizeof text);
  else if (address->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr, text, sizeof text);
  return text;
}

int prefix_length(const sockaddr* mask) {
  int bits = 0;
  const std::optional<Bytes> bytes = mask != nullptr ? parse_address(address_text(mask)) : std::nullopt;
  if (bytes)
    for (unsigned char byte : *bytes) bits += __builtin_popcount(byte);
  return bits;
}

bool in_network(const Bytes& address, const Bytes& network, size_t bits) {
  if (address.size() != network.size() || bits > 8 * network.size()) return false;
  for (size_t i = 0; i < bits; ++i) {
    const int shift = 7 - static_cast<int>(i % 8);
    if (((address[i / 8] ^ network[i / 8]) >> shift & 1) != 0) return false;
  }
  return true;
}

std::string bare(const std::string& address) { return address.substr(0, address.find('/')); }

// Returns whether an interface matches one item of `--interface`.
bool fits(const Interface& interface, const std::string& word) {
  if (word[0] == '=') return interface.name == word.substr(1);
  const size_t slash = word.find('/');
  if (const std::optional<Bytes> network = parse_address(word.substr(0, slash))) {
    const std::string digits = slash == std::string::npos ? "" : word.substr(slash + 1);
    if (digits.find_first_not_of("0123456789") != std::string::npos || digits.size() > 3) return false;
    const size_t bits = digits.empty() ? 8 * network->size() : std::stoul(digits);
    return std::any_of(interface.addresses.begin(), interface.addresses.end(), [&](const std::string& address) {
      const std::optional<Bytes> own = parse_address(bare(address));
      return own && in_network(*own, *network, bits);
    });
  }
  return interface.name.compare(0, word.size(), word) == 0;
}

std::string why_not(const Interface& interface) {
  return !interface.up ? "is down" : interface.addresses.empty() ? "has no IP address" : "";
}

// Returns the interfaces that an item selects: the one with that full name, otherwise all matches.
std::vector<const Interface*> meant_by(const std::string& word, const std::vector<Interface>& interfaces) {
  std::vector<const Interface*> meant;
  for (const Interface& interface : interfaces) {
    if (interface.name == word) return {&interface};
    if (fits(interface, word)) meant.push_back(&interface);
  }
  return meant;
}

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::istringstream list(text);
  for (std::string word; std::getline(list, word, ',');)
    if (!word.empty()) words.push_back(word);
  return words;
}

// The default: the interface that reaches the rendezvous, otherwise the first that leaves this host.
InterfaceChoice choose_freely(const std::string& towards, const std::vector<const Interface*>& usable) {
  for (const Interface* interface : usable) {
    if (interface->name != towards) continue;
    if (interface->loopback) return {"", "the rendezvous is this machine's own"};
    return {interface->name, "it reaches the rendezvous"};
  }
  for (const Interface* interface : usable)
    if (!interface->loopback) return {interface->name, "the first that is up, has an address and leads elsewhere"};
  return {"", "no other interface is up and has an address"};
}

}  // namespace

std::vector<Interface> list_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw Error(Exit::transport, fmt::format("network interfaces: {}", std::strerror(errno)));
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<Interface> interfaces;
  for (int family : {AF_PACKET, AF_INET, AF_INET6}) {
    for (const ifaddrs* it = list; it != nullptr; it = it->ifa_next) {
      if (it->ifa_addr == nullptr || it->ifa_addr->sa_family != family) continue;
      auto known = std::find_if(interfaces.begin(), interfaces.end(),
                                [&](const Interface& interface) { return interface.name == it->ifa_name; });
      if (known == interfaces.end()) {
        interfaces.push_back({it->ifa_name, (it->ifa_flags & IFF_UP) != 0, (it->ifa_flags & IFF_LOOPBACK) != 0, {}});
        known = interfaces.end() - 1;
      }
      if (family == AF_PACKET) continue;
      known->addresses.push_back(fmt::format("{}/{}", address_text(it->ifa_addr), prefix_length(it->ifa_netmask)));
    }
  }
  return interfaces;
}

std::string describe(const std::vector<Interface>& interfaces) {
  std::vector<std::string> parts;
  for (const Interface& interface : interfaces) {
    std::string state = !interface.up                 ? "down"
                        : interface.addresses.empty() ? "no address"
                                                      : bare(interface.addresses.front());
    parts.push_back(fmt::format("{} ({})", interface.name, state));
  }
  return parts.empty() ? "none" : join(parts, ", ");
}

namespace {

// Returns the addresses from which this host would send to each address of the host, in its order.
std::vector<std::string> sources_towards(const std::string& host_port) {
  std::vector<std::string> sources;
  const size_t colon = host_port.rfind(':');
  if (colon == std::string::npos) return sources;
  std::string host = host_port.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(host.c_str(), host_port.substr(colon + 1).c_str(), &hints, &found) != 0) return sources;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
  for (const addrinfo* it = found; it != nullptr; it = it->ai_next) {
    const int fd = socket(it->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage own{};
    socklen_t length = sizeof own;
    if (connect(fd, it->ai_addr, it->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&own), &length) == 0)
      sources.push_back(address_text(reinterpret_cast<const sockaddr*>(&own)));
    close(fd);
  }
  return sources;
}

bool has_address(const Interface& interface, const std::string& address) {
  return std::any_of(interface.addresses.begin(), interface.addresses.end(),
                     [&](const std::string& each) { return bare(each) == address; });
}

}  // namespace

std::string interface_towards(const std::string& host_port) {
  const std::vector<Interface> interfaces = list_interfaces();
  for (const std::string& source : sources_towards(host_port))
    for (const Interface& interface : interfaces)
      if (has_address(interface, source)) return interface.name;
  return "";
}

InterfaceChoice choose_interface(const std::string& wanted, const std::string& towards,
                                 const std::vector<Interface>& interfaces) {
  const bool leaves_out = !wanted.empty() && wanted[0] == '^';
  const std::vector<std::string> words = words_of(leaves_out ? wanted.substr(1) : wanted);
  std::vector<const Interface*> meant, usable;
  for (const Interface& interface : interfaces) {
    const bool named =
        std::any_of(words.begin(), words.end(), [&](const std::string& w) { return fits(interface, w); });
    if (wanted.empty() || (leaves_out && !named)) meant.push_back(&interface);
  }
  if (!wanted.empty() && !leaves_out)
    for (const std::string& word : words)
      for (const Interface* interface : meant_by(word, interfaces)) meant.push_back(interface);
  for (const Interface* interface : meant)
    if (why_not(*interface).empty()) usable.push_back(interface);
  if (wanted.empty() || (leaves_out && !usable.empty())) return choose_freely(towards, usable);
  if (usable.empty()) {
    std::vector<std::string> names;
    for (const Interface& interface : interfaces) names.push_back(interface.name);
    const std::string near = nearest_word(wanted, names);
    const std::string why = meant.empty() ? "there is no such network interface or address" +
                                                (near.empty() ? "" : fmt::format(" (did you mean '{}'?)", near))
                                          : fmt::format("{} {}", meant.front()->name, why_not(*meant.front()));
    throw usage_error(fmt::format("--interface {}: {}; there are {}", wanted, why, describe(interfaces)));
  }
  for (const Interface* interface : usable)
    if (interface->name == towards) return {towards, "--interface, and it reaches the rendezvous"};
  return {usable.front()->name, usable.size() > 1 ? "the first that fits --interface" : "--interface"};
}

std::string interface_of_job(const std::string& wanted, int nnodes, const std::string& rendezvous) {
  if ((nnodes == 1 || rendezvous.starts_with("unix:")) && wanted.empty()) return "";  // all on this host
  return choose_interface(wanted, interface_towards(rendezvous), list_interfaces()).name;
}

std::string address_of(const Interface& chosen, const std::string& wanted, const std::string& source) {
  if (!wanted.starts_with("^"))
    for (const std::string& word : words_of(wanted))
      for (const std::string& address : chosen.addresses)
        if (parse_address(bare(word)) && fits({chosen.name, true, false, {address}}, word)) return bare(address);
  return has_address(chosen, source) ? source : "";
}

void settle_network(WorldOptions& world, int nnodes, const std::string& rendezvous) {
  const std::string wanted = world.network_interface;
  world.network_interface = interface_of_job(wanted, nnodes, rendezvous);
  if (world.network_interface.empty()) return;
  std::vector<std::string> sources = sources_towards(rendezvous);
  sources.emplace_back();  // for an address that --interface names
  for (const Interface& interface : list_interfaces())
    for (const std::string& source : sources)
      if (interface.name == world.network_interface && world.network_address.empty())
        world.network_address = address_of(interface, wanted, source);
}

std::string listening_address(const WorldOptions& world) {
  if (!world.network_address.empty()) return world.network_address;
  for (const Interface& each : list_interfaces())
    if (each.name == world.network_interface)
      for (const std::string& address : each.addresses)
        if (!address.starts_with("fe80")) return bare(address);
  return "127.0.0.1";
}

}  // namespace prun
