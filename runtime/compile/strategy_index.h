// Index of a plan's strategies by class of units, which all passes use.
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
  const StrategyUnit* offload = nullptr;       // keeps optimizer state in host memory
  bool recompute = false;                      // backward recomputes activations
  std::set<int> recompute_stages;              // pipeline stages where it does; empty = all
  bool recompute_whole = false;                // backward also recomputes activations that it does not need
  bool keeps_small_whole = false;              // parameters below a size, possibly 0, are not sharded
  bool synchronizes = false;                   // weights are averaged periodically

  bool recomputes(int stage) const {
    return recompute && (recompute_stages.empty() || recompute_stages.contains(stage));
  }
  // Returns the part that shards parameters; null = none. Throws plan_error if two do.
  const StrategyUnit* sharding() const;
  // Returns whether weights, instead of gradients, are averaged over the axis.
  bool synchronizes_over(const std::string& axis) const;
};

class StrategyIndex {
 public:
  explicit StrategyIndex(const Plan& plan);
  const ClassStrategies& of(const Unit& unit) const;
  // Returns whether the axis divides the data: the samples of a batch, or the tokens of each sample.
  bool splits_data(const std::string& axis) const;
  // Returns the stream that reduces gradients. Scalars use it, too, so that the compute stream waits for an edge, not
  // in a collective.
  const std::string& gradient_stream() const { return gradient_stream_; }

 private:
  const Plan& plan_;
  std::map<std::string, ClassStrategies> classes_;
  std::string gradient_stream_;
};

}  // namespace prun
