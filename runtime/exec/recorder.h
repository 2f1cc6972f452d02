// The flight recorder: what each stream of a rank did and when, in memory that the launcher maps too, so that it
// can be read after SIGKILL. Always on. Trace, progress line, hang report and overlap figures read it.
//
// Layout of the mapping: RecorderHeader, then kMaxStreams rings of `capacity` OpEvents, then the ring of StepRecords.
// Each ring has one writer; a reader takes `written` (acquire) and copies the last min(written, capacity) entries.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <limits>
#include <mutex>
#include <thread>

#include "ir/program.h"

namespace prun {

inline constexpr uint64_t kRecorderMagic = 0x70727564616e3033;
inline constexpr int64_t kStepRing = 4096;

// Where a rank is in its life; while it runs, RecorderHeader::body says in which body.
enum class RunPhase : uint32_t { joining, running, finished };

// All times are CLOCK_MONOTONIC nanoseconds.
struct OpEvent {
  uint32_t step;      // bodies other than the step leave no events
  uint32_t op;        // index on its stream
  uint64_t ready_ns;  // the op before it on the stream had ended; waiting for edges began
  uint64_t begin_ns;  // edges satisfied
  uint64_t end_ns;
};

struct StepRecord {
  uint64_t step;
  double loss;  // NaN when the program has none
  uint64_t begin_ns, end_ns;
  uint64_t comm_ns;     // sum over communication ops of end - begin
  uint64_t exposed_ns;  // compute stream waited for an edge from a communication op
  uint64_t bytes_sent;
  uint64_t host_ns = 0,
           idle_ns = 0;  // of a queue device: enqueuing the step; between the step before and it on the device
  uint64_t eval_ns = 0;  // > 0: there was an evaluation after the step
  double eval_loss = std::numeric_limits<double>::quiet_NaN();  // mean over its batches
  double norm = std::numeric_limits<double>::quiet_NaN();  // of the gradients before clipping; NaN: as for the loss
  uint64_t skipped = 0;                                    // 1: it updated nothing, as its gradients are not finite
  uint64_t data_ns = 0;  // taking the batches of the step; 0 on queue devices, which do not measure it
};

struct StreamState {
  std::atomic<uint64_t> written;   // events in the ring so far
  std::atomic<uint32_t> op;        // the op that is waiting or running
  std::atomic<uint32_t> step;      // of a body between steps: the next one
  std::atomic<uint32_t> running;   // 0 waiting for edges, 1 running, 2 stream idle or ended, 3 in a replayed graph
  std::atomic<uint32_t> run;       // of the body, counted over the job: as `step` for the step
  std::atomic<uint64_t> since_ns;  // when the op began to wait for edges or, running, to run
};

struct RecorderHeader {
  uint64_t magic;
  uint64_t capacity;  // events per stream, a power of two
  uint32_t streams;
  std::atomic<RunPhase> phase;
  std::atomic<uint32_t> body;  // a BodyId
  StreamState stream[kMaxStreams];
  std::atomic<uint64_t> steps_written;
  std::atomic<uint64_t> steps_read;    // by the launcher; the rank waits when the step ring is full
  std::atomic<uint64_t> pss;           // proportional set size in bytes after the last step; shared pages count once
  std::atomic<int64_t> device_use[6];  // of a queue device, at the end: DeviceUse's members in their order
  char doing[160];                     // joining: with which plugin; the last byte stays 0
  std::atomic<uint64_t> beat_ns;       // last time any op ended
  std::atomic<uint64_t> alive_ns;      // a thread that does nothing else stores the time twice a second
  std::atomic<int64_t> saving;         // a checkpoint after so many steps is being written; 0: none
  std::atomic<uint64_t> saving_ns;     // when `saving` changed last; stored before it
  std::atomic<int64_t> saved;          // the last checkpoint that is whole; rank 0's
  std::atomic<uint32_t> connected;     // 1 once `transports` says over what
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

// The one clock of everything recorded: CLOCK_MONOTONIC, which all processes of a host share.
inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

// A thread that does nothing but store the time in the flight recorder: a process whose time stands still is stopped or
// frozen, and one whose time goes on while its op does not is busy or waits.
class Heartbeat {
 public:
  explicit Heartbeat(RecorderHeader& recorder);  // outlives this
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
