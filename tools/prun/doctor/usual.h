// What is usual between two ranks, beside which the doctor puts what it measures.
#pragma once
#include "doctor/check.h"

namespace prun::doctor {

// Rows of a pair: `where` is "" inside this host, or such as "node 0 to node 1". Speeds far from the usual ones warn.
Finding latency_finding(const std::string& transport, const std::string& where, double seconds);
Finding bandwidth_finding(const std::string& transport, const std::string& where, double bytes_per_s);

}  // namespace prun::doctor
