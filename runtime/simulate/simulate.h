// Simulates one step of a job on a cluster that need not exist.
#pragma once
#include <array>
#include <map>
#include <string>

#include "simulate/clock.h"

namespace prun::simulate {

struct SimulateOptions {
  bool every_rank = false;  // every rank has a colour of its own
  bool keep_spans = false;
  bool only_memory = false;      // computes memory only; skips the walk
  std::vector<double> slowness;  // with every_rank: factor of each rank's compute time; empty = 1
};

struct ClassResult {
  int first_rank = 0, ranks = 0;
  int program = 0;                              // index of the class in the job
  int64_t peak_bytes = 0;                       // size of the arena
  std::array<int64_t, kRoles> role_bytes = {};  // parts of the arena
  double memory_bytes = 0;                      // memory of its device
  Usage usage;
  std::vector<OpSpan> spans;
};

struct Simulation {
  double step_s = 0;
  double model_flops = 0, flops = 0;  // over all ranks: FLOPs of the model, and of all executed GEMMs
  double replicated_flops = 0;        // over all ranks: FLOPs of the model beyond the first rank that computes them
  double peak_flops = 0;              // peak of all devices in the compute dtype
  int ranks = 0;
  std::vector<ClassResult> classes;
  // Means over ranks.
  double exposed_comm_s = 0, bubble_s = 0;
  std::array<double, kLevels> sent_bytes = {};  // bytes sent by all ranks

  double tflops_per_device() const { return step_s > 0 ? model_flops / step_s / ranks * 1e-12 : 0; }
  double replicated_tflops_per_device() const { return step_s > 0 ? replicated_flops / step_s / ranks * 1e-12 : 0; }
  double mfu() const { return peak_flops > 0 && step_s > 0 ? model_flops / step_s / peak_flops : 0; }
};

// Derives the totals from the classes: FLOPs, means over ranks, bytes of all.
void add_up_classes(Simulation& simulation);

Simulation simulate(const Job& job, const Cluster& cluster, const SimulateOptions& options = {});

// Returns the class with the highest memory use relative to its device.
const ClassResult& most_memory(const Simulation& simulation);
// Describes the ranks that do not fit and the missing memory; "" if all fit.
std::string too_large(const Simulation& simulation);

// Returns the largest part of a class's step: "compute", "memory bandwidth", "launch of ops", "bus", "waiting for rank
// 3".
std::string limit_text(const Simulation& simulation, const Cluster& cluster, const ClassResult& of);

// Breakdown of a simulated step, op by op: compute by line of Lua, exposed communication by collective and axis,
// waiting by its cause. Means over ranks, which sum to the step.
enum class PartKind : uint8_t {
  compute,  // compute ops, by their undisturbed durations
  slowed,   // slowdown of compute by overlapped transfers
  exposed,  // communication while nothing computes
  copy,     // only copies between host and device
  waiting   // nothing runs: pipeline bubble, or late ranks
};

struct StepPart {
  PartKind kind = PartKind::compute;
  std::string op;                                     // name; for waiting: the awaited op, "" = the end of the step
  std::string axis;                                   // axis of communication, or of the awaited communication
  std::string site;                                   // line of Lua of a compute op
  auto operator<=>(const StepPart&) const = default;  // NOLINT(modernize-use-nullptr): of the comparison's 0
};

// `simulation` belongs to this job and cluster, and has spans (SimulateOptions::keep_spans).
std::map<StepPart, double> step_parts(const Job& job, const Cluster& cluster, const Simulation& simulation);

}  // namespace prun::simulate
