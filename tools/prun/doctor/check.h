// What `prun doctor` finds: a check tries something and says how that went, with the fix where it went wrong.
//
// A family of checks is a file and a line in the table of doctor.cc; a check is a row of its family.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "job/job_spec.h"

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

}  // namespace prun::doctor
