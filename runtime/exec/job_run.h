// What all executors share: the calendar of bodies, the step table, communicators, the flight recorder.
#pragma once
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "device/device.h"
#include "exec/chaos.h"
#include "exec/host_ops.h"
#include "exec/recorder.h"

namespace prun {

class RankDevice;

struct ExecutorOptions {
  int rank = 0;
  int threads = 1;                     // cores that a kernel may use
  int spins = 200;                     // of a wait before it sleeps
  double deadline_s = 60;              // without progress of a queue device
  bool timed = false;                  // queue devices: a time for every op, for a trace; then nothing is captured
  bool graphs = true;                  // queue devices: capture steps where the device can
  RecorderHeader* recorder = nullptr;  // zeroed mapping with magic and capacity set
  std::function<bool()> aborted;       // the job is ending
  std::function<void(const std::string&)> print;
  std::function<void(int64_t step)> chaos;  // --chaos, before each step; or empty
  Poison poison;                            // of its fault `nan`; or null
  Omission omission;                        // of its fault `omit`; or null
  // Told of the first error that is not Aborted, at the op, before other ranks can see that this one ends; or empty.
  std::function<void(const Error&, const std::string& op)> failed;
  CheckpointOptions checkpoint;
  std::function<int64_t(int64_t)> begin_step;  // LauncherClient::begin_step, where the job may stop early; or empty
  GenerationOptions generation;
};

class JobRun {
 public:
  virtual ~JobRun() = default;
  // Runs the bodies as their calendar says. Throws the first error of any stream; the others
  // have then stopped.
  void run();
  // After a failure: waits a moment for the device to end what was aborted. False: work may be left, and destructors
  // would block on it, so the process has to end without them.
  virtual bool settle() { return true; }
  // "all_gather of block2 (plans/zero3.lua:12)": what failed, for the message; NonFinite::op() where a value was not
  // finite. Empty when nothing failed.
  const std::string& failed_op() const { return failed_op_; }
  bool stopped_early() const { return !host_.generation && steps_.load() < program_.schedule.steps; }

 protected:
  // Makes the communicators, so all ranks call it alike; `world` is connected.
  JobRun(const Program& program, RankDevice& device, World& world, const ExecutorOptions& options);
  // A body, once for each of first, ..., end - 1. Throws as run().
  virtual void run_body(BodyId id, int64_t first, int64_t end) = 0;
  virtual void free_init() {}  // it will not run again

  // Before a step, on one thread: how many steps there are may fall.
  void begin_step(int64_t step);
  int64_t steps() const { return steps_.load(std::memory_order_acquire); }

  // Whether the step has updated nothing, which it counts; then also whether the run ends for it.
  void look_for_skip(StepRecord& record);
  void wait_for_commit();
  bool looks_for_skips() const { return program_.schedule.most_skips > 0; }

  // Records a step that ended at end_ns, or now if that is 0; fills in times.
  void close_step(StepRecord record, uint64_t end_ns = 0);
  void add_loss(double loss) { losses_.push_back(loss); }  // loss of one run of another body than the step
  void record(int stream, const OpEvent& event);
  uint64_t bytes_sent() const;                        // by all communicators; while none of them is at work
  uint64_t bytes_put() const;                         // by puts
  void fail(std::exception_ptr error, const Op* op);  // any thread; the first one counts that is not Aborted

  const Program& program_;
  RankDevice& rank_device_;
  World& world_;
  ExecutorOptions options_;
  StepTable table_;
  RankMemory memory_;
  HostServices host_;
  std::atomic<bool> cancelled_{false};
  std::exception_ptr failure_;

 private:
  void tell(const std::exception_ptr& error) const;
  void make_communicators();
  void publish_use();
  void close_evaluation(const Body& body);
  void publish_step();

  std::vector<Communicator*> communicators_;
  std::set<PutChannel*> put_channels_;
  std::atomic<int64_t> steps_;
  std::mutex failure_mutex_;
  std::string failed_op_;
  uint64_t step_begin_ns_ = 0;
  int64_t skips_in_a_row_ = 0;
  std::vector<double> losses_;             // losses of the current body's consecutive runs
  std::optional<StepRecord> unpublished_;  // of a step that is evaluated after
};

// "all_gather of block2 forward": an op in words.
std::string op_words(const Op& op);

}  // namespace prun
