// One step of a job on a cluster that need not exist.
#pragma once
#include <array>
#include <map>
#include <string>

#include "simulate/clock.h"

namespace prun::simulate {

struct SimulateOptions {
  bool every_rank = false;  // no rank stands for others
  bool keep_spans = false;
  bool only_memory = false;      // nothing is walked, and takes no time
  std::vector<double> slowness;  // with every_rank: what a rank's seconds of compute are multiplied by; empty: 1
};

struct ClassResult {
  int first_rank = 0, ranks = 0;
  int program = 0;                              // class of the job
  int64_t peak_bytes = 0;                       // the arena
  std::array<int64_t, kRoles> role_bytes = {};  // what it divides into
  double memory_bytes = 0;                      // of its device
  Usage usage;
  std::vector<OpSpan> spans;
};

struct Simulation {
  double step_s = 0;
  double model_flops = 0, flops = 0;  // of all ranks: the model's, and all products that run
  double peak_flops = 0;              // of all devices, at the dtype of compute
  int ranks = 0;
  std::vector<ClassResult> classes;
  // Means over ranks.
  double exposed_comm_s = 0, bubble_s = 0;
  std::array<double, kLevels> sent_bytes = {};  // by all ranks

  double tflops_per_device() const { return step_s > 0 ? model_flops / step_s / ranks * 1e-12 : 0; }
  double mfu() const { return peak_flops > 0 && step_s > 0 ? model_flops / step_s / peak_flops : 0; }
};

// What follows from the classes: FLOPs, means over ranks, bytes of all.
void add_up_classes(Simulation& simulation);

Simulation simulate(const Job& job, const Cluster& cluster, const SimulateOptions& options = {});

// The class that is nearest to its device's memory, or furthest beyond it.
const ClassResult& most_memory(const Simulation& simulation);
// Which ranks do not fit and by how much; "" where all do.
std::string too_large(const Simulation& simulation);

// "compute", "memory bandwidth", "launch of ops", "bus", "waiting for rank 3": what takes most of a class's step.
std::string limit_text(const Simulation& simulation, const Cluster& cluster, const ClassResult& of);

// What the seconds of a simulated step go into, op by op: compute by line of Lua, communication that nothing hides by
// collective and axis, waiting by what is waited for. Means over ranks, which sum to the step.
enum class PartKind : uint8_t {
  compute,  // ops that compute, as long as each takes by itself
  slowed,   // what they take longer beside transfers
  exposed,  // communication while nothing computes
  copy,     // between host and device, and nothing else
  waiting   // nothing runs: the pipeline's bubble, and waiting for ranks that come late
};

struct StepPart {
  PartKind kind = PartKind::compute;
  std::string op;    // its name; of waiting: what is waited for, "" for the end of the step
  std::string axis;  // of communication, and of waiting for it
  std::string site;  // of compute: the line of Lua
  auto operator<=>(const StepPart&) const = default;  // NOLINT(modernize-use-nullptr): of the comparison's 0
};

// `simulation` is of this job and cluster, with its spans (SimulateOptions::keep_spans).
std::map<StepPart, double> step_parts(const Job& job, const Cluster& cluster, const Simulation& simulation);

}  // namespace prun::simulate
