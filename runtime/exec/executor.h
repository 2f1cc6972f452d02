// Executes a rank's program: each stream is a thread that walks its list, waits on counters, calls the kernel.
//
// Everything is resolved before the first step: pointers, kernels, communicators. A step allocates nothing.
#pragma once
#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "comm/comm.h"
#include "device/device.h"
#include "exec/host_ops.h"
#include "exec/progress_counter.h"
#include "exec/recorder.h"

namespace prun {

struct ExecutorOptions {
  int rank = 0;
  int threads = 1;  // cores that a kernel may use
  int spins = 200;  // of a wait before it yields
  std::byte* arena = nullptr;
  RecorderHeader* recorder = nullptr;  // zeroed mapping with magic and capacity set
  std::function<bool()> aborted;       // the job is ending
  std::function<void(const std::string&)> print;
};

class Executor {
 public:
  // Makes all kernels and communicators; `world` is connected. Throws what they throw.
  Executor(const Program& program, const Device& device, World& world, const ExecutorOptions& options);

  // Runs the init body, then all steps, with evaluations between them. Throws the first error of any stream; the others
  // have then stopped.
  void run();
  // "all_gather of block2 (plans/zero3.lua:12)": what failed, for the message. Empty when nothing did.
  const std::string& failed_op() const { return failed_op_; }

 private:
  struct Lane {  // a stream at work
    const Stream* stream = nullptr;
    std::vector<std::unique_ptr<Kernel>> kernels;
    std::unique_ptr<ProgressCounter> done;
    uint64_t comm_ns = 0, exposed_ns = 0;  // of the step under way, by the lane's thread only
  };

  enum class Kind { init, step, eval, sync };
  struct Work {  // a body and how often it runs
    Kind kind;
    const Body& body;
    std::vector<Lane> lanes;
  };

  void make_communicators();
  std::vector<Lane> make_lanes(const Body& body);
  void run_body(Work& work, int64_t first, int64_t end);
  void walk(Work& work, int s, int64_t first, int64_t end);
  void evaluate(int64_t step);
  bool wait_edges(std::vector<Lane>& lanes, int s, const Op& op, int64_t step, uint64_t& ready);
  void finish_step(std::vector<Lane>& lanes, int64_t step);
  void finish_eval_batch();
  void publish(const StepRecord& record);
  uint64_t bytes_sent() const;
  double loss(int tensor) const;
  void fail(std::vector<Lane>& lanes, std::exception_ptr error, const Op& op);
  void record(int stream, const OpEvent& event);

  const Program& program_;
  const Device& device_;
  World& world_;
  ExecutorOptions options_;
  StepTable table_;
  RankMemory memory_;
  HostServices host_;
  Work init_, step_, eval_, sync_;
  std::vector<Communicator*> communicators_;
  std::set<PutChannel*> put_channels_;
  std::atomic<bool> cancelled_{false};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::string failed_op_;
  uint64_t step_begin_ns_ = 0, bytes_before_ = 0;
  double eval_losses_ = 0;    // sum over the batches of the evaluation under way
  StepRecord unpublished_{};  // of a step that is evaluated after
};

// "all_gather of block2 forward": an op in words.
std::string op_words(const Op& op);

}  // namespace prun
