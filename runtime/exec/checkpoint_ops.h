// The ops that read and write checkpoints (compile/checkpoint.cc), and the state that they share in a rank.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "checkpoint/weights.h"
#include "checkpoint/writer.h"
#include "device/device.h"

namespace prun {

struct CheckpointOptions : checkpoint::WriterOptions {
  std::string memory;                               // a folder in host memory that also receives each commit; "" = none
  int64_t every = 0;                                // steps between commits to `folder`; 0 = the last one only
  std::string resume;                               // checkpoint that the run begins with; "" = none
  std::string base;                                 // base of adapters in `resume`; "" = the one that it names
  checkpoint::Take take = checkpoint::Take::state;  // otherwise no training run: `resume` may be any folder of weights
};

// The destination of commits: the disk, host memory, which a restart reads, or both.
class Commits {
 public:
  // Arguments and calls as for checkpoint::Writer.
  Commits(const CheckpointOptions& options, const Program& program, int rank, const std::function<bool()>& cancelled);
  void check();
  void wait();
  // `last`: no step follows, so this commit also goes to the disk, whatever its step.
  void start(const checkpoint::Moment& moment, bool last, const std::function<const std::byte*(TensorId)>& data);

 private:
  std::unique_ptr<checkpoint::Writer> disk_, memory_;
  int64_t every_;
};

struct CheckpointServices {
  std::unique_ptr<Commits> writer;                     // null: no checkpoints are written
  checkpoint::Progress progress;                       // of the watched metric, where the run begins
  std::function<checkpoint::Progress()> progress_now;  // null: no metric is watched
  std::function<int64_t()> steps;                      // steps that the job will run, as far as is known
  std::unique_ptr<checkpoint::Weights> weights;  // weights that the run begins with; null: the model's initial values
  uint64_t waited_ns = 0, copying_since_ns = 0;  // times of the checkpoint in progress
};

// Throws checkpoint_invalid, or mismatch if the checkpoint is not of the step that the program begins with.
std::shared_ptr<CheckpointServices> open_checkpoints(const CheckpointOptions& options, const Program& program, int rank,
                                                     std::function<bool()> aborted);

// Returns null if `op` is not one of these ops. `print` receives rows for --metrics.
std::unique_ptr<Kernel> make_checkpoint_kernel(const RankMemory& memory, const Op& op,
                                               const std::shared_ptr<CheckpointServices>& services,
                                               const std::function<void(const std::string&)>& print);

}  // namespace prun
