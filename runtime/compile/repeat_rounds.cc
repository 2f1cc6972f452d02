// Rounds of a dropless mixture of experts, except round 0: backward computes a round's activations again before it
// reads them, so that memory holds the activations of round 0 and of at most one other round.
//
// Surprising fact: forward runs round 0 last. Its backward therefore comes first, and ends the life of its activations
// before the next round is computed again.
#include <map>
#include <set>

#include "compile/compile_state.h"
#include "ir/ops.h"

namespace prun {
namespace {

// A round: the nodes from its dispatch, exclusive of its combine.
struct Round {
  std::vector<const Node*> nodes;  // in execution order
  std::set<ValueId> needed;        // values that backward reads, and those that they depend on
  bool repeated = false;
};

class Repeater {
 public:
  explicit Repeater(CompileState& state) : state_(state) {}

  void run() {
    find_rounds();
    if (rounds_.empty()) return;
    find_needed();
    std::vector<Node> backward;
    for (Node& node : state_.backward) {
      for (ValueId& input : node.inputs) {
        const auto found = round_of_.find(input);
        if (found == round_of_.end()) continue;
        if (Round& round = rounds_.at(found->second); !round.repeated) repeat(round, backward);
        input = again_.at(input);
      }
      backward.push_back(std::move(node));
    }
    state_.backward = std::move(backward);
  }

 private:
  void find_rounds() {
    for (const Node& node : state_.graph.nodes) {
      ValueId round;  // the output of the round's dispatch
      if (node.op == &ops::dispatch && node.attrs.integer("round") > 0) round = node.outputs[0];
      if (node.op != &ops::combine)
        for (const ValueId input : node.inputs)
          if (const auto found = round_of_.find(input); found != round_of_.end()) round = found->second;
      if (round.none()) continue;
      rounds_[round].nodes.push_back(&node);
      for (const ValueId output : node.outputs) round_of_[output] = round;
    }
  }

  void find_needed() {
    for (const Node& node : state_.backward)
      for (const ValueId input : node.inputs)
        if (const auto found = round_of_.find(input); found != round_of_.end())
          rounds_.at(found->second).needed.insert(input);
    for (auto& [dispatched, round] : rounds_)
      for (auto node = round.nodes.rbegin(); node != round.nodes.rend(); ++node)
        if (is_needed(round, **node)) round.needed.insert((*node)->inputs.begin(), (*node)->inputs.end());
  }

  static bool is_needed(const Round& round, const Node& node) {
    return std::ranges::any_of(node.outputs, [&](ValueId output) { return round.needed.contains(output); });
  }

  void repeat(Round& round, std::vector<Node>& backward) {
    round.repeated = true;
    for (const Node* node : round.nodes) {
      if (!is_needed(round, *node)) continue;
      Node copy = *node;
      for (ValueId& input : copy.inputs)
        if (const auto found = again_.find(input); found != again_.end()) input = found->second;
      for (ValueId& output : copy.outputs) {
        Value value = state_.graph.values[output];
        const ValueId again = state_.graph.values.next();
        state_.graph.values.push_back(std::move(value));
        again_[output] = again;
        output = again;
      }
      backward.push_back(std::move(copy));
    }
  }

  CompileState& state_;
  std::map<ValueId, ValueId> round_of_;  // value of a round -> the output of its dispatch
  std::map<ValueId, Round> rounds_;      // by the output of the dispatch
  std::map<ValueId, ValueId> again_;     // value -> the one that backward computes
};

}  // namespace

void repeat_rounds(CompileState& state) { Repeater(state).run(); }

}  // namespace prun
