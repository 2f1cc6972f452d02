// Ops that the host runs on every device: the next batch, print, and copies between its arenas.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "device/device.h"
#include "exec/checkpoint_ops.h"
#include "exec/generation_ops.h"

namespace prun {

// A data file mapped for reading; shared by the kernels of a rank.
class Dataset {
 public:
  // Throws usage_error when the file is gone or has another size than the program was compiled for.
  explicit Dataset(const DataSource& source);
  ~Dataset();
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;
  const uint8_t* bytes() const { return bytes_; }
  int64_t size() const { return size_; }  // without the header

 private:
  const uint8_t* mapping_ = nullptr;
  const uint8_t* bytes_ = nullptr;
  int64_t mapped_ = 0, size_ = 0;
};

// Begins a line of a rank that is meant for --metrics, not for the user.
inline constexpr char kForMetrics = '\x1e';

struct HostServices {
  Table<BodyId, std::shared_ptr<Dataset>> datasets;  // null: the body reads none
  std::function<void(const std::string&)> print;     // a whole line
  std::shared_ptr<CheckpointServices> checkpoints;
  std::shared_ptr<GenerationServices> generation;  // null: the job trains
};

HostServices open_host_services(const Program& program, std::function<void(const std::string&)> print);

// run() throws Error on data that the plan cannot use (a token outside the vocabulary).
std::unique_ptr<Kernel> make_host_kernel(const RankMemory& memory, const Op& op, const HostServices& services);

// A kernel for any op but communication where the device computes in the host's memory: its own for compute, copies
// from one arena to the other for load and store. A lowered op has no kernel: aborts.
std::unique_ptr<Kernel> make_local_kernel(const Device& device, const RankMemory& memory, const Op& op,
                                          const HostServices& services, int threads);

// "[1, 2, 3]", nested for more dims; the first `limit` elements of the flattened tensor when limit >= 0.
std::string tensor_text(const Tensor& tensor, const void* data, int64_t limit = -1);

}  // namespace prun
