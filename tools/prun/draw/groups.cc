// Groups boxes that are drawn as one when zoomed out, and classifies ops by kind.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "draw/timeline.h"
#include "ir/op_def.h"
#include "ir/ops.h"

namespace prun::draw {
namespace {

bool is_message(const OpDef* op) { return op != nullptr && op->role == OpRole::message; }

bool makes_weight_gradient(std::string_view name, const OpDef* op) {
  return name.ends_with("_dw") || name.ends_with("_dw_add") || op == &ops::embedding_grad ||
         op == &ops::positions_grad || op == &ops::bias_grad || op == &ops::bias_grad_add;
}

// Returns whether an op of the model in backward is recomputed. Gradients have ops of their own except for sums, scales
// and copies.
bool recomputes(const OpDef* op) {
  static const std::set<const OpDef*> kAlsoOfGradients = {&ops::add,         &ops::mul,        &ops::scale,
                                                          &ops::join_pieces, &ops::cut_pieces, &ops::take_piece};
  return op != nullptr && op->role == OpRole::model && op->derive != nullptr && !op->moves &&
         !kAlsoOfGradients.contains(op);
}

// Returns the op's name without its unit.
std::string_view op_word(const Timeline& timeline, const Box& box) {
  const std::string_view name = timeline.texts[box.name];
  return name.substr(0, name.find(' '));
}

bool has_microbatches(const Timeline& timeline) {
  return std::any_of(timeline.boxes.begin(), timeline.boxes.end(), [](const Box& box) { return box.microbatch > 0; });
}

// Returns whether ranks form a pipeline. Pipelines send activations between ranks, but context parallelism sends parts
// within a unit.
bool is_pipeline(const Timeline& timeline) {
  if (!has_microbatches(timeline)) return false;
  return std::any_of(timeline.lanes.begin(), timeline.lanes.end(), [](const Lane& lane) {
    return lane.name.starts_with("send forward") || lane.name.starts_with("recv forward");
  });
}

}  // namespace

BoxKind kind_of(const OpFacts& op) {
  const OpDef* def = find_op(op.name);
  if (op.communicates) {
    if (is_message(def)) return BoxKind::message;
    if (op.role == "data" || (op.phase == "step" && op.role != "param" && op.role != "grad" && op.role != "gathered"))
      return BoxKind::other;
    if (def == &ops::all_gather || def == &ops::all_gather_v)
      return op.role == "activation" ? BoxKind::activation : BoxKind::gather;
    if (op.role == "grad" || op.role == "reduce" || (op.role.empty() && op.phase == "backward"))
      return BoxKind::gradient;
    return op.role.empty() ? BoxKind::other : BoxKind::activation;
  }
  if (op.phase == "forward") return BoxKind::forward;
  if (op.phase == "backward" && recomputes(def)) return BoxKind::recompute;
  if (op.phase == "backward") return makes_weight_gradient(op.name, def) ? BoxKind::weight_gradient : BoxKind::backward;
  if (op.phase == "step") return BoxKind::optimizer;
  return BoxKind::other;
}

void tell_weight_gradients(Timeline& timeline) {
  // An add that directly follows a weight's gradient of its unit belongs to it, too.
  for (size_t i = 1; i < timeline.boxes.size(); ++i) {
    Box& box = timeline.boxes[i];
    const Box& before = timeline.boxes[i - 1];
    if (box.kind == BoxKind::backward && before.lane == box.lane && before.kind == BoxKind::weight_gradient &&
        op_word(timeline, box) == ops::add.name && box.unit == before.unit)
      box.kind = BoxKind::weight_gradient;
  }
  // Backward is split if in no unit a gradient of activations follows one of weights.
  std::set<std::tuple<int, int, int, int>> begun;  // lane, step, microbatch, unit
  bool activations_follow = false;
  int weights = 0, activations = 0;
  for (const Box& box : timeline.boxes) {
    const std::tuple key(box.lane, box.step, box.microbatch, box.unit);
    if (box.kind == BoxKind::weight_gradient) {
      begun.insert(key);
      weights++;
    } else if (box.kind == BoxKind::backward) {
      activations++;
      if (begun.count(key) > 0) activations_follow = true;
    }
  }
  timeline.splits_backward = weights > 0 && activations > 0 && !activations_follow;
  if (timeline.splits_backward) return;
  for (Box& box : timeline.boxes)
    if (box.kind == BoxKind::weight_gradient) box.kind = BoxKind::backward;
}

namespace {

bool is_compute(BoxKind kind) {
  return kind == BoxKind::forward || kind == BoxKind::backward || kind == BoxKind::weight_gradient ||
         kind == BoxKind::recompute;
}

class Grouper {
 public:
  explicit Grouper(const Timeline& timeline)
      : timeline_(timeline), pipeline_(is_pipeline(timeline)), numbered_(has_microbatches(timeline)) {}

