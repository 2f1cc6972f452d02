// A body on a queue device: its regions are enqueued on the program's streams, or captured as graphs and launched.
//
// One thread enqueues everything. The first run enqueues op by op, as do all timed runs. Later runs capture each region
// if the device can, once per step slot, because a slot has its own pinned memory and events. From then on a region is
// one launch; a counted op is enqueued anew, because its counts differ. A body that is a single region is one launch as
// a whole: its graph also copies the step values, the batch, the loss and the norm.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/comm.h"
#include "exec/host_ops.h"
#include "exec/host_thread.h"
#include "exec/queue_memory.h"
#include "exec/recorder.h"
#include "exec/regions.h"
#include "exec/staged_chunks.h"

namespace prun {

// Pinned memory and the event through which host and device exchange the values of a step in flight.
struct StepMemory {
  const prun_step_values* values = nullptr;    // pinned, like the next two
  std::byte *loss = nullptr, *norm = nullptr;  // written at the body's end
  std::byte* results = nullptr;                // Body::results, likewise; kMostResults at most
  DeviceEvent* begin = nullptr;                // timed; recorded after the first copies, before the first op
};

// State shared by the bodies of an executor.
struct QueueContext {
  QueueMemory& memory;
  std::vector<DeviceStream>& streams;  // by stream index of a body
  DeviceStream& copies;                // uploads of batches and of received chunks
  RankMemory rank;                     // with the device's arena and the host's step table
  prun_step_values* values;            // in device memory
  std::vector<StepMemory> steps;       // by slot
  World& world;
  const HostServices& host;
  int threads;
  bool timed, graphs;
  const std::atomic<bool>& cancelled;
  std::function<void(const Op&)> on_failure;  // called in a catch block, by any thread
};

class QueueBody {
 public:
  // Makes all kernels. Throws their exceptions.
  QueueBody(const QueueContext& context, BodyId id);

  bool empty() const { return body_.streams.empty(); }
  // Runs the first ops of a step (How::first) into the host copies of slot `slot`. Any thread, one at a time.
  void run_first(int slot, const StepTable& table);
  bool has_first() const { return !first_.empty(); }
  const Op& first_op() const { return op(regions_.first.front()); }
  // Enqueues a step: uploads the batch, overlapped with the previous step, and the slot's step values; enqueues each
  // region once its host ops have ended; copies loss and norm to the slot. Returns once everything is enqueued and all
  // host ops have ended; stream 0 then waits for all streams. Throws Cancelled, or an Error of the device.
  void issue(int64_t step, int slot, StreamState* states, const std::function<void()>& check_alive);
  struct Cancelled {};

  // Records an OpEvent for each op and accumulates `totals`, if QueueContext::timed. Call after the step of that slot
  // has ended. `ns` converts a device event to host nanoseconds.
  void read_times(int slot, const std::function<uint64_t(const DeviceEvent&)>& ns,
                  const std::function<void(int stream, const OpEvent&)>& record, StepRecord& totals) const;
  uint64_t issuing_ns() const { return issuing_ns_; }  // host time of the last issue(), without waits

 private:
  struct HostPart {
    HostJob job;
    std::unique_ptr<Kernel> kernel;
    std::unique_ptr<Table<TensorId, void*>> places;
    std::vector<StagedChunk> chunks;  // one if the op is not divided
    size_t landed = 0;                // chunks of the current step whose upload is enqueued
    std::optional<DeviceEvent> back;  // reached when the last chunk is on the device; only with several chunks
    uint64_t end_ns[kStepSlots] = {};
  };
  struct FirstPart {
    std::unique_ptr<Kernel> kernel[kStepSlots];
    std::unique_ptr<Table<TensorId, void*>> places[kStepSlots];
  };
  struct RegionState {
    bool launched = false;          // launched in the current step
    bool has_work = true;           // whether the device has work in it
    DeviceGraph graph[kStepSlots];  // captured when the slot is first used
    std::optional<DeviceEvent> ended;
    std::vector<std::pair<StreamId, const DeviceEvent*>> backs;  // streams that wait for the upload of chunks
  };
  struct Span {
    std::optional<DeviceEvent> begin, end;
  };

  const Op& op(OpRef ref) const { return body_.streams[ref.stream].ops[ref.index]; }
  DeviceStream& stream(StreamId s) { return context_.streams[s.index()]; }
  const Program& program() const { return *context_.rank.program; }
  void make_items();
  void make_hosts();
  void make_host_op(HostPart& part, OpRef ref);
  void make_count_read(HostPart& part, TensorId counts);
  HostThread& host_thread(StreamId s);
  void make_first();
  std::unique_ptr<Table<TensorId, void*>> places(const Op& op, std::byte* base) const;
  Copy copy_of(TensorId tensor, const Table<TensorId, void*>& places, bool to_host) const;
  void upload_first(int slot);
  void begin_step(int slot);
  void end_step(int slot);
  bool replays() const;
  bool host_ended(int host) const;
  bool ready(const Region& region) const;
  bool bring_back();
  bool issue_ready(int slot, StreamState* states);
  bool has_work(const Region& region) const;
  void issue_region(int id, int slot, StreamState* states);
  void issue_item(int id, int slot, DeviceCapture* capture, StreamState* states);
  void capture(int id, int slot, StreamState* states);
  void run_item(int id);
  bool all_ended() const;
  void wait_for_hosts(const std::function<void()>& check_alive);

  QueueContext context_;
  const Body& body_;
  Regions regions_;
  std::vector<std::unique_ptr<Kernel>> enqueued_;     // by item: communication on the device's streams
  std::vector<std::optional<DeviceKernel>> kernels_;  // by item
  std::vector<std::optional<Copy>> transfers_;        // by item: load and store
  std::vector<std::optional<DeviceEvent>> reached_;   // by item: other streams wait for it
  std::vector<Span> spans_[kStepSlots];               // by item; only if timed
  std::vector<std::unique_ptr<HostPart>> hosts_;
  std::vector<HostPart*> in_chunks_;  // host ops that are divided into chunks
  std::vector<FirstPart> first_;
  int64_t first_bytes_ = 0;
  std::vector<Copy> first_in_[kStepSlots];  // copies from the uploaded batch to the ops' tensors
  StepTable first_table_;
  std::vector<RegionState> states_;
  const bool whole_;                   // the body is a single region, which begins and ends a step
  const bool captures_;                // its regions may be graphs; see waits_for_peers
  DeviceEvent batch_uploaded_;         // the first ops' outputs are on the device
  DeviceEvent step_start_;             // on stream 0; the other streams wait for it
  DeviceEvent capture_fork_;           // on the origin of a capture; the region's other streams wait for it
  Table<StreamId, DeviceEvent> join_;  // the end of a stream's work, for stream 0 or the origin of a capture
  uint64_t runs_ = 0;                  // steps begun
  std::mutex mutex_;
  std::condition_variable host_done_cv_;
  bool host_done_ = false;  // a host op has ended since issue() last checked; guarded by mutex_
  uint64_t issuing_ns_ = 0;
  Table<StreamId, std::unique_ptr<HostThread>> host_threads_;  // last, because they use the other members
};

}  // namespace prun
