// prun dump PLAN: prints the program as text, which golden tests compare; --after PASS prints the result of that pass
// instead; --format chakra writes traces for simulators.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "calibrate/algorithm_costs.h"
#include "chakra/chakra.h"
#include "job/algorithm_choice.h"
#include "job/build.h"
#include "job/pass_watch.h"
#include "job_options.h"
#include "program_json.h"

namespace prun {
namespace {

class Dump final : public PlanCommand {
 public:
  void declare(OptionTable& table) override;
  void settle() override;
  int run() override;

 private:
  void read_format(const std::string& text);

  bool json_ = false, chakra_ = false;
  std::string traces_;  // prefix of the chakra files
};

void Dump::read_format(const std::string& text) {
  const std::vector<std::string> formats = {"text", "json", "chakra"};
  if (std::find(formats.begin(), formats.end(), text) == formats.end())
    throw usage_error(fmt::format("--format is {}, not '{}'{}", join(formats, ", "), text, if_near(text, formats)));
  json_ = text == "json";
  chakra_ = text == "chakra";
}

void Dump::declare(OptionTable& table) {
  declare_plan(table, job_);
  table.group("ranks and devices");
  option::device(table, job_);
  option::device_options(table, job_);
  option::nnodes(table, job_);
  declare_compilation(table, job_);
  option::checkpoint_every(table, job_);
  table.group("output");
  table.parsed(
      "--after", "PASS",
      [this](const std::string& text) {
        check_pass_name(text);
        job_.dump_after = text;
      },
      "what the compiler has after this pass: graph, schedule or program (--time-passes names all)");
  table.parsed(
      "--format", "text|json|chakra", [this](const std::string& text) { read_format(text); },
      "chakra: execution traces of a step, PREFIX.RANK.et, that simulators such as ASTRA-sim replay (default: text)");
  table.text("--out", "PREFIX", traces_, "chakra: the prefix of the files' names");
}

void Dump::settle() {
  json_ = json_ || line_.json;
  check_ranks(job_);
  require_plan();
  if ((json_ || chakra_) && !job_.dump_after.empty())
    throw usage_error(
        fmt::format("--after prints text and cannot be combined with --{}", json_ ? "json" : "format chakra"));
  if (chakra_ == traces_.empty())
    throw usage_error("--format chakra and --out PREFIX go together: files PREFIX.0.et and on, one a rank");
}

int Dump::run() {
  const Job job = build_job(job_, job_.ranks());
  if (chakra_)
    write_chakra(written_out(job), traces_);
  else if (json_)
    fmt::print("{}\n", job_json(written_out(job)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  else if (job_.dump_after.empty()) {  // otherwise build_job has printed the pass
    fmt::print("{}", dump_job(job));
    if (const std::string algorithms = chosen_algorithms(job, calibrated_algorithm_costs()); !algorithms.empty())
      fmt::print("by calibration: {}\n", algorithms);
  }
  return 0;
}

}  // namespace

std::unique_ptr<Command> make_dump() { return std::make_unique<Dump>(); }

}  // namespace prun
