// The plugin's options, "key=value,key=value". All ranks need the same ones; connector.cc checks it.
#pragma once
#include <prun/sdk/failure.h>

#include <cstdint>
#include <string>

namespace prun::socket {

using sdk::Failure;

struct Options {
  bool use_unix = true;             // unix: AF_UNIX between ranks of one host; 0 = TCP for all
  std::string crc = "auto";         // crc: CRC32C over TCP payloads: 1, 0, or auto = only to other hosts
  bool encrypt = false;             // encrypt: TLS 1.3 on TCP
  int connections = 1;              // connections per peer; large messages are spread over them
  std::string congestion = "auto";  // system = the system's control, auto = cubic on one host, else system; or a name
  uint32_t eager = 32 << 10;        // largest message, in bytes, that is sent before its receive is posted
  uint32_t chunk = 256 << 10;       // largest payload, in bytes, of a frame of a large message
  uint32_t ahead = 0;               // bytes of large messages sent unrequested; 0 = kAhead to far peers, none to others
  std::string ports = "any";        // A:B = the range of TCP ports to listen on, for firewalls
  uint16_t first_port = 0, last_port = 0;
  uint32_t link_timeout = 5;  // seconds until a lost path is reported; outages of up to half of it are survived
  uint32_t buffer = 0;        // SO_SNDBUF and SO_RCVBUF; 0 = 256 KiB for AF_UNIX, the kernel's tuning for TCP
  std::string text;           // canonical text of the options that all ranks must share

  // Returns whether payloads to a TCP peer carry a CRC; headers always do. `near`: the peer is in this host's network
  // namespace.
  bool payload_crc(bool near) const { return crc == "1" || (crc == "auto" && !near); }
  // Returns the window of a lane: the bytes (plus kMessageCost per message) that may be unclaimed at the receiver.
  uint32_t window() const;
};

inline constexpr uint32_t kAhead = 4 << 20;   // exceeds the bytes that a link of 1 Gbit/s sends in 30 ms
inline constexpr uint32_t kMessageCost = 64;  // fixed cost of each message against the window

// Parses `text`, which may be null. Throws Failure(PRUN_EINVAL) that names the key or value and the closest valid one.
Options parse_options(const char* text);

}  // namespace prun::socket
