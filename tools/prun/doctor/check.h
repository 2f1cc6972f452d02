// Results of `prun doctor`: a check performs an action and reports the outcome, with a fix on failure.
//
// A family of checks is a file and a line in the table of doctor.cc; a check is a row of its family.
#pragma once
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "job/device_probe.h"
#include "job/job_spec.h"
#include "launch/launch.h"

namespace prun::doctor {

enum class Status { ok, absent, warn, fail };  // absent: missing and not required
const char* status_name(Status status);        // "ok", "absent", "warn", "fail"

struct Finding {
  std::string name;  // "memory", "shm latency"
  Status status = Status::ok;
  std::string text;                  // the outcome
  std::string fix;                   // for a warning or a failure
  std::vector<std::string> details;  // lines printed below it
  int64_t number = -1;               // bytes, a count, nanoseconds or bytes/s; -1: none
};
using Findings = std::vector<Finding>;

struct DoctorOptions {
  JobSpec job;
  std::vector<std::string> hosts;  // from --cluster, by node
  bool device_given = false;       // --device was given
  bool json = false;
};

Findings machine(const DoctorOptions& options);
Findings limits(const DoctorOptions& options);
Findings plugins(const DoctorOptions& options);
Findings transports(const DoctorOptions& options);  // forks, so it runs before checks that start threads
Findings network(const DoctorOptions& options);
Findings hosts(const DoctorOptions& options);  // with --nnodes: runs on all nodes together; node 0 has the report
Findings checkpoint_folder(const DoctorOptions& options);  // with --checkpoint
Findings environment(const DoctorOptions& options);

// Network facts for the checks of a single host and of several hosts.
int64_t mtu_of(const std::string& interface);  // -1: unknown
std::string host_name();

// Returns the rows of a pair of ranks. `where` is "" inside this host, otherwise e.g. "node 0 to node 1". Values far
// from the usual ones are warnings.
Finding latency_finding(const std::string& transport, const std::string& where, double seconds);
Finding bandwidth_finding(const std::string& transport, const std::string& where, double bytes_per_s);

// Compute devices: their presence and properties, and whether ranks could use them.
std::vector<DeviceReport> probe_devices(const DoctorOptions& options);
Findings devices(const std::vector<DeviceReport>& reports);
nlohmann::json devices_json(const std::vector<DeviceReport>& reports);

// Latency and bandwidth between two members of a group.
inline constexpr int64_t kPairBytes = int64_t{4} << 20;  // bytes of the large message

// Measurements. They are collective over the two members only, and take about 0.3 s; `buffer` has kPairBytes.
double pair_latency(Communicator& group, int one, int other, char* buffer);    // s, one way, 8 bytes, median
double pair_bandwidth(Communicator& group, int one, int other, char* buffer);  // bytes/s, one way, kPairBytes, median

// Lead of the other's clock in seconds, measured by member `one`; `error`: bound of its error.
struct ClockOffset {
  double seconds = 0, error = 0;
};
ClockOffset clock_offset(Communicator& group, int one, int other, char* buffer);

// A job of the doctor itself: ranks report findings, and the outcome has the job's failure, if any.
void report(LauncherClient& launcher, const Finding& finding);  // called by a rank; sends it to node 0

struct JobOutcome {
  int code = 0;
  Findings reported;
  std::string failure;  // first line of the failure that ended the job
};
// Joins, launches and waits. Join errors are returned in the outcome, too.
JobOutcome run_job(const LaunchOptions& launch, const std::string& job, const Launch::RankMain& rank_main);

}  // namespace prun::doctor
