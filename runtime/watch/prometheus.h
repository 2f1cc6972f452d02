// Prometheus' text format (https://prometheus.io/docs/instrumenting/exposition_formats) of running jobs, for
// node_exporter's textfile collector: `prun status --prometheus` opens no port.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace prun {

// `jobs` as `prun status --json` shows them. All metrics are gauges, and what a job does not know is left out.
std::string prometheus_text(const std::vector<nlohmann::ordered_json>& jobs);

}  // namespace prun
