// The usual ranges come from `prun bench ping_pong --bytes 8,4M` on machines up to two generations old. A warning
// requires a deviation by a factor of ten, because neighbours on shared machines cost more than the machine's age.
#include <fmt/format.h>

#include "base/text.h"
#include "doctor/check.h"

namespace prun::doctor {
namespace {

struct Usual {
  const char* transport;
  bool between;                // the pair is on different hosts
  double least_us, most_us;    // latency, us
  double least_gbs, most_gbs;  // bandwidth, 1e9 bytes/s
};
const Usual kUsual[] = {
    {"shm", false, 0.5, 5, 3, 15},    {"socket", false, 5, 40, 1, 6}, {"ucx", false, 0.5, 5, 3, 15},
    {"socket", true, 15, 100, 1, 10}, {"ucx", true, 1.5, 50, 1, 45},
};

const Usual* usual_of(const std::string& transport, bool between) {
  for (const Usual& row : kUsual)
    if (transport == row.transport && between == row.between) return &row;
  return nullptr;
}

std::string named(const std::string& transport, const std::string& where, const char* what) {
  return where.empty() ? fmt::format("{} {}", transport, what) : fmt::format("{} {}, {}", transport, what, where);
}

}  // namespace

Finding latency_finding(const std::string& transport, const std::string& where, double seconds) {
  Finding found{named(transport, where, "latency")};
  found.number = static_cast<int64_t>(seconds * 1e9);
  found.text = fmt::format("{:.1f} us one way", seconds * 1e6);
  const Usual* usual = usual_of(transport, !where.empty());
  if (usual == nullptr) return found;
  found.text += fmt::format(" (usual: {} to {})", usual->least_us, usual->most_us);
  if (seconds * 1e6 > 10 * usual->most_us) {
    found.status = Status::warn;
    found.fix = where.empty() ? "are the cores busy? two ranks need two that are free"
                              : "another network than expected? --interface names it (prun plugins --explain)";
  }
  return found;
}

Finding bandwidth_finding(const std::string& transport, const std::string& where, double bytes_per_s) {
  Finding found{named(transport, where, "bandwidth")};
  found.number = static_cast<int64_t>(bytes_per_s);
  found.text = fmt::format("{:.2f} GB/s in messages of 4 MiB", bytes_per_s / 1e9);
  const Usual* usual = usual_of(transport, !where.empty());
  if (usual == nullptr) return found;
  found.text += fmt::format(" (usual: {} to {})", usual->least_gbs, usual->most_gbs);
  if (bytes_per_s < usual->least_gbs * 1e8) {
    found.status = Status::warn;
    found.fix = where.empty() ? "are the cores busy? two ranks need two that are free"
                              : "another network than expected? --interface names it; a 1 Gb/s link gives 0.11";
  }
  return found;
}

}  // namespace prun::doctor
