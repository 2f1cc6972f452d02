// Fits the figures of a cluster file to measured samples.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ir/types.h"
#include "simulate/cluster.h"

namespace prun {

// All runs of equal ops, over all ranks.
struct OpSample {
  std::string op;
  Dtype dtype = Dtype::f32;
  double flops = 0, bytes = 0;
  bool product = false;  // a GEMM: its FLOPs determine its time
  double seconds = 0;    // median
};

// Returns the median; of an even number of values, the geometric mean of the two middle ones. `values` is not empty.
double middle_of(std::vector<double> values);

// Returns rates by op and dtype: `launch_s`, then FLOP/s of GEMMs as a function of their tensors' bytes, bytes/s of all
// others.
std::map<std::pair<std::string, Dtype>, simulate::OpRates> fit_ops(const std::vector<OpSample>& samples,
                                                                   double launch_s);

}  // namespace prun
