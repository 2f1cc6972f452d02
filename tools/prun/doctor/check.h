// What `prun doctor` finds: a check tries something and says how that went, with the fix where it went wrong.
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

enum class Status { ok, absent, warn, fail };  // absent: not there, and nobody needs it to be
const char* status_name(Status status);        // "ok", "absent", "warn", "fail"

struct Finding {
  std::string name;  // "memory", "shm latency"
  Status status = Status::ok;
  std::string text;                  // what was found
  std::string fix;                   // of a warning or a failure
  std::vector<std::string> details;  // lines below it
  int64_t number = -1;               // bytes, a count, nanoseconds or bytes a second; -1: none
};
using Findings = std::vector<Finding>;

struct DoctorOptions {
  JobSpec job;
  std::vector<std::string> hosts;  // of --cluster, by node
  bool device_given = false;       // this device is asked about
  bool json = false;
};

Findings machine(const DoctorOptions& options);
Findings limits(const DoctorOptions& options);
Findings plugins(const DoctorOptions& options);
Findings transports(const DoctorOptions& options);  // forks, so before what starts threads
Findings network(const DoctorOptions& options);
Findings hosts(const DoctorOptions& options);              // with --nnodes: all nodes together; the report is node 0's
Findings checkpoint_folder(const DoctorOptions& options);  // with --checkpoint
Findings environment(const DoctorOptions& options);

// What checks of one host and of several ask about networks.
int64_t mtu_of(const std::string& interface);  // -1: unknown
std::string host_name();

// Rows of a pair: `where` is "" inside this host, or such as "node 0 to node 1". Speeds far from the usual ones warn.
Finding latency_finding(const std::string& transport, const std::string& where, double seconds);
Finding bandwidth_finding(const std::string& transport, const std::string& where, double bytes_per_s);

// Devices that compute: which are there, what they are, and whether ranks could use them.
std::vector<DeviceReport> probe_devices(const DoctorOptions& options);
Findings devices(const std::vector<DeviceReport>& reports);
nlohmann::json devices_json(const std::vector<DeviceReport>& reports);

// Latency and bandwidth between two members of a group.
inline constexpr int64_t kPairBytes = int64_t{4} << 20;  // of the large message

// Called by both members, and by no other; `buffer` has kPairBytes. About a third of a second.
double pair_latency(Communicator& group, int one, int other, char* buffer);    // s, one way, 8 bytes, median
double pair_bandwidth(Communicator& group, int one, int other, char* buffer);  // bytes/s, one way, kPairBytes, median

// How far the other's clock is ahead, in seconds, as member `one` sees it; `error`: by how much that may be wrong.
struct ClockOffset {
  double seconds = 0, error = 0;
};
ClockOffset clock_offset(Communicator& group, int one, int other, char* buffer);

// A job of the doctor's own: ranks that report findings, and what ended them where they could not.
void report(LauncherClient& launcher, const Finding& finding);  // by a rank; it reaches node 0

struct JobOutcome {
  int code = 0;
  Findings reported;
  std::string failure;  // the first line of what ended it
};
// Joins, launches and waits. Errors of joining are in the outcome, too.
JobOutcome run_job(const LaunchOptions& launch, const std::string& job, const Launch::RankMain& rank_main);

}  // namespace prun::doctor
