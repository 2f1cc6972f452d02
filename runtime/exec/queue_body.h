// A body on a queue device: its regions enqueued on the program's streams, or captured as graphs and launched.
//
// One thread issues everything. The second run of a region captures it, where the device can and nothing is timed; from
// then on it is one launch.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "comm/comm.h"
#include "exec/host_lane.h"
#include "exec/host_ops.h"
#include "exec/queue_memory.h"
#include "exec/recorder.h"
#include "exec/regions.h"
#include "exec/staged_chunks.h"

namespace prun {

// What bodies share.
struct QueueContext {
  QueueMemory& memory;
  std::vector<DeviceStream>& streams;  // by their place in a body
  DeviceStream& copies;                // to the device: of batches, and of chunks that have come
  RankMemory rank;                     // with the device's arena; its table is the host's
  const prun_step_values* values;      // the device's
  World& world;
  const HostServices& host;
  int threads;
  bool timed, graphs;
  const std::atomic<bool>& cancelled;
  std::function<void(const Op&)> failed;  // with the exception under way; any thread
};

class QueueBody {
 public:
  // Makes all kernels. Throws what they throw.
  QueueBody(const QueueContext& context, const Body& body);

  bool empty() const { return body_.streams.empty(); }
  // The first ops of a step (How::first), into the host's copies of slot `slot`; on any one thread.
  void run_first(int slot, const StepTable& table);
  bool has_first() const { return !first_.empty(); }
  const Op& first_op() const { return op(regions_.first.front()); }  // of those the first
  // Enqueues a step on streams that have been made to wait for what is before it: what the first ops made, which is
  // copied to the device beside that, then all regions as host ops end. Returns once all is enqueued and all host ops
  // have ended; stream 0 then waits for everything. Throws Cancelled, or what the device throws.
  void issue(int64_t step, int slot, StreamState* states, const std::function<void()>& check_alive);
  struct Cancelled {};

  // With times: events of the device in step order, after the step of that slot has ended. `ns` turns an event of the
  // device into the host's nanoseconds.
  void read_times(int slot, const std::function<uint64_t(const DeviceEvent&)>& ns,
                  const std::function<void(int stream, const OpEvent&)>& record, StepRecord& totals) const;
  uint64_t issuing_ns() const { return issuing_ns_; }  // the host's work of the last issue, without waits

 private:
  struct HostPart {
    HostJob job;
    std::unique_ptr<Kernel> kernel;
    std::unique_ptr<std::vector<void*>> places;
    std::vector<StagedChunk> chunks;  // one where it stays whole: its call is the kernel's
    size_t landed = 0;                // chunks of the step under way that are on their way back to the device
    std::optional<DeviceEvent> back;  // the last of them is there; for several
    uint64_t end_ns[kStepSlots] = {};
  };
  struct FirstPart {
    std::unique_ptr<Kernel> kernel[kStepSlots];
    std::unique_ptr<std::vector<void*>> places[kStepSlots];
  };
  struct RegionState {
    int runs = 0;
    bool launched = false;  // of the step under way
    DeviceGraph graph;
    std::optional<DeviceEvent> ended;
    std::vector<std::pair<int, const DeviceEvent*>> backs;  // chunks that have to be there, and for which stream
  };
  struct Span {
    std::optional<DeviceEvent> begin, end;
  };

  const Op& op(OpRef ref) const { return body_.streams[ref.stream].ops[ref.index]; }
  DeviceStream& stream(int s) { return context_.streams[s]; }
  const Program& program() const { return *context_.rank.program; }
  void make_items();
  void make_hosts();
  void make_first();
  std::unique_ptr<std::vector<void*>> places(const Op& op, std::byte* base) const;
  Copy copy_of(TensorId tensor, const std::vector<void*>& places, bool to_host) const;
  void bring_first(int slot);
  bool host_ended(int host) const;
  bool ready(const Region& region) const;
  bool bring_back();
  bool issue_ready(int slot, StreamState* states);
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
  std::vector<std::optional<DeviceEvent>> reached_;   // by item: others wait for it
  std::vector<Span> spans_[kStepSlots];               // by item, with times
  std::vector<std::unique_ptr<HostPart>> hosts_;
  std::vector<HostPart*> in_chunks_;  // of these
  std::vector<FirstPart> first_;
  int64_t first_bytes_ = 0;
  std::vector<Copy> first_in_[kAhead];  // on the device
  StepTable first_table_;
  std::vector<RegionState> states_;
  DeviceEvent there_;              // what the first ops made is on the device
  DeviceEvent fork_;               // a step begins on stream 0
  DeviceEvent spread_;             // a capture, on one stream
  std::vector<DeviceEvent> join_;  // by stream
  uint64_t runs_ = 0;              // steps begun
  std::mutex mutex_;
  std::condition_variable told_;
  bool news_ = false;  // a host op has ended
  uint64_t issuing_ns_ = 0;
  std::vector<std::unique_ptr<HostLane>> lanes_;  // by stream; last, for its threads use the rest
};

}  // namespace prun
