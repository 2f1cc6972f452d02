#include "prove/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/text.h"
#include "device/element.h"
#include "kernels/devices.h"
#include "kernels/reference/parameter_elements.h"

namespace prun {
namespace {

using Whole = std::map<int64_t, std::vector<double>>;

// Finds the op that last wrote a rank's tensor in the step.
class LastWriter {
 public:
  LastWriter(int rank, TensorId tensor) : rank_(rank), tensor_(tensor) {}

  void see(const RankMemory& memory, const Op& op) {
    if (memory.rank != rank_ || memory.body == kInitBody || op.phase == Phase::init) return;
    const Program& program = *memory.program;
    const Tensor& mine = program.tensors[tensor_];
    for (const TensorId id : op.writes) {
      const Tensor& other = program.tensors[id];
      if (other.buffer != mine.buffer || other.byte_offset >= mine.byte_offset + mine.bytes() ||
          mine.byte_offset >= other.byte_offset + other.bytes())
        continue;
      last_ = op;
    }
  }
  const std::optional<Op>& last() const { return last_; }

 private:
  int rank_;
  TensorId tensor_;
  std::optional<Op> last_;
};

std::string op_text(const Op& op) {
  std::string text(op.def->name);
  if (!op.axis.empty()) text += " over " + op.axis;
  const std::string reduction = op.attrs.text("op");
  if (op.communicates() && !reduction.empty()) text += fmt::format(" ({})", reduction);
  if (!op.unit.empty()) text += fmt::format(", {} {}", op.unit, phase_name(op.phase));
  if (op.microbatch >= 0) text += fmt::format(" of microbatch {}", op.microbatch);
  return op.site.known() ? fmt::format("{}, {}", text, op.site.text()) : text;
}

const Value& parameter_of(const Plan& plan, int64_t key) {
  int64_t number = 0;
  for (const Value& value : plan.graph.values)
    if (value.kind == ValueKind::parameter && number++ == key) return value;
  PRUN_CHECK(false, fmt::format("there is no parameter {}", key));
  return plan.graph.values.front();
}

class Explainer {
 public:
  Explainer(const Plan& plan, const RecordPlan& record, const Twins& twins, const RunPair& pair,
            const Difference& difference)
      : plan_(plan), record_(record), twins_(twins), pair_(pair), difference_(difference) {}

  std::string looks() {
    const Whole whole = whole_state(pair_.one_job, pair_.one, difference_.kind);
    const std::vector<double> right = own_part(whole.at(difference_.key));
    std::vector<double> found;
    for (const HeldState::Element& element : difference_.held.elements) found.push_back(element.value);
    if (const std::string text = never_reduced(right); !text.empty()) return text;
    std::vector<Suspect> suspects;
    if (difference_.what == kGradients) suspects = contributions();
    for (const auto& [key, values] : whole)
      if (key != difference_.key && values.size() == whole.at(difference_.key).size())
        suspects.push_back(
            {fmt::format("the numbers of '{}'", parameter_of(twins_.small, key).name), own_part(values)});
    return looks_like(found, right, difference_.scale, factors(), suspects);
  }

 private:
  std::vector<double> own_part(const std::vector<double>& whole) const {
    std::vector<double> part;
    for (const HeldState::Element& element : difference_.held.elements) part.push_back(whole[element.whole]);
    return part;
  }

  bool near(const std::vector<double>& a, const std::vector<double>& b) const {
    for (size_t i = 0; i < a.size(); i++)
      if (!(std::abs(a[i] - b[i]) <= kMostDifference * difference_.scale)) return false;
    return a.size() == b.size();
  }

