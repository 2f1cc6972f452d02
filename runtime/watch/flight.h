// A snapshot of a job's flight recorders: each rank's position, its time there, and its last ops.
//
// Hang detection, `prun status` and `prun explain` read only this, whether the recorder is in local memory, mirrored
// from another node, or stored in a run's folder (flight.json).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "exec/recorder.h"

namespace prun {

inline constexpr size_t kKeptEvents = 64;  // per stream, for a failed run

struct FlightStream {
  uint32_t op = 0, step = 0, run = 0, running = 0;  // StreamState's fields
  uint64_t since_ns = 0;
  std::vector<OpEvent> last;  // events of the step, oldest first
};

struct FlightRank {
  int rank = 0, node = 0, pid = 0;
  std::string host;
  char process = '?';       // state as in /proc/PID/stat; X: ended; ?: unknown
  uint64_t stopped_ns = 0;  // stopped since this time; 0: not stopped
  RunPhase phase = RunPhase::joining;
  uint32_t body = 0;
  std::string doing;  // while joining: the plugin
  uint64_t alive_ns = 0, beat_ns = 0, steps = 0;
  int64_t saving = 0, saved = 0;  // RecorderHeader's fields
  uint64_t saving_ns = 0;
  std::vector<FlightStream> streams;

  bool stopped() const { return process == 'T' || process == 't'; }
};

struct Flight {
  uint64_t now_ns = 0;            // on the clock of the times in `ranks`
  double wall_time = 0;           // at now_ns, in seconds since 1970
  std::vector<FlightRank> ranks;  // the known ranks, by rank

  const FlightRank* of(int rank) const;
  double seconds_since(uint64_t ns) const {
    return ns == 0 || ns > now_ns ? 0 : static_cast<double>(now_ns - ns) / 1e9;
  }
};

// Reads a recorder, concurrently with its writer, with the last `events` of each stream.
FlightRank read_recorder(RecorderHeader& recorder, size_t events);

std::string flight_json(const Flight& flight);
// Throws Error(usage), naming `path`, if the text is not a flight.
Flight parse_flight(const std::string& text, const std::string& path);

}  // namespace prun
