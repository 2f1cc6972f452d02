// Explains a difference: the tensor, the op and plan line that wrote it on that rank, and a pattern that it matches.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "exec/virtual_ranks.h"
#include "prove/compare.h"
#include "prove/twins.h"

namespace prun {

struct Explanation {
  std::string text;  // lines after the error's first
  std::optional<Site> site;
};

// Runs the small job again with `options` to find the op that wrote the tensor, and one rank that trains microbatches
// and ranks separately to find what each contributes.
Explanation explain(const Plan& plan, const RecordPlan& record, const Twins& twins, const RunPair& pair,
                    const VirtualOptions& options, const Difference& difference);

// The first forward activation that explains a difference in the loss, because it is no part of the single rank's
// activation (the whole, a shard along some axes, or a term of a sum).
struct FirstActivation {
  std::string name;
  int rank = 0;
  Op op;  // the op that wrote it
  std::string looks;
};

// Runs the twins with `options` and compares the activations of `body`. Returns nullopt if every activation of the
// single rank's shape is a part of it.
std::optional<FirstActivation> first_activation(const Twins& twins, const VirtualOptions& options, BodyId body);

// Values, up to a factor, that a specific mistake would produce.
struct Suspect {
  std::string text;  // for example "what microbatch 2 alone would give"
  std::vector<double> values;
};

struct NamedFactor {
  double factor = 1;
  std::string text;  // for example "a sum over dp, where the average over its 2 ranks is due"
};

// Describes how a wrong tensor relates to the right one: a factor, a missing term, another tensor, a permutation.
// `scale`: the largest number of that kind; equality is relative to it. Never returns "".
std::string looks_like(const std::vector<double>& found, const std::vector<double>& right, double scale,
                       const std::vector<NamedFactor>& factors, const std::vector<Suspect>& suspects);

}  // namespace prun
