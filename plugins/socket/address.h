// Where a rank listens, and how its peers learn it: host identity, listeners, the address blob.
//
// Two ranks are near each other if they share a network namespace: then abstract AF_UNIX names connect them.
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

// Travels as it lies in memory; fixed size, so that nothing of a peer's needs parsing.
struct Address {
  std::array<char, 8> magic{};
  std::array<char, 16> version{};   // of the plugin
  std::array<char, 256> options{};  // canonical
  sdk::HostId host;
  std::array<char, 64> unix_name{};  // abstract, without its leading 0; empty: none
  uint8_t family = 0;                // 4, 6, or 0: does not listen on TCP
  uint8_t loopback = 0;
  uint16_t port = 0;  // host order
  std::array<uint8_t, 16> ip{};
  uint32_t scope = 0;  // of a link-local IPv6 address

  static Address decode(std::string_view blob, int rank);  // throws Failure
  std::string tcp_text() const;                            // "10.0.0.2:4711"
  sockaddr_storage tcp(socklen_t* length) const;
};

struct Listeners {
  Descriptor unix_socket, tcp_socket;
  Address address;
};

// Opens what the peers may need: AF_UNIX unless switched off; TCP if some ranks are elsewhere or AF_UNIX is off.
// Throws Failure.
Listeners listen(const prun_open_params& params, const Options& options);

inline constexpr const char* kVersion = "1.0.0";

}  // namespace prun::socket