  std::vector<Group> run() {
    for (int i = 0; i < static_cast<int>(timeline_.boxes.size()); ++i) {
      if (groups_.empty() || !belongs(i))
        groups_.push_back({i, 1, box(i).kind, "", stage_of(box(i)).value_or(-1)});
      else
        groups_.back().count++;
      if (has_stage(box(i))) give_stage(groups_.back(), box(i));
    }
    for (Group& group : groups_) {
      group.chunk = std::max(0, group.chunk);
      group.label = label(group);
    }
    return std::move(groups_);
  }

 private:
  const Box& box(int i) const { return timeline_.boxes[static_cast<size_t>(i)]; }

  bool belongs(int i) const {
    const Group& group = groups_.back();
    const Box& first = box(group.first);
    const Box& last = box(i - 1);
    const Box& next = box(i);
    if (next.lane != last.lane || next.kind != group.kind || next.step != last.step) return false;
    if (!is_compute(next.kind) && next.kind != BoxKind::optimizer) return false;
    const int64_t gap = next.begin - last.end;
    if (gap * 20 > last.end - first.begin + next.end - next.begin) return false;
    if (next.kind == BoxKind::optimizer) return true;
    if (next.microbatch != last.microbatch) return false;
    return pipeline_ ? stage_of(next).value_or(group.chunk) == group.chunk : next.unit == last.unit;
  }

  // A rank's stages are numbered in the order in which forward first reaches their units.
  bool has_stage(const Box& one) const { return pipeline_ && is_compute(one.kind) && one.microbatch >= 0; }
  std::optional<int> stage_of(const Box& one) const {
    const auto known = stages_.find({one.lane, one.unit});
    return has_stage(one) && known != stages_.end() ? std::optional(known->second) : std::nullopt;
  }
  void give_stage(Group& group, const Box& one) {
    if (group.chunk < 0) group.chunk = stage_of(one).value_or(stage_counts_[one.lane]);
    if (stages_.emplace(std::pair(one.lane, one.unit), group.chunk).second)
      stage_counts_[one.lane] = std::max(stage_counts_[one.lane], group.chunk + 1);
  }

  std::string label(const Group& group) const {
    const Box& first = box(group.first);
    if (group.kind == BoxKind::optimizer) return "optimizer";
    const std::string& unit = timeline_.texts[first.unit];
    if (pipeline_) return first.microbatch >= 0 ? fmt::format("{}", first.microbatch) : "";
    if (unit.empty()) return std::string(op_word(timeline_, first));
    return numbered_ && first.microbatch >= 0 ? fmt::format("{} {}", unit, first.microbatch) : unit;
  }

  const Timeline& timeline_;
  bool pipeline_, numbered_;
  std::vector<Group> groups_;
  std::map<std::pair<int, int>, int> stages_;  // by lane and unit
  std::map<int, int> stage_counts_;            // by lane
};

}  // namespace

std::vector<Group> groups_of(const Timeline& timeline) { return Grouper(timeline).run(); }

}  // namespace prun::draw
