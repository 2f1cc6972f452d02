// The plugin's options: "key=value,key=value". All ranks must be given the same; join.cc checks it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace prun_socket {

struct Options {
  bool use_unix = true;             // unix: AF_UNIX between ranks of one host; 0: TCP for all
  bool tcp_crc = true;              // crc: CRC32C over payloads on TCP (headers always carry one)
  int connections = 1;              // connections per peer; large messages are spread over them
  std::string congestion = "auto";  // TCP_CONGESTION; auto: cubic on loopback, the system's elsewhere; or system
  uint32_t eager = 32 << 10;        // messages up to this many bytes are sent before the receiver has asked
  uint32_t chunk = 256 << 10;       // larger ones go in frames of at most this many bytes
  uint32_t buffer = 0;              // SO_SNDBUF and SO_RCVBUF; 0: our default for AF_UNIX, the kernel's tuning for TCP

  // Bytes (with kMessageCost each) that may lie unasked-for at the receiver of a lane.
  uint32_t window() const;
  std::string text() const;  // canonical form
};

inline constexpr uint32_t kMessageCost = 64;  // what a message of 0 bytes counts against the window

// Throws Failure(PRUN_EINVAL) that names the key or value and the likely right one.
Options parse_options(std::string_view text);

}  // namespace prun_socket
