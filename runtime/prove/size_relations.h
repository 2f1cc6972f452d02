// The relations between the sizes of a model, read from its graph: sizes that must shrink by a common factor.
//
// Sizes of a group keep their ratios, so every sum and every product of sizes in the real model also holds in the small
// one: adjacent blocks add up to a dim, heads times head size are columns. Only the number of query heads per key head
// may shrink, and only if all sizes of the group are sums of query heads and key heads.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace prun {

struct SizeGroup {
  // Real sizes, each with the size that the group's factors apply to: the same size, or one with fewer query heads per
  // key head.
  std::map<int64_t, int64_t> dims;
  // Columns that consist of heads: numbers of heads, and head sizes. Both empty = the dims contain no heads.
  std::map<int64_t, int64_t> heads;
  std::set<int64_t> head_sizes;
  bool rotates = false;  // rotates by several frequencies, so a head needs two pairs
};

struct SizeRelations {
  std::vector<SizeGroup> groups;               // equal dims are in one group
  std::map<int64_t, int64_t> least;            // lower bound of a small dim: more experts than choices
  std::set<std::pair<int64_t, int64_t>> rows;  // (rows of a position table, tokens): at least as many rows
  std::set<int64_t> vocabularies;              // rows of token tables, columns of logits
  std::set<int64_t> kernels;                   // sizes of convolutions' kernels, which do not shrink
  std::set<int64_t> images;                    // dims of inputs, such as heights, into which kernels have to fit

  // Returns the group that has this dim; nullopt = nothing shrinks it.
  std::optional<size_t> group_of(int64_t dim) const;
};

SizeRelations size_relations(const Graph& graph);

// Small sizes by group.
struct SmallSizes {
  std::map<int64_t, int64_t> dims;
  std::vector<std::map<int64_t, int64_t>> heads, head_sizes;
};

// Replaces the sizes of parameters, inputs and attributes, except batches, and infers all types again. Throws
// plan_error if an op's inputs do not fit, or if computed ids may be outside their table.
void resize(Graph& graph, const SizeRelations& relations, const SmallSizes& sizes);

// Infers the types of all values from those of inputs and parameters. Throws plan_error if an op's inputs do not fit.
void infer_types(Graph& graph);

}  // namespace prun
