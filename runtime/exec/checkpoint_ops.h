// The ops that read a checkpoint and write one (compile/checkpoint.cc), and what they share in a rank.
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
  std::string memory;         // a folder in the host's memory that gets each commit, too; "": none
  int64_t every = 0;          // steps between commits to `folder`; 0: the last one only
  std::string resume;         // the checkpoint that the run begins with; "": none
  bool weights_only = false;  // a run that is no training: `resume` may be any folder of weights
};

// Where commits go: to the disk, to the host's memory, which a restart reads, or to both.
class Commits {
 public:
  // As Writer, whose calls these are.
  Commits(const CheckpointOptions& options, const Program& program, int rank, const std::function<bool()>& cancelled);
  void check();
  void wait();
  // `last`: no step follows, so the disk gets this one whenever it comes.
  void start(int64_t step, int64_t skipped, bool last, const std::function<const std::byte*(TensorId)>& data);

 private:
  std::unique_ptr<checkpoint::Writer> disk_, memory_;
  int64_t every_;
};

struct CheckpointServices {
  std::unique_ptr<Commits> writer;               // null: no checkpoints are taken
  std::function<int64_t()> steps;                // that the job does, as far as is known
  std::unique_ptr<checkpoint::Weights> weights;  // that the run begins with; null: the model's initial values
  uint64_t waited_ns = 0, copying_since_ns = 0;  // of the checkpoint that is being taken
};

// Throws checkpoint_invalid, or mismatch where the checkpoint is not of the step that the program begins with.
std::shared_ptr<CheckpointServices> open_checkpoints(const CheckpointOptions& options, const Program& program, int rank,
                                                     std::function<bool()> aborted);

// Null: `op` is none of them. `print`: takes rows for --metrics.
std::unique_ptr<Kernel> make_checkpoint_kernel(const RankMemory& memory, const Op& op,
                                               const std::shared_ptr<CheckpointServices>& services,
                                               const std::function<void(const std::string&)>& print);

}  // namespace prun
