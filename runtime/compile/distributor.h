// Rewrites the model graph for one mesh axis: from whole shapes to one rank's, with the collectives of activations as
// nodes, so that autodiff derives theirs in backward.
//
// A value is whole (the same on all ranks of the axis) or a shard along a dim; what is a part of a sum is summed at
// once. Each op has a rule in distribute.cc that says which forms of its inputs it takes and what comes of them.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "compile/compile_state.h"
#include "ir/placement.h"

namespace prun {

class Distributor {
 public:
  Distributor(CompileState& state, std::string axis);
  void run();

  // For the rules. Conversions make new values, once for each value and kind.
  const Graph& graph() const { return graph_; }
  const std::string& axis() const { return axis_; }
  int ranks() const { return ranks_; }
  Placement placement(ValueId value) const { return placement_.has(value) ? placement_[value] : Placement{}; }
  // Whether it is a rank's tokens, of [samples, tokens, features].
  bool is_tokens(ValueId value) const { return placement(value) == shard_of(1) && type(value).shape.size() > 2; }
  const TensorType& type(ValueId value) const { return graph_.values[value].type; }
  // The type of a value and the nodes of the whole graph, before the axis splits them.
  const TensorType& whole_type(ValueId value) const { return whole_types_[value]; }
  const std::vector<Node>& whole_nodes() const { return whole_nodes_; }
  // The dim of the weight that is split over the axis; -1: none.
  int split_dim(ValueId parameter) const;
  // Whether the unit's activations are sharded along their tokens where no layer says otherwise.
  bool sequence(const Node& node) const;
  // The value whole, its gradient whole too.
  ValueId whole(ValueId value);
  // The value whole for a reader that makes a part of its gradient on each rank.
  ValueId replicated(ValueId value);
  // The ranks' parts added up: whole, or sharded along tokens.
  ValueId sum(ValueId partial, bool tokens);
  // The rank's tokens of a whole value.
  ValueId tokens_of(ValueId value);
  // Adds a node at the current one's place; its outputs are new values of `placement`.
  std::vector<ValueId> emit(const OpDef& op, const std::vector<ValueId>& inputs, Attrs attrs,
                            const std::vector<TensorType>& types, Placement placement = {});
  // Whoever reads `value` of the whole graph reads `now` from here on.
  void define(ValueId value, ValueId now);
  // Adds the node as it is, its output types inferred again; all outputs get `placement`.
  void keep(Node node, Placement placement);
  // A parameter read by something that sees a part of the tokens: its gradient is a part of a sum.
  void partial_gradient(ValueId parameter);
  void set_placement(ValueId value, Placement placement);
  [[noreturn]] void fail(const std::string& text) const;

 private:
  void split_parameters();
  void split_parameter(ValueId parameter, const LayerPlacement& placement, bool bias);
  ValueId convert(ValueId value, bool partial_gradient);
  TensorType piece_of_tokens(const TensorType& whole) const;

  CompileState& state_;
  Graph& graph_;
  std::string axis_;
  int ranks_;
  Site site_;  // of the strategy that uses the axis
  std::vector<Node> whole_nodes_, nodes_;
  Table<ValueId, Placement> placement_;
  Table<ValueId, TensorType> whole_types_;                // of the values that were there before
  std::map<std::pair<ValueId, int>, ValueId> converted_;  // (value, kind of conversion) -> value
  std::map<ValueId, ValueId> now_;                        // values that another stands for
  const Node* current_ = nullptr;
};

// "block0.qkv.weight" of unit block0: "qkv", the layer that a strategy names.
std::string layer_of(const Graph& graph, const Value& parameter);

// What an op does to the forms; distribute.cc has the table.
using DistributeRule = void (*)(Distributor& d, const Node& node);
DistributeRule distribute_rule(const OpDef& op);

// Context parallelism: shapes for a rank's tokens, and attention over the ring.
void split_tokens(CompileState& state);

// Expert parallelism: puts the exchanges of tokens around experts that are split over an axis of the batch, and sums
// the experts' loads over all ranks for the balancing loss.
void split_experts(CompileState& state);

// Rules of distribute.cc for experts that are split over their first dim.
void expert_linear(Distributor& d, const Node& node);
void combine(Distributor& d, const Node& node);

}  // namespace prun
