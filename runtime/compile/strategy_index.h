// What a plan's strategies say about each class of units, indexed once: all passes look it up here.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ir/plan.h"

namespace prun {

// The hooks and options of all strategies for one class of units, in the order of the plan's list. One exception: the
// hooks of the strategy that shards parameters precede the hooks of strategies that all-reduce gradients.
struct ClassStrategies {
  struct Part {
    const Strategy* strategy;
    const StrategyUnit* unit;
  };
  struct Hooked {
    int strategy;  // index in Plan::strategies
    const Hook* hook;
  };
  std::vector<Part> parts;
  std::vector<Hooked> hooks;
  std::set<int> unused;                        // one-rank strategies whose parameters another strategy shards
  const HookAction* reduce_scatter = nullptr;  // the first one of any hook
  const StrategyUnit* offload = nullptr;       // keeps optimizer state in the host's memory
  bool recompute = false;                      // backward computes activations once more
  bool recompute_whole = false;                // also those that it has no use for
  bool keeps_small_whole = false;              // parameters below a size, which may be 0, are not sharded
  bool synchronizes = false;                   // weights are averaged every so many steps

  // The part that shards parameters; null: none does. Throws when two do.
  const StrategyUnit* sharding() const;
  // Whether weights are averaged over the axis every so many steps, and so not gradients in each.
  bool synchronizes_over(const std::string& axis) const;
};

class StrategyIndex {
 public:
  explicit StrategyIndex(const Plan& plan);
  const ClassStrategies& of(const Unit& unit) const;
  // Whether the axis divides the data: the samples of a batch, or the tokens of each sample.
  bool splits_data(const std::string& axis) const;
  // The stream on which gradients are reduced; scalars travel there too, so that the compute stream waits for an edge
  // and not inside a collective.
  const std::string& gradient_stream() const { return gradient_stream_; }

 private:
  const Plan& plan_;
  std::map<std::string, ClassStrategies> classes_;
  std::string gradient_stream_;
};

}  // namespace prun
