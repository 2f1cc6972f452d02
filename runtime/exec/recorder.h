// The flight recorder: the activity of each stream of a rank, in memory that the launcher also maps, so that it is
// readable after SIGKILL. Always on. Trace, progress line, hang report and overlap figures read it.
//
//     RecorderHeader | kMaxStreams × ring buffer of `capacity` OpEvents | ring buffer of StepRecords
//
// Each ring buffer has one writer; a reader loads `written` (acquire) and copies the last min(written, capacity)
// entries.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "ir/program.h"

namespace prun {

inline constexpr uint64_t kRecorderMagic = 0x70727564616e3033;
inline constexpr int64_t kStepRing = 4096;

// The phase of a rank's life; while it runs, RecorderHeader::body names the body.
enum class RunPhase : uint32_t { joining, running, finished };

// All times are CLOCK_MONOTONIC nanoseconds.
struct OpEvent {
  uint32_t step;      // only the step body records events
  uint32_t op;        // index on its stream
  uint64_t ready_ns;  // the previous op of the stream had ended; waiting for edges began
  uint64_t begin_ns;  // all edges satisfied
  uint64_t end_ns;
};

inline constexpr uint64_t kBeforeSteps = UINT64_MAX;  // StepRecord::step of an evaluation before the first step

struct StepRecord {
  uint64_t step;
  double loss;  // NaN if the program has none
  uint64_t begin_ns, end_ns;
  uint64_t comm_ns;     // sum over communication ops of end - begin
  uint64_t exposed_ns;  // time that the compute stream waited for edges from communication ops
  uint64_t bytes_sent;
  uint64_t host_ns = 0,
           idle_ns = 0;  // queue devices: host time to enqueue the step; device idle time before the step
  uint64_t eval_ns = 0;  // > 0: an evaluation followed the step
  double eval_loss = std::numeric_limits<double>::quiet_NaN();  // mean over its batches
  double norm = std::numeric_limits<double>::quiet_NaN();       // norm of the gradients before clipping; NaN = none
  uint64_t skipped = 0;                                         // 1: non-finite gradients, so it updated nothing
  double named[kMostNamed], eval_named[kMostNamed];  // as Body::named of the step and of the evaluation lists them
  uint64_t data_ns = 0;  // time to take the step's batches; 0 on queue devices, which do not measure it
};

// Stores a body's named numbers, computed from its results, in their order.
inline void store_named(const Body& body, const std::vector<double>& results, double (&to)[kMostNamed]) {
  for (size_t i = 0; i < body.named.size(); ++i) to[i] = body.named[i].of(results);
}

struct StreamState {
  std::atomic<uint64_t> written;   // total events written to the ring buffer
  std::atomic<uint32_t> op;        // the op that is waiting or running
  std::atomic<uint32_t> step;      // for a body between steps: the next step
  std::atomic<uint32_t> running;   // 0 waiting for edges, 1 running, 2 stream idle or ended, 3 in a replayed graph
  std::atomic<uint32_t> run;       // number of the body's run in the job; for the step body equal to `step`
  std::atomic<uint64_t> since_ns;  // when the op began to wait for edges or, if running, to run
};

struct RecorderHeader {
  uint64_t magic;
  uint64_t capacity;  // events per stream, a power of two
  uint32_t streams;
  std::atomic<RunPhase> phase;
  std::atomic<uint32_t> body;  // a BodyId
  StreamState stream[kMaxStreams];
  std::atomic<uint64_t> steps_written;
  std::atomic<uint64_t> steps_read;    // by the launcher; the rank waits while the step ring is full
  std::atomic<uint64_t> pss;           // proportional set size in bytes after the last step; shared pages count once
  std::atomic<int64_t> device_use[6];  // DeviceUse's members in order, at the end; queue devices only
  char doing[160];                     // while joining: the activity and plugin; the last byte is always 0
  std::atomic<uint64_t> beat_ns;       // time at which an op last ended
  std::atomic<uint64_t> alive_ns;      // time stored twice per second by a thread that does nothing else
  std::atomic<int64_t> saving;         // step of the checkpoint that is being written; 0 = none
  std::atomic<uint64_t> saving_ns;     // time of the last change of `saving`; stored before it
  std::atomic<int64_t> saved;          // step of the last complete checkpoint; rank 0's
  std::atomic<uint32_t> connected;     // 1 once `transports` is set
  char transports[92];                 // "shm inside a host, socket between hosts (eth0)"; "" on one rank
};

inline size_t recorder_bytes(uint64_t capacity) {
  return sizeof(RecorderHeader) + kMaxStreams * capacity * sizeof(OpEvent) + kStepRing * sizeof(StepRecord);
}
inline OpEvent* recorder_ring(RecorderHeader* header, int stream) {
  return reinterpret_cast<OpEvent*>(header + 1) + static_cast<uint64_t>(stream) * header->capacity;
}
inline StepRecord* recorder_steps(RecorderHeader* header) {
  return reinterpret_cast<StepRecord*>(recorder_ring(header, kMaxStreams));
}

// The clock of all records: CLOCK_MONOTONIC, which all processes of a host share.
inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

// A thread that only stores the time in the flight recorder. If that time stops, the process is stopped or frozen; if
// it advances while an op does not, the rank is busy or waiting.
class Heartbeat {
 public:
  explicit Heartbeat(RecorderHeader& recorder);  // must outlive this
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  void run();

  RecorderHeader& recorder_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace prun
