// One row per option: its variable and its range.
#include "options.h"

#include <prun/sdk/options.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <span>

namespace prun::socket {

// A larger window lets a root that sends one broadcast after another wait for credit less often; 4 MiB by default.
uint32_t Options::window() const {
  constexpr uint32_t kMost = 4 << 20;
  const uint32_t message = eager + kMessageCost;
  return std::max(16 * message, std::min(128 * message, kMost));
}

namespace {

void read_ports(Options& o) {
  if (o.ports == "any") return;
  int first = 0, last = 0, end = 0;
  const bool two = std::sscanf(o.ports.c_str(), "%d:%d%n", &first, &last, &end) == 2;
  if (!two || end != static_cast<int>(o.ports.size()) || first < 1 || last < first || last > 65535)
    throw Failure{PRUN_EINVAL, -1,
                  sdk::concat("socket option ports=", o.ports, ": FIRST:LAST, two ports from 1 to 65535")};
  o.first_port = static_cast<uint16_t>(first);
  o.last_port = static_cast<uint16_t>(last);
}

void check_crc(const Options& o) {
  if (o.crc != "auto" && o.crc != "0" && o.crc != "1")
    throw Failure{PRUN_EINVAL, -1, sdk::concat("socket option crc=", o.crc, ": must be auto, 0 or 1")};
}

}  // namespace

Options parse_options(const char* text) {
  Options o;
  const sdk::Option rows[] = {
      {"ahead", &o.ahead, 0, 1 << 28, "bytes"},
      {"buffer", &o.buffer, 0, 1 << 28, "bytes"},
      {"chunk", &o.chunk, 4096, 1 << 30, "bytes"},
      {"congestion", &o.congestion, "auto, system or a name of net.ipv4.tcp_available_congestion_control"},
      {"connections", &o.connections, 1, 16},
      {"crc", &o.crc, "auto, 0 or 1"},
      {"eager", &o.eager, 0, 1 << 24, "bytes"},
      {"encrypt", &o.encrypt},
      {"link_timeout", &o.link_timeout, 1, 3600, "seconds"},
      {"unix", &o.use_unix},
      {"ports", &o.ports, "any or FIRST:LAST"},  // the last row is not compared, because hosts may differ
  };
  sdk::parse_options("socket", text, rows);
  read_ports(o);
  check_crc(o);
  o.text = sdk::options_text(std::span(rows).first(std::size(rows) - 1));
  return o;
}

}  // namespace prun::socket
