// Sizes with which a script records its plan instead of its own: what runtime/prove runs is the same plan, made small;
// what a generation runs is its model, for one sample.
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace prun {

struct PlanSizes {
  std::map<std::string, int> axes;  // every axis of the plan's mesh
  int microbatches = 1;             // of a step
  int64_t batch = 1;                // samples of a step, over all ranks
  bool alone = false;               // without strategies: what one rank would train
  int tensor_ranks = 0;  // > 0: for a generation, where so many ranks split the weights and every other axis has one;
                         // `axes` is not looked at, and no data need exist
};

}  // namespace prun
