// Listeners of a rank and the address blob from which its peers learn them.
//
// Two ranks are near each other if they share a network namespace: abstract AF_UNIX names then connect them.
#pragma once
#include <netinet/in.h>
#include <prun/sdk/host.h>
#include <prun/transport.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "options.h"
#include "poller.h"

namespace prun::socket {

// Sent in memory layout; its fixed size avoids parsing of untrusted bytes.
struct Address {
  std::array<char, 8> magic{};
  std::array<char, 16> version{};   // version of the plugin
  std::array<char, 256> options{};  // canonical options
  sdk::HostId host;
  std::array<char, 64> unix_name{};  // without the leading 0 of an abstract name; empty = none
  uint8_t family = 0;                // 4, 6, or 0 = no TCP listener
  uint8_t loopback = 0;
  uint16_t port = 0;  // host byte order
  std::array<uint8_t, 16> ip{};
  uint32_t scope = 0;  // scope id of a link-local IPv6 address

  static Address decode(std::string_view blob, int rank);  // throws Failure
  std::string tcp_text() const;                            // "10.0.0.2:4711"
  sockaddr_storage tcp(socklen_t* length) const;
};

struct Listeners {
  Descriptor unix_socket, tcp_socket;
  Address address;
};

// Opens the listeners that peers may need: AF_UNIX unless disabled; TCP if some ranks are on other hosts or AF_UNIX is
// disabled. Throws Failure.
Listeners listen(const prun_open_params& params, const Options& options);

inline constexpr const char* kVersion = "1.0.0";

}  // namespace prun::socket
