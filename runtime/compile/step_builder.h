// Builds the ops of a body from the schedule: for each step the hooks before it, its nodes, the hooks after it. The
// order of emission defines the body's semantics; EdgeBuilder derives the edges.
#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compile/gathered_parameters.h"
#include "compile/gradient_buckets.h"
#include "compile/op_emitter.h"
#include "compile/optimizer_step.h"
#include "compile/stage_transfers.h"
#include "compile/step_index.h"

namespace prun {

class StepBuilder {
 public:
  // `body` must belong to state.program: the step, or an evaluation.
  StepBuilder(CompileState& state, Body& body);
  void run();          // forward, backward, optimizer
  void run_forward();  // evaluate.cc

 private:
  void read_averages();
  void walk_schedule();
  const ScheduleStep* first_call_after(size_t turn) const;
  void average_loss_behind(const StageStep& stage);
  void mark_repeat(int turn);
  void finish();
  void next_batch();

  // alternate.cc: emits the ops of a slot, or of two that run at once.
  struct Piece {
    std::function<void()> emit;          // empty: lowers `node` in `step`
    const Node* node = nullptr;          // the node that it lowers; null = none
    const ScheduleStep* step = nullptr;  // of `node`
  };
  void emit(const std::vector<int>& turns);
  std::vector<Piece> pieces_of(int turn);
  void add_compute(const ScheduleStep& step, std::vector<Piece>& pieces);
  void add_node(const Node& node, const ScheduleStep& step, std::vector<Piece>& pieces);
  void refuse_gather_of_pair(const HookAction& action) const;

  void hooks(const ScheduleStep& step, bool after, const ScheduleStep* next);
  void apply(const ScheduleStep& step, int strategy, const HookAction& action, const ScheduleStep* next);
  void print(const ScheduleStep& step, const HookAction& action);
  void average_loss();
  bool has_loss() const { return !evaluates_ || !body_.loss.none(); }  // a prediction has none

  // lower.cc: lowers a node of the graph to ops
  void lower(const Node& node, const ScheduleStep& step);
  // Attributes of the ops of a node. `of_node` keeps the map alive whose address is the key.
  struct OpAttrs {
    Attrs of_node, of_op;
    std::string axis;  // of a communication
  };
  const OpAttrs& attrs_of(const Node& node, bool communicates);
  void lower_ring(const Node& node, const ScheduleStep& step);
  void lower_by_phase(const Node& node, const ScheduleStep& step);
  TensorId operand(ValueId input, const Node& node, const ScheduleStep& step);
  bool accumulates(const Node& node, const ScheduleStep& step) const;
  TensorId output_of(const Node& node, ValueId output, const Op& op, const ScheduleStep& step,
                     std::vector<std::pair<TensorId, TensorId>>& sums);
  // Returns the tensor of that shape in x's buffer.
  TensorId alias_of(TensorId x, const std::string& name, const Shape& shape);

  bool is_result(TensorId tensor) const;
  std::vector<TensorId> results_of(ValueId output) const;

  // recompute.cc: recomputes activations in backward
  void recompute(const ScheduleStep& step, std::vector<Piece>& pieces);
  void gather_again(const Node& node, const std::vector<const Node*>& nodes, const ScheduleStep& step);
  std::vector<const Node*> gathers_before(const Node& node, const std::vector<const Node*>& nodes, CallId call) const;

  CompileState& state_;
  Body& body_;
  const bool evaluates_;
  OpEmitter emitter_;
  const StepIndex index_;
  GatheredParameters gathered_;
  GradientBuckets gradients_;
  StageTransfers transfers_;
  std::map<const Node*, std::vector<bool>> gathered_again_;                          // by forward node and microbatch
  std::map<std::pair<const Node*, Half>, std::vector<const Node*>> gathers_before_;  // by backward node
  std::map<std::pair<const Attrs::Values*, bool>, OpAttrs> attrs_;                   // by attributes; communicates
  const std::vector<LossTerm> terms_;
  std::map<TensorId, std::vector<TensorId>> aliases_;  // by the first tensor of a buffer: it and its reshapes
  std::map<TensorId, TensorId> first_alias_;
  bool alternates_ = false;   // two slots run at once
  std::set<TensorId> begun_;  // results that a microbatch has written; later ones add theirs
};

}  // namespace prun