  // Returns a text if the sum or mean over the ranks of an axis would be right; "" if there is no such axis.
  std::string never_reduced(const std::vector<double>& right) const {
    const Mesh& mesh = twins_.small.mesh;
    const std::vector<HeldState> all = held_state(pair_.job, pair_.run, difference_.kind);
    for (const Axis& axis : mesh.axes()) {
      if (axis.size == 1) continue;
      std::vector<double> sum(right.size(), 0);
      int members = 0;
      for (const int rank : mesh.group(axis.name, difference_.rank))
        for (const HeldState& held : all) {
          if (held.rank != rank || held.unit != difference_.held.unit) continue;
          std::map<int64_t, double> values;
          for (const HeldState::Element& element : held.elements)
            if (element.key == difference_.key) values[element.whole] = element.value;
          bool same = values.size() == right.size();
          for (size_t i = 0; i < right.size() && same; i++) {
            const auto value = values.find(difference_.held.elements[i].whole);
            same = value != values.end();
            if (same) sum[i] += value->second;
          }
          members += same ? 1 : 0;
        }
      if (members != axis.size) continue;
      if (near(sum, right))
        return fmt::format("this rank's part of a sum: the sum over {} ({} ranks) is missing", axis.name, axis.size);
      for (double& value : sum) value /= axis.size;
      if (near(sum, right))
        return fmt::format("this rank's own: the average over {} ({} ranks) is missing", axis.name, axis.size);
    }
    return "";
  }

  std::vector<NamedFactor> factors() const {
    std::map<int, std::string> names;
    std::vector<NamedFactor> all;
    for (const Axis& axis : twins_.small.mesh.axes()) {
      if (axis.size == 1) continue;
      std::string& name = names[axis.size];
      name += (name.empty() ? "" : " or ") + axis.name;
    }
    for (const auto& [size, name] : names) {
      all.push_back({1.0 * size, fmt::format("added up over {} ({} ranks) where the average is due", name, size)});
      all.push_back({1.0 / size, fmt::format("averaged over {} ({} ranks) where the sum is due", name, size)});
    }
    const int micro = twins_.small.microbatches;
    if (micro > 1 && names.count(micro) == 0) {
      all.push_back({1.0 * micro, fmt::format("the {} microbatches added up, each as if it were all", micro)});
      all.push_back({1.0 / micro, fmt::format("divided once more by the {} microbatches", micro)});
    }
    return all;
  }

  // Returns the gradients without one microbatch or one rank's samples, and those of only one of them.
  std::vector<Suspect> contributions() const {
    const Contributions parts = make_contributions(plan_, record_, twins_);
    const std::vector<std::vector<double>> gradients = gradients_of(parts);
    const int64_t ranks = parts.batch_ranks, micro = twins_.small.microbatches;
    std::vector<Suspect> suspects;
    const auto sum = [&](const std::string& text, auto takes) {
      Suspect suspect{text, std::vector<double>(difference_.held.elements.size(), 0)};
      for (int64_t m = 0; m < micro; m++)
        for (int64_t r = 0; r < ranks; r++)
          for (size_t i = 0; i < suspect.values.size() && takes(m, r); i++)
            suspect.values[i] += gradients[m * ranks + r][i] / static_cast<double>(micro * ranks);
      suspects.push_back(std::move(suspect));
    };
    const std::string axes = join(twins_.small.batch_axes, ", ");
    for (int64_t at = 0; at < micro && micro > 1; at++) {
      sum(fmt::format("microbatch {} is missing", at), [&](int64_t m, int64_t) { return m != at; });
      sum(fmt::format("made of microbatch {} alone", at), [&](int64_t m, int64_t) { return m == at; });
    }
    for (int64_t at = 0; at < ranks && ranks > 1; at++) {
      sum(fmt::format("the samples of place {} along {} are missing", at, axes),
          [&](int64_t, int64_t r) { return r != at; });
      sum(fmt::format("made of the samples of place {} along {} alone", at, axes),
          [&](int64_t, int64_t r) { return r == at; });
    }
    return suspects;
  }

