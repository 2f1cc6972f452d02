// Resolves a pipeline's layout, which lists the units of each stage: "embed | block*3 | ... | head".
//
//   entries before "..."  take the model's first calls that they name, in order
//   entries behind "..."  take the last ones, in reverse order
//   "..."                 the remaining stages share the remaining calls: layers equally, the others beside them
#include "compile/stage_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "compile/compile_state.h"
#include "compile/partition.h"

namespace prun {
namespace {

constexpr int kFree = -1;  // stage of a call that no entry has taken

class LayoutResolver {
 public:
  LayoutResolver(const Plan& plan, const Graph& graph)
      : plan_(plan), graph_(graph), layout_(plan.pipeline->layout), stage_of_(graph.calls.size(), kFree) {
    const auto fills = [](const LayoutStage& stage) { return stage.fill; };
    const auto at = std::find_if(layout_.begin(), layout_.end(), fills);
    front_ = static_cast<int>(at - layout_.begin());
    back_ = at == layout_.end() ? 0 : static_cast<int>(layout_.end() - at) - 1;
    filled_ = at == layout_.end() ? 0 : pipeline_stages(plan) - front_ - back_;
  }

  Table<CallId, int> run() {
    check_count();
    for (int stage = 0; stage < front_; ++stage)
      for (const LayoutUnits& units : layout_[stage].units) take(units, stage, false);
    for (int i = 0; i < back_; ++i) {
      const std::vector<LayoutUnits>& all = layout_[layout_.size() - 1 - i].units;
      for (auto units = all.rbegin(); units != all.rend(); ++units) take(*units, pipeline_stages(plan_) - 1 - i, true);
    }
    if (filled_ > 0) fill();
    place_further_calls();
    check_all_taken();
    check_order();
    return std::move(stage_of_);
  }

 private:
  [[noreturn]] void fail(const std::string& text) const {
    throw plan_error("the layout " + text, plan_.pipeline->site);
  }

  void check_count() const {
    const bool fills = front_ < std::ssize(layout_);
    const int listed = front_ + back_, stages = pipeline_stages(plan_);
    if (fills ? filled_ > 0 : listed == stages) return;
    const int chunks = plan_.pipeline->chunks;
    fail(fmt::format("lists {}{}, and {}{} make {}{}", counted(listed, "stage"), fills ? " beside '...'" : "",
                     counted(pipeline_ranks(plan_), "pipeline rank"),
                     chunks > 1 ? fmt::format(" with {} chunks each", chunks) : "", stages,
                     fills ? ": none is left for '...'" : "; '...' stands for the stages that it does not list"));
  }

  const Unit& unit(CallId call) const { return graph_.units[graph_.calls[call].unit]; }

  // Returns the calls that an entry names, by the unit or by its class.
  std::vector<CallId> named(const std::string& name) const {
    std::vector<CallId> units, classes;
    for (const CallId call : graph_.calls.ids()) {
      if (unit(call).name == name) units.push_back(call);
      if (unit(call).unit_class == name) classes.push_back(call);
    }
    return units.empty() ? classes : units;
  }

  void take(const LayoutUnits& entry, int stage, bool last) {
    std::vector<CallId> calls = named(entry.name);
    if (calls.empty()) {
      std::vector<std::string> names;
      for (const Unit& each : graph_.units) names.push_back(each.unit_class);
      std::sort(names.begin(), names.end());
      names.erase(std::unique(names.begin(), names.end()), names.end());
      fail(fmt::format("names '{}', and the model has no such unit{}", entry.name, did_you_mean(entry.name, names)));
    }
    if (last) std::reverse(calls.begin(), calls.end());
    int taken = 0;
    for (const CallId call : calls) {
      if (taken == entry.count) break;
      if (stage_of_[call] != kFree) continue;
      stage_of_[call] = stage, ++taken;
      listed_.insert(graph_.calls[call].unit);
    }
    if (taken == entry.count) return;
    if (calls.size() == 1)
      fail(fmt::format("lists '{}' for stage {}, and it is on stage {} already", entry.name, stage,
                       stage_of_[calls.front()]));
    int64_t listed = 0;
    for (const LayoutStage& each : layout_)
      for (const LayoutUnits& units : each.units) listed += units.name == entry.name ? units.count : 0;
    if (listed > std::ssize(calls))
      fail(fmt::format("lists {} of '{}', and the model has {}", listed, entry.name, calls.size()));
    fail(fmt::format("lists units of '{}' by that name and by their own, {} of them twice", entry.name,
                     entry.count - taken));
  }

  void fill() {
    const std::vector<bool> layers = find_layers(graph_);
    std::vector<CallId> left;
    int count = 0;
    for (const CallId call : graph_.calls.ids())
      if (stage_of_[call] == kFree && !is_called_again(call))
        left.push_back(call), count += layers[call.index()] ? 1 : 0;
    const bool any = count > 0;
    if (!any) count = static_cast<int>(left.size());
    int seen = 0;
    for (const CallId call : left) {
      const bool layer = !any || layers[call.index()];
      stage_of_[call] = front_ + equal_share(std::max(0, layer ? seen : seen - 1), count, filled_);
      if (layer) ++seen;
    }
  }

  // A unit that is called again behind others, such as a tied table for the logits, is listed once.
  bool is_called_again(CallId call) const {
    const UnitId unit = graph_.calls[call].unit;
    return call > 0 && graph_.calls[call - 1].unit != unit && listed_.contains(unit);
  }

  // Such a call joins the one before.
  void place_further_calls() {
    for (const CallId call : graph_.calls.ids())
      if (stage_of_[call] == kFree && is_called_again(call)) stage_of_[call] = stage_of_[call - 1];
  }

  void check_all_taken() const {
    std::vector<std::string> missing;
    for (const CallId call : graph_.calls.ids())
      if (stage_of_[call] == kFree) missing.push_back(unit(call).name);
    if (missing.empty()) return;
    const size_t more = missing.size() - 1;
    fail(
        fmt::format("leaves out '{}'{}", missing.front(),
                    more > 0 ? fmt::format(" and {} more, the last '{}'", counted(more, "unit"), missing.back()) : ""));
  }

  // A value flows to the same or to a later stage.
  void check_order() const {
    Table<ValueId, CallId> made(graph_.values.size());
    for (const Node& node : graph_.nodes) {
      for (const ValueId input : node.inputs) {
        const CallId from = made[input];
        if (from.none() || stage_of_[from] <= stage_of_[node.call]) continue;
        fail(fmt::format("has '{}' on stage {} and '{}', which needs its result, on stage {}", unit(from).name,
                         stage_of_[from], unit(node.call).name, stage_of_[node.call]));
      }
      for (const ValueId output : node.outputs) made[output] = node.call;
    }
  }

  const Plan& plan_;
  const Graph& graph_;
  const std::vector<LayoutStage>& layout_;
  Table<CallId, int> stage_of_;
  std::set<UnitId> listed_;
  int front_ = 0, back_ = 0, filled_ = 0;  // stages before, behind and of "..."
};

}  // namespace

Table<CallId, int> stages_of_layout(const Plan& plan, const Graph& graph) { return LayoutResolver(plan, graph).run(); }

}  // namespace prun
