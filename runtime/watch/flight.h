// What the flight recorders of a job's ranks show at one moment: where each is, since when, and its last ops.
//
// It is the one thing that hang detection, `prun status` and `prun explain` read, whether the recorder lies in this
// machine's memory, came from another node, or stands in a run's folder (flight.json).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "exec/recorder.h"

namespace prun {

inline constexpr size_t kKeptEvents = 64;  // of each stream, of a run that failed

struct FlightStream {
  uint32_t op = 0, step = 0, run = 0, running = 0;  // as in StreamState
  uint64_t since_ns = 0;
  std::vector<OpEvent> last;  // of the step, the oldest first
};

struct FlightRank {
  int rank = 0, node = 0, pid = 0;
  std::string host;
  char process = '?';       // its state as in /proc/PID/stat; X: it has ended; ?: not known
  uint64_t stopped_ns = 0;  // since when it is stopped; 0: it is not
  RunPhase phase = RunPhase::joining;
  uint32_t body = 0;
  std::string doing;  // joining: with which plugin
  uint64_t alive_ns = 0, beat_ns = 0, steps = 0;
  int64_t saving = 0, saved = 0;  // as in RecorderHeader
  uint64_t saving_ns = 0;
  std::vector<FlightStream> streams;

  bool stopped() const { return process == 'T' || process == 't'; }
};

struct Flight {
  uint64_t now_ns = 0;            // on the clock of the times in `ranks`
  double wall_time = 0;           // then, in seconds since 1970
  std::vector<FlightRank> ranks;  // by rank, those that are known

  const FlightRank* of(int rank) const;
  double seconds_since(uint64_t ns) const {
    return ns == 0 || ns > now_ns ? 0 : static_cast<double>(now_ns - ns) / 1e9;
  }
};

// Of a recorder that may be written to meanwhile; with the last `events` of each stream.
FlightRank read_recorder(RecorderHeader& recorder, size_t events);

std::string flight_json(const Flight& flight);
// Throws Error(usage) where the text is no flight, naming `path`.
Flight parse_flight(const std::string& text, const std::string& path);

}  // namespace prun
