// From measured samples to the figures of a cluster file.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ir/types.h"
#include "simulate/cluster.h"

namespace prun {

// All runs of ops that are alike, over all ranks.
struct OpSample {
  std::string op;
  Dtype dtype = Dtype::f32;
  double flops = 0, bytes = 0;
  bool product = false;  // its flops decide its time
  double seconds = 0;    // median
};

// The median; of two in the middle their geometric mean. `values` has at least one.
double middle_of(std::vector<double> values);

// By op and dtype: `launch_s`, then for products FLOP/s by the bytes of their tensors, for others bytes/s by them.
std::map<std::pair<std::string, Dtype>, simulate::OpRates> fit_ops(const std::vector<OpSample>& samples,
                                                                   double launch_s);

}  // namespace prun
