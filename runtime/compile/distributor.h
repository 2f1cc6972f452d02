// Rewrites the model graph for one mesh axis: from whole shapes to a rank's local shapes. Collectives of activations
// are nodes, so that autodiff derives the backward collectives.
//
// A value is whole (replicated over the axis) or a shard along a dim; a partial sum is reduced immediately. Each op has
// a rule in distribute.cc that states which placements its inputs may have and which its outputs get.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "compile/compile_state.h"
#include "ir/placement.h"

namespace prun {

class Distributor {
 public:
  Distributor(CompileState& state, std::string axis);
  void run();

  // Functions for the rules. A conversion creates one new value per value and kind.
  const Graph& graph() const { return graph_; }
  const std::string& axis() const { return axis_; }
  int ranks() const { return ranks_; }
  bool splits_weights() const { return splits_weights_; }
  Placement placement(ValueId value) const { return placement_.has(value) ? placement_[value] : Placement{}; }
  // Returns whether the value holds the rank's tokens, [samples, tokens, features].
  bool is_tokens(ValueId value) const { return placement(value) == shard_of(1) && type(value).shape.size() > 2; }
  const TensorType& type(ValueId value) const { return graph_.values[value].type; }
  // Return the type of a value and the nodes in the graph before the axis splits it.
  const TensorType& whole_type(ValueId value) const { return whole_types_[value]; }
  const std::vector<Node>& whole_nodes() const { return whole_nodes_; }
  // Returns the dim of the weight that is split over the axis; -1 = none.
  int split_dim(ValueId parameter) const;
  // Returns whether other axes of several ranks split the first dim of the weight, too.
  bool is_split_over_others(ValueId parameter) const;
  // Returns whether the unit's activations are sharded along tokens (sequence parallelism) by default.
  bool sequence(const Node& node) const;
  // Returns the whole value; its gradient is whole too.
  ValueId whole(ValueId value);
  // Returns the whole value for a reader that computes a partial sum of its gradient on each rank.
  ValueId replicated(ValueId value);
  // Returns what `convert` made of the value for an earlier reader, or makes it.
  template <class F>
  ValueId once(ValueId value, const F& convert) {
    const auto known = sent_.find(value);
    return known != sent_.end() ? known->second : sent_[value] = convert(value);
  }
  // Notes a value whose gradient on each rank is a partial sum, which an op before it adds up: it is `replicated`.
  void mark_replicated(ValueId value) { converted_[{value, kReplicatedValue}] = value; }
  bool is_replicated(ValueId value) const { return converted_.contains({value, kReplicatedValue}); }
  // Notes a value that is a partial sum, which an op after it adds up.
  void mark_partial(ValueId value) { partial_.insert(value); }
  bool is_partial(ValueId value) const { return partial_.contains(value); }
  // Notes a value of this rank's experts whose first dim is an exchange's pieces.
  void mark_pieces(ValueId value) { pieces_.insert(value); }
  bool has_pieces(ValueId value) const { return pieces_.contains(value); }
  // Reduces partial sums over ranks: all-reduce, or reduce-scatter along tokens.
  ValueId sum(ValueId partial, bool tokens);
  // Returns the rank's tokens of a whole value.
  ValueId tokens_of(ValueId value);
  // Returns the rank's piece of a whole value or parameter along a dim.
  ValueId piece_of(ValueId value, int dim);
  // Adds a node with the current node's call and site; its outputs are new values of `placement`.
  std::vector<ValueId> emit(const OpDef& op, const std::vector<ValueId>& inputs, Attrs attrs,
                            const std::vector<TensorType>& types, Placement placement = {});
  // Replaces `value` of the whole graph by `now` for all later readers.
  void define(ValueId value, ValueId now);
  // Adds the node unchanged except for output types, which are inferred again; all outputs get `placement`.
  void keep(Node node, Placement placement);
  // Marks the gradient of a parameter as a partial sum, because its reader processes a shard of the tokens.
  void partial_gradient(ValueId parameter);
  void set_placement(ValueId value, Placement placement);
  [[noreturn]] void fail(const std::string& text) const;

 private:
  static constexpr int kReplicatedValue = 1;  // kind of conversion

  void split_parameters();
  bool is_placed_by_other(const Strategy& owner, const StrategyUnit& of, const std::string& layer) const;
  void split_parameter(ValueId parameter, const LayerPlacement& placement, bool bias);
  ValueId convert(ValueId value, bool partial_gradient);
  TensorType piece_of_tokens(const TensorType& whole) const;
  void count_replicas(Node& node, const std::vector<TensorType>& inputs) const;

  CompileState& state_;
  Graph& graph_;
  std::string axis_;
  int ranks_;
  Site site_;            // site of the strategy that uses the axis
  bool splits_weights_;  // its ranks have the same samples and tokens
  std::vector<Node> whole_nodes_, nodes_;
  Table<ValueId, Placement> placement_;
  Table<ValueId, TensorType> whole_types_;                // types of the values that existed before the split
  std::map<std::pair<ValueId, int>, ValueId> converted_;  // (value, kind of conversion) -> value
  std::map<ValueId, ValueId> now_;                        // value -> its replacement
  std::map<ValueId, ValueId> sent_;                       // value -> that of an exchange
  std::set<ValueId> partial_, pieces_;
  const Node* current_ = nullptr;
};

// Returns the layer that a strategy names: "qkv" for "block0.qkv.weight" of unit block0.
std::string layer_of(const Graph& graph, const Value& parameter);

// Rewrites an op for the placements of its inputs; distribute.cc has the table.
using DistributeRule = void (*)(Distributor& d, const Node& node);
DistributeRule distribute_rule(const OpDef& op);

// Views, which move the dim that the axis splits (distribute_views.cc).
void view(Distributor& d, const Node& node);

// Context parallelism: local shapes for a rank's tokens, and ring attention.
void split_tokens(CompileState& state);

// Expert parallelism: inserts all-to-alls of tokens around experts that are split over a batch axis, and all-reduces
// the experts' loads for the balancing loss.
void split_experts(CompileState& state);

// Rules for broadcasting and for ops that combine elements of some dims; the check that no op combines samples, or
// tokens under context parallelism, of which each rank or microbatch has a part.
void pointwise(Distributor& d, const Node& node);
void reduction(Distributor& d, const Node& node);
void check_combined_dims(CompileState& state);
// All-reduces means over samples that should cover those of all ranks (attribute `samples`).
void share_statistics(CompileState& state);
bool is_arithmetic(const OpDef& op);
// Returns the output's dim that an input's dim becomes, which the op does not combine.
int64_t dim_after_arithmetic(const Node& node, int64_t input_rank, int64_t output_rank, int64_t dim);

// Rules for experts that are split along their first dim, or each along its hidden dim.
void dispatch(Distributor& d, const Node& node);
void expert_linear(Distributor& d, const Node& node);
void expert_activation(Distributor& d, const Node& node);
void combine(Distributor& d, const Node& node);
void expert_pieces(Distributor& d, const Node& node);
// The rule of collectives that context parallelism has inserted.
void token_pieces(Distributor& d, const Node& node);

}  // namespace prun
