// Tells a difference: of which tensor, what made it on that rank, at which line, and what it looks like.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "exec/virtual_ranks.h"
#include "prove/compare.h"
#include "prove/twins.h"

namespace prun {

struct Explanation {
  std::string text;  // lines, without the error's first
  std::optional<Site> site;
};

// `run` with `options`, once more, shows what made the tensor; what microbatches and ranks contribute, one rank that
// trains them apart.
Explanation explain(const Plan& plan, const RecordPlan& record, const Twins& twins, const RunPair& pair,
                    const VirtualOptions& options, const Difference& difference);

// When a loss differs: the first activation of forward that is no part of what one rank has, whole, a shard along some
// axes, or a part of a sum.
struct FirstActivation {
  std::string name;
  int rank = 0;
  Op op;  // that made it
  std::string looks;
};

// Of `body`, by a run of the twins with `options`. None: all activations that have one rank's shape are parts of it.
std::optional<FirstActivation> first_activation(const Twins& twins, const VirtualOptions& options, BodyId body);

// Numbers that a mistake would give instead of the right ones, up to a factor.
struct Suspect {
  std::string text;  // "what microbatch 2 alone would give"
  std::vector<double> values;
};

struct NamedFactor {
  double factor = 1;
  std::string text;  // "a sum over dp, where the average over its 2 ranks is due"
};

// What a wrong tensor looks like beside the right one: a factor, a missing summand, another tensor, a permutation.
// `scale`: the largest number of that kind, by which equality is meant. Never empty.
std::string looks_like(const std::vector<double>& found, const std::vector<double>& right, double scale,
                       const std::vector<NamedFactor>& factors, const std::vector<Suspect>& suspects);

}  // namespace prun