  // Returns the gradient of this rank's part of the parameter, by step.
  std::vector<std::vector<double>> gradients_of(const Contributions& parts) const {
    std::vector<std::vector<double>> gradients;
    const Program& program = parts.job.classes.front();
    const std::vector<UnitPlace> places = unit_places(program, difference_.kind);
    VirtualOptions options;
    options.after = [&](const RankMemory& memory, const Op& op) {
      if (op.def->role != OpRole::optimizer) return;
      for (const UnitPlace& place : places) {
        const Tensor& tensor = program.tensors[place.tensor];
        if (op.reads[0] != place.tensor) continue;
        std::vector<double> whole;
        for (const ParameterElement& at : parameter_elements(place.init->attrs, tensor.count(), memory)) {
          if (at.key != difference_.key) continue;
          whole.resize(std::max(whole.size(), static_cast<size_t>(at.whole) + 1));
          whole[at.whole] = load_element(tensor.dtype, memory.data(place.tensor), at.here);
        }
        if (!whole.empty()) gradients.push_back(own_part(whole));
      }
    };
    run_virtual_ranks(parts.job, *open_device("reference"), options);
    PRUN_CHECK(std::ssize(gradients) == parts.plan.steps, std::to_string(gradients.size()));
    return gradients;
  }

  const Plan& plan_;
  const RecordPlan& record_;
  const Twins& twins_;
  const RunPair& pair_;
  const Difference& difference_;
};

constexpr const char* kLine = "\n  {:<11} {}";

std::optional<Op> last_writer(const Job& job, VirtualOptions options, int rank, TensorId tensor) {
  LastWriter writer(rank, tensor);
  options.after = [&](const RankMemory& memory, const Op& op) { writer.see(memory, op); };
  run_virtual_ranks(job, *open_device("reference"), options);
  return writer.last();
}

void tell_writer(Explanation& told, const std::optional<Op>& op) {
  told.text += fmt::format(kLine, "made by:", op ? op_text(*op) : "no op of the step");
  if (op && op->site.known()) told.site = op->site;
}

// A loss has no elements to compare, so the explanation names the first activation that is no part of the single
// rank's.
Explanation explain_loss(const Twins& twins, const VirtualOptions& options, const Difference& difference) {
  Explanation told;
  const std::string loss = fmt::format("the {} on rank {}: {:.9g}, one rank has {:.9g}", difference.what,
                                       difference.rank, difference.found, difference.right);
  const Program& program = twins.small_job.program(difference.rank);
  const BodyId body = difference.what == kLoss ? kStepBody : program.bodies.last();
  if (const std::optional<FirstActivation> first = first_activation(twins, options, body)) {
    told.text = fmt::format(
        kLine,
        "first:", fmt::format("'{}' on rank {}, which is no part of what one rank has", first->name, first->rank));
    tell_writer(told, first->op);
    told.text += fmt::format(kLine, "looks like:", first->looks);
    told.text += fmt::format(kLine, "then:", loss);
  } else {
    told.text = fmt::format(kLine, "first:", loss);
    tell_writer(told, last_writer(twins.small_job, options, difference.rank, program.bodies[body].loss));
  }
  return told;
}

}  // namespace

Explanation explain(const Plan& plan, const RecordPlan& record, const Twins& twins, const RunPair& pair,
                    const VirtualOptions& options, const Difference& difference) {
  if (difference.key < 0) return explain_loss(twins, options, difference);
  Explanation told;
  const Value& parameter = parameter_of(twins.small, difference.key);
  const std::string what = difference.what == kParameters  ? ""
                           : difference.what == kGradients ? "the gradient of "
                                                           : difference.what + " of ";
  if (difference.held.elements.empty()) {
    told.text = fmt::format(kLine, "first:", fmt::format("{}'{}': no rank has all its elements", what, parameter.name));
    told.site = parameter.site;
    return told;
  }
  told.text = fmt::format(kLine, "first:",
                          fmt::format("{}'{}' on rank {}: {:.9g}, one rank has {:.9g}", what, parameter.name,
                                      difference.rank, difference.found, difference.right));
  tell_writer(told, last_writer(pair.job, options, difference.rank, difference.held.tensor));
  told.text += fmt::format(kLine, "looks like:", Explainer(plan, record, twins, pair, difference).looks());
  return told;
}

}  // namespace prun
