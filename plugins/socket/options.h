// The plugin's options: "key=value,key=value". All ranks must be given the same; connector.cc checks it.
#pragma once
#include <prun/sdk/failure.h>

#include <cstdint>
#include <string>

namespace prun::socket {

using sdk::Failure;

struct Options {
  bool use_unix = true;             // unix: AF_UNIX between ranks of one host; 0: TCP for all
  std::string crc = "auto";         // crc: CRC32C over payloads on TCP: 1, 0, or auto: where they leave the host
  bool encrypt = false;             // encrypt: TLS 1.3 on TCP
  int connections = 1;              // connections per peer; large messages are spread over them
  std::string congestion = "auto";  // TCP_CONGESTION; auto: cubic on loopback, the system's elsewhere; or system
  uint32_t eager = 32 << 10;        // messages up to this many bytes are sent before the receiver has asked
  uint32_t chunk = 256 << 10;       // larger ones go in frames of at most this many bytes
  uint32_t ahead = 0;               // bytes of larger ones that go out before; 0: kAhead to peers that are far away
  std::string ports = "any";        // A:B: TCP listens on one of these, for firewalls
  uint16_t first_port = 0, last_port = 0;
  uint32_t link_timeout = 5;  // seconds until a lost path is told; half of it is survived
  uint32_t buffer = 0;        // SO_SNDBUF and SO_RCVBUF; 0: our default for AF_UNIX, the kernel's tuning for TCP
  std::string text;           // all of them as they are set, for ranks to compare

  // Whether payloads to a TCP peer carry a code; headers always do. `near`: in this host's network namespace.
  bool payload_crc(bool near) const { return crc == "1" || (crc == "auto" && !near); }
  // Bytes (with kMessageCost each) that may lie unasked-for at the receiver of a lane.
  uint32_t window() const;
};

inline constexpr uint32_t kAhead = 4 << 20;   // more than a line of 1 Gbit/s takes in 30 ms
inline constexpr uint32_t kMessageCost = 64;  // what a message of 0 bytes counts against the window

// `text` may be null. Throws Failure(PRUN_EINVAL) that names the key or value and the likely right one.
Options parse_options(const char* text);

}  // namespace prun::socket
