#include "exec/checkpoint_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "checkpoint/base.h"
#include "checkpoint/index.h"
#include "checkpoint/linear_weights.h"
#include "exec/host_ops.h"
#include "exec/recorder.h"
#include "ir/ops.h"
#include "ir/state.h"

namespace prun {
namespace {

template <class Run>
class Called final : public Kernel {
 public:
  explicit Called(Run run) : run_(std::move(run)) {}
  void run() override { run_(); }

 private:
  Run run_;
};
template <class Run>
std::unique_ptr<Kernel> kernel(Run run) {
  return std::make_unique<Called<Run>>(std::move(run));
}

// Loads all parts of one tensor; the rest is padding, which init leaves zero, too. `partial`: parameters that the
// weights lack keep the values that init_params has written.
void load(const CheckpointServices& services, const RankMemory& memory, TensorId of, TensorId into, bool partial) {
  const Program& program = *memory.program;
  std::byte* to = static_cast<std::byte*>(memory.data(into));
  if (!partial) std::memset(to, 0, program.tensors[into].bytes());
  for (const StateTensor& state : program.state) {
    const checkpoint::Weights& weights = *services.weights;
    if (state.tensor != of || (partial && !weights.tensors.contains(state.name))) continue;
    const bool of_each_rank = weights.tensors.at(state.name).shape.size() > state.shape.size();
    for (const Box& box : held_boxes(program, state, memory.rank))
      weights.read(state.name, of_each_rank ? in_saved(program, state, memory.rank, box) : box,
                   program.tensors[into].dtype, to);
  }
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool keeps_checkpoints(const Program& program) {
  return std::any_of(program.bodies.begin(), program.bodies.end(),
                     [](const Body& body) { return body.name == "checkpoint"; });
}

checkpoint::WriterOptions in_memory(const CheckpointOptions& options) {
  checkpoint::WriterOptions memory = options;
  memory.folder = options.memory;
  memory.keep = 1;
  memory.read.clear();
  memory.marks_best = false;
  memory.lineage = {options.lineage.run, 1, {}};  // only this job uses its folder
  memory.abandoning.reset();                      // retrying does not help: full memory remains full
  return memory;
}

}  // namespace

Commits::Commits(const CheckpointOptions& options, const Program& program, int rank,
                 const std::function<bool()>& cancelled)
    : every_(options.every) {
  checkpoint::WriterOptions on_disk = options;
  on_disk.apart.reset();
  if (!options.folder.empty()) disk_ = std::make_unique<checkpoint::Writer>(on_disk, program, rank, cancelled);
  if (!options.memory.empty())
    memory_ = std::make_unique<checkpoint::Writer>(in_memory(options), program, rank, cancelled);
}

void Commits::check() {
  if (disk_) disk_->check();
  if (memory_) memory_->check();
}

void Commits::wait() {
  if (disk_) disk_->wait();
  if (memory_) memory_->wait();
}

void Commits::start(const checkpoint::Moment& moment, bool last,
                    const std::function<const std::byte*(TensorId)>& data) {
  if (memory_) memory_->start(moment, last, data);
  if (disk_ && (!memory_ || last || (every_ > 0 && moment.step % every_ == 0))) disk_->start(moment, last, data);
}

std::shared_ptr<CheckpointServices> open_checkpoints(const CheckpointOptions& options, const Program& program, int rank,
                                                     std::function<bool()> aborted) {
  auto services = std::make_shared<CheckpointServices>();
  if (keeps_checkpoints(program) && options.folder.empty() && options.memory.empty())
    throw usage_error(
        "the job keeps checkpoints, and this node was started without --checkpoint DIR: give all nodes the "
        "same folder");
  if (!options.folder.empty() || !options.memory.empty())
    services->writer = std::make_unique<Commits>(options, program, rank, aborted);
  const auto begin_with = [&](checkpoint::Weights weights) {
    checkpoint::take_linear_weights(weights, checkpoint::linear_weights(program));
    services->weights = std::make_unique<checkpoint::Weights>(std::move(weights));
    return services;
  };
  const bool weights_only = options.take != checkpoint::Take::state;
  if (weights_only && (!program.adapters.any() || !checkpoint::holds_adapters(options.resume)))
    return begin_with(checkpoint::open_weights(options.resume, options.base, false, options.take));
  if (options.resume.empty())
    return program.initial_weights.empty()
               ? services
               : begin_with(checkpoint::open_initial(program.initial_weights, program.adapters));
  const checkpoint::Index index = checkpoint::read_index(options.resume);
  if (!weights_only && index.position.step != program.schedule.begin.step)
    throw Error(Exit::mismatch, fmt::format("{} is the state after {} steps here, and after {} where the job began: "
                                            "all nodes need the same folder",
                                            options.resume, index.position.step, program.schedule.begin.step));
  services->progress = index.progress;
  const std::string &there = index.numerics.implementation, &here = options.numerics.implementation;
  if (rank == 0 && !there.empty() && there != here)
    fmt::print(stderr,
               "prun: the checkpoint was computed by other kernels ({}; here {}): the same to rounding, not bits\n",
               there, here);
  return begin_with(checkpoint::open_with_base(options.resume, options.take, program.adapters.base));
}

std::unique_ptr<Kernel> make_checkpoint_kernel(const RankMemory& memory, const Op& op,
                                               const std::shared_ptr<CheckpointServices>& services,
                                               const std::function<void(const std::string&)>& print) {
  const auto need = [&](const auto& service) {
    PRUN_CHECK(services != nullptr && service(*services), std::string(op.def->name) + " without a checkpoint");
  };
  if (op.is(ops::load_state)) {
    need([](const CheckpointServices& s) { return s.weights != nullptr; });
    const TensorId of = static_cast<int>(op.attrs.integer("state"));
    const bool partial = op.attrs.integer("partial") != 0;
    return kernel([services, memory, of, into = op.writes[0], partial] { load(*services, memory, of, into, partial); });
  }
  if (op.is(ops::await_checkpoint)) {
    need([](const CheckpointServices& s) { return s.writer != nullptr; });
    return kernel([services] {
      const uint64_t begin = now_ns();
      services->writer->wait();
      services->copying_since_ns = now_ns();
      services->waited_ns = services->copying_since_ns - begin;
    });
  }
  if (!op.is(ops::save_state)) return nullptr;
  need([](const CheckpointServices& s) { return s.writer != nullptr; });
  // The tensors are in host memory on every device, and the step table has already advanced past the last step.
  return kernel([services, memory, print] {
    if (memory.rank == 0 && print)
      print(fmt::format(
          "{}{{\"wall_time\":{:.3f},\"event\":\"checkpoint_copied\",\"step\":{},\"waited_s\":{:.6f},"
          "\"copied_s\":{:.6f}}}",
          kForEvents, seconds_since_1970(), memory.table->step, static_cast<double>(services->waited_ns) * 1e-9,
          static_cast<double>(now_ns() - services->copying_since_ns) * 1e-9));
    const int64_t step = memory.table->step;
    const auto progress = services->progress_now ? services->progress_now() : checkpoint::Progress();
    const checkpoint::Moment moment{step, memory.table->skipped, progress};
    services->writer->start(moment, step >= services->steps(), [memory](TensorId tensor) {
      const Tensor& t = memory.program->tensors[tensor];
      return memory.data(memory.program->buffers[t.buffer]) + t.byte_offset;
    });
  });
}

}  // namespace prun
