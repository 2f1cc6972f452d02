// prun doctor: checks the requirements of a run and reports OK, WARN or FAIL for each, with the fix. The exit code is 1
// if a check fails; with --device it is 2 if ranks could not compute there, as for a run.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cluster_hosts.h"
#include "doctor/check.h"
#include "job/device_check.h"
#include "job_options.h"
#include "standard_streams.h"
#include "version.h"

namespace prun {
namespace doctor {

const char* status_name(Status status) {
  static constexpr const char* kNames[] = {"ok", "absent", "warn", "fail"};
  return kNames[static_cast<int>(status)];
}

}  // namespace doctor

namespace {

using doctor::Finding;
using doctor::Findings;
using doctor::Status;

struct Family {
  const char* name;
  Findings (*check)(const doctor::DoctorOptions& options);
};
// Families that fork ranks come first, because loaded plugins and devices may start threads.
const Family kFamilies[] = {
    {"nodes", doctor::hosts},
    {"machine", doctor::machine},
    {"limits", doctor::limits},
    {"between ranks of this host", doctor::transports},
    {"network", doctor::network},
    {"checkpoints", doctor::checkpoint_folder},
    {"environment", doctor::environment},
    {"transports", doctor::plugins},
};

struct Examined {
  std::vector<std::pair<std::string, Findings>> families;
  std::vector<DeviceReport> devices;

  Status worst() const {
    Status worst = Status::ok;
    for (const auto& [name, findings] : families)
      for (const Finding& finding : findings) worst = std::max(worst, finding.status);
    return worst;
  }
};

Examined examine(const doctor::DoctorOptions& options) {
  Examined all;
  for (const Family& family : kFamilies) all.families.emplace_back(family.name, family.check(options));
  all.devices = doctor::probe_devices(options);
  all.families.emplace_back("devices", doctor::devices(all.devices));
  return all;
}

const char* word_of(Status status) {
  static constexpr const char* kWords[] = {"OK", "-", "WARN", "FAIL"};
  return kWords[static_cast<int>(status)];
}

void print_all(const Examined& all) {
  fmt::print("prun {} ({}, GCC {})\n", version_text(), PRUN_BUILD_TYPE, __VERSION__);
  int counts[4] = {};
  for (const auto& [name, findings] : all.families) {
    if (findings.empty()) continue;
    fmt::print("{}\n", name);
    size_t width = 14;
    for (const Finding& finding : findings) width = std::max(width, finding.name.size());
    for (const Finding& finding : findings) {
      ++counts[static_cast<int>(finding.status)];
      fmt::print("  {:<4}  {:<{}}  {}\n", word_of(finding.status), finding.name, width, finding.text);
      for (const std::string& detail : finding.details) fmt::print("  {:<4}  {:<{}}  {}\n", "", "", width, detail);
      if (finding.status >= Status::warn && !finding.fix.empty())
        fmt::print("  {:<4}  {:<{}}  fix: {}\n", "", "", width, finding.fix);
    }
  }
  fmt::print("{} well, {}, {}\n", counts[0], counted(counts[2], "warning"), counted(counts[3], "failure"));
}

nlohmann::ordered_json finding_json(const std::string& family, const Finding& finding) {
  nlohmann::ordered_json row = {{"family", family},
                                {"name", finding.name},
                                {"status", status_name(finding.status)},
                                {"text", finding.text},
                                {"fix", finding.fix}};
  if (finding.number >= 0) row["number"] = finding.number;
  if (!finding.details.empty()) row["details"] = finding.details;
  return row;
}

// Prints the report. "machine" and "transports" repeat the checks of these families by name.
void print_json(const Examined& all) {
  using Rows = nlohmann::ordered_json;
  Rows checks = Rows::array(), here = Rows::object(), transports = Rows::array();
  for (const auto& [family, findings] : all.families)
    for (const Finding& finding : findings) {
      checks.push_back(finding_json(family, finding));
      if (family == "machine" || family == "limits")
        here[finding.name] = {{"number", finding.number}, {"text", finding.text}, {"advice", finding.fix}};
      if (family == "transports")
        transports.push_back({{"name", finding.name}, {"status", status_name(finding.status)}, {"text", finding.text}});
    }
  const Rows out = {{"prun", PRUN_VERSION},
                    {"build", PRUN_BUILD_TYPE},
                    {"worst", status_name(all.worst())},
                    {"checks", checks},
                    {"machine", here},
                    {"transports", transports},
                    {"devices", doctor::devices_json(all.devices)}};
  fmt::print("{}\n", out.dump(-1, ' ', false, Rows::error_handler_t::replace));
}

class Doctor final : public Command {
 public:
  void declare(OptionTable& table) override;
  void take_operands(std::vector<std::string>& operands) override {
    refuse_operands("doctor", operands, "it looks at this machine");
  }
  void settle() override;
  int run() override;
  JobSpec* job() override { return &options_.job; }

 private:
  doctor::DoctorOptions options_;
  std::string cluster_;
};

void Doctor::declare(OptionTable& table) {
  JobSpec& job = options_.job;
  option::nproc(table, job);
  table.text("--cluster", "FILE", cluster_,
             "a cluster file whose `nodes:` name hosts: they are the nodes, and this machine is one of them");
  option::transport(table, job);
  option::device(table, job);
  option::ranks_per_device(table, job);
  table.text("--checkpoint", "DIR", job.checkpoint.folder, "try this folder, too: write, fsync, rename, space, speed");
  option::nnodes(table, job);
  option::node_rank(table, job);
  option::rendezvous(table, job);
  option::secret_file(table, job);
  option::encrypt(table, job);
  option::interface(table, job);
  option::timeout(table, job);
}

void Doctor::settle() {
  JobSpec& job = options_.job;
  if (!cluster_.empty()) options_.hosts = take_place_among_hosts(job, cluster_, given_place(line_));
  options_.json = line_.json;
  options_.device_given = line_.given("--device");
  require_nodes(line_, job.launch);
  pass_to_transports(job);
  check_ranks(job);
  check_options(job.launch);
  check_transport_hint(job);
}

int Doctor::run() {
  const Examined all = examine(options_);
  options_.json ? print_json(all) : print_all(all);
  flush_output();  // flushes the report before an error, which goes to standard error
  if (options_.device_given)
    for (const DeviceReport& report : all.devices)
      if (report.name == options_.job.device) require_devices(options_.job, report);
  return static_cast<int>(all.worst() == Status::fail ? Exit::check_failed : Exit::ok);
}

}  // namespace

std::unique_ptr<Command> make_doctor() { return std::make_unique<Doctor>(); }

}  // namespace prun
