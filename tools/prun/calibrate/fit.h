// From measured samples to the figures of a cluster file.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "calibrate/probe.h"
#include "simulate/cluster.h"

namespace prun {

// The median; of two in the middle their geometric mean. `values` has at least one.
double middle_of(std::vector<double> values);

// By op and dtype: `launch_s`, then for products FLOP/s by the bytes of their tensors, for others bytes/s by them.
std::map<std::pair<std::string, Dtype>, simulate::OpRates> fit_ops(const std::vector<OpSample>& samples,
                                                                   double launch_s);

}  // namespace prun
