// One row per key: its variable and its range.
#include "options.h"

#include <prun/sdk/options.h>

namespace prun::socket {

uint32_t Options::window() const { return 4 * (eager + kMessageCost); }

Options parse_options(const char* text) {
  Options o;
  const sdk::Option rows[] = {
      {"buffer", &o.buffer, 0, 1 << 28, "bytes"},
      {"chunk", &o.chunk, 4096, 1 << 30, "bytes"},
      {"congestion", &o.congestion, "auto, system or a name of net.ipv4.tcp_available_congestion_control"},
      {"connections", &o.connections, 1, 16},
      {"crc", &o.tcp_crc},
      {"eager", &o.eager, 0, 1 << 24, "bytes"},
      {"unix", &o.use_unix},
  };
  sdk::parse_options("socket", text, rows);
  o.text = sdk::options_text(rows);
  return o;
}

}  // namespace prun::socket
