// State shared by all executors: the schedule of bodies, the step table, communicators, the flight recorder.
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
  int spins = 200;                     // spins of a wait before it sleeps
  double deadline_s = 60;              // limit in seconds for a queue device without progress
  bool timed = false;                  // queue devices: records a time for every op, for a trace, and captures nothing
  bool graphs = true;                  // queue devices: captures steps if the device can
  RecorderHeader* recorder = nullptr;  // zeroed mapping with magic and capacity set
  std::function<bool()> aborted;       // returns whether the job is ending
  std::function<void(const std::string&)> print;
  std::function<void(int64_t step)> before_step;  // may be empty
  Poison poison;                                  // flag of the fault `nan`; may be null
  Omission omission;                              // flag of the fault `omit`; may be null
  // Called with the first error that is not Aborted, at its op, before other ranks can observe that this one ends. May
  // be empty.
  std::function<void(const Error&, const std::string& op)> failed;
  CheckpointOptions checkpoint;
  std::function<int64_t(int64_t)> begin_step;  // LauncherClient::begin_step if the job may stop early; may be empty
  GenerationOptions generation;
  std::string predictions;  // HostServices::predictions
};

class JobRun {
 public:
  virtual ~JobRun() = default;
  // Runs the bodies on their schedule. Throws the first error of any stream, after the other streams have stopped.
  void run();
  // Waits briefly, after a failure, for the device to finish aborted work. Returns false if work may be left:
  // destructors would block on it, so the process must end without them.
  virtual bool settle() { return true; }
  // Returns the failed op for the message, "all_gather of block2 (plans/zero3.lua:12)"; NonFinite::op() for a value
  // that is not finite; empty if nothing failed.
  const std::string& failed_op() const { return failed_op_; }
  // Returns whether the job ended before its last step at the request of its launcher.
  bool stopped_early() const {
    return !host_.generation && !progress_.ended && steps_.load() < program_.schedule.steps;
  }

 protected:
  // Makes the communicators, which is collective; `world` is connected.
  JobRun(const Program& program, RankDevice& device, World& world, const ExecutorOptions& options);
  // Runs a body once for each of first, ..., end - 1. Throws like run().
  virtual void run_body(BodyId id, int64_t first, int64_t end) = 0;
  virtual void free_init() {}  // frees init's kernels, which will not run again

  // Called before a step, on one thread; may lower the number of steps.
  void begin_step(int64_t step);
  int64_t steps() const { return steps_.load(std::memory_order_acquire); }

  // Counts the step if it has updated nothing, and ends the run after too many such steps.
  void look_for_skip(StepRecord& record);
  void wait_for_commit();
  bool looks_for_skips() const { return program_.schedule.most_skips > 0; }

  // Records a step that ended at end_ns (0 = now), and fills in its times.
  void close_step(StepRecord record, uint64_t end_ns = 0);
  // Adds the loss and the results of one run of a body other than the step.
  void add_loss(double loss, std::vector<double> results) {
    losses_.push_back(loss);
    results_.push_back(std::move(results));
  }
  void record(int stream, const OpEvent& event);
  uint64_t bytes_sent() const;                        // by all communicators; call while none is active
  uint64_t bytes_put() const;                         // by puts
  void fail(std::exception_ptr error, const Op* op);  // any thread; keeps the first error that is not Aborted

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
  double watched_value(const Body& body) const;
  void watch(double value, int64_t step);
  void publish_step();

  std::vector<Communicator*> communicators_;
  std::set<PutChannel*> put_channels_;
  std::atomic<int64_t> steps_;
  std::mutex failure_mutex_;
  std::string failed_op_;
  uint64_t step_begin_ns_ = 0;
  int64_t skips_in_a_row_ = 0;
  checkpoint::Progress progress_;             // of the watched metric
  std::vector<double> losses_;                // losses of the current body's consecutive runs
  std::vector<std::vector<double>> results_;  // likewise; Body::results of each
  std::optional<StepRecord> unpublished_;     // record of a step that an evaluation follows
};

// Returns a description of an op: "all_gather of block2 forward".
std::string op_words(const Op& op);

}  // namespace prun
