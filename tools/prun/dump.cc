// prun dump PLAN: the program as text, which golden tests compare; --after PASS: the result of that pass instead;
// --format chakra: for simulators.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "calibrate/algorithm_costs.h"
#include "chakra/chakra.h"
#include "commands.h"
#include "job/algorithm_choice.h"
#include "job/build.h"
#include "program_json.h"

namespace prun {

int dump_command(Options& options) {
  const Job job = build_job(options.job, options.job.ranks());
  if (options.chakra)
    write_chakra(written_out(job), options.traces);
  else if (options.json)
    fmt::print("{}\n", job_json(written_out(job)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  else if (options.job.dump_after.empty()) {  // else build_job has printed what was asked for
    fmt::print("{}", dump_job(job));
    if (const std::string algorithms = chosen_algorithms(job, calibrated_algorithm_costs()); !algorithms.empty())
      fmt::print("by calibration: {}\n", algorithms);
  }
  return 0;
}

}  // namespace prun
