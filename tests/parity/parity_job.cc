// Builds a job from a plan's path and reads losses, without launching ranks.
#include "tests/parity/parity_job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "base/cores.h"
#include "compile/compile.h"
#include "ir/plan_reader.h"
#include "kernels/devices.h"
#include "script/script.h"
#include "verify/verify.h"

namespace prun::test {

Job parity_job(int ranks, const Settings& settings, const std::string& device_name, const std::string& plan_path,
               bool fused, int64_t check_replicas, int64_t vocabulary_multiple) {
  ScriptOptions script;
  script.plan_path = PRUN_SOURCE_DIR "/" + plan_path;
  script.lua_dir = PRUN_SOURCE_DIR "/lua";
  script.world = ranks;
  script.settings = settings;
  const Plan plan = read_plan(run_script(script).plan_cbor);
  const std::unique_ptr<Device> device = open_device(device_name);
  CompileOptions options;
  options.device = device_name;
  options.check_replicas = check_replicas;
  options.vocabulary_multiple = vocabulary_multiple;
  options.workspace_bytes = [&](const Program& program, const Op& op) { return device->workspace_bytes(program, op); };
  options.joins_steps = device->queue() != nullptr;
  options.fuses = [&, fused](std::string_view kind) { return fused || device->fuses(kind); };
  Job job = compile(plan, options);
  require_valid(job, 0);
  return job;
}

std::vector<double> losses_of(const VirtualRun& run) {
  std::vector<double> losses;
  for (const std::vector<double>& ranks : run.losses) {
    for (const double loss : ranks) EXPECT_EQ(loss, ranks.front()) << "step " << losses.size() << ": ranks disagree";
    losses.push_back(ranks.front());
  }
  return losses;
}

std::vector<double> interpret(int ranks, const Settings& settings, const std::string& device_name) {
  const Job job = parity_job(ranks, settings, device_name);
  VirtualOptions options;
  options.threads = threads_per_rank(ranks);
  return losses_of(run_virtual_ranks(job, *open_device(device_name), options));
}

}  // namespace prun::test
