#include <algorithm>
#include <map>
#include <set>

#include "draw/program_view.h"
#include "draw/timeline.h"
#include "draw/timeline_sources.h"
#include "ir/op_cost.h"

namespace prun::draw {
namespace {

constexpr double kForward = kIdealUnitNs * 1e-9;  // seconds
constexpr double kReduction = 0.5 * kForward, kOptimizer = 0.25 * kForward;
constexpr double kMessage = 0.1;            // fraction of a unit's forward
constexpr double kLeast = 1e-3 * kForward;  // lower bound per op, so that every op is visible

// Work of a rank class in a step.
struct Work {
  double forward = 0, largest_unit = 0;  // FLOPs of a microbatch's forward, and of the forward of its largest unit
  double gradients = 0, weights = 0;     // FLOPs of a microbatch's gradients of activations, and of weights
  double update_bytes = 0;               // bytes accessed by the optimizer
  double gradient_bytes = 0, other_bytes = 0;  // bytes reduced per microbatch, and bytes of the largest other transfer
};

bool makes_weights(const Op& op) {
  return kind_of({op.def->name, phase_name(op.phase), "", false}) == BoxKind::weight_gradient;
}

Work work_of(const Program& program) {
  Work work;
  std::map<std::string, double> units;
  std::set<int> microbatches, reduced;
  double all = 0;
  for (const Stream& stream : program.step().streams)
    for (const Op& op : stream.ops) {
      if (op.microbatch >= 0) microbatches.insert(op.microbatch);
      if (op.communicates()) {
        if (program.mesh.size(op.axis) < 2) continue;
        const double bytes = simulate::full_bytes(program, op);
        const std::string_view role = role_of_result(program, op);
        if (kind_of({op.def->name, phase_name(op.phase), role, true}) == BoxKind::gradient) {
          work.gradient_bytes += bytes;
          reduced.insert(op.microbatch);
        } else if (role != "gathered" && role != "param") {
          work.other_bytes = std::max(work.other_bytes, bytes);
        }
      } else if (op.def->op_class == OpClass::compute) {
        const Cost cost = op_cost(program, op);
        all += cost.flops;
        if (op.phase == Phase::forward) units[op.unit] += cost.flops;
        if (op.def->role == OpRole::derivative) (makes_weights(op) ? work.weights : work.gradients) += cost.flops;
        if (op.def->optimizer != nullptr) work.update_bytes += cost.bytes;
      }
    }
  const double times = static_cast<double>(std::max<size_t>(1, microbatches.size()));
  for (const auto& [unit, flops] : units) {
    work.forward += flops / times;
    work.largest_unit = std::max(work.largest_unit, flops / times);
  }
  if (work.forward == 0) work.forward = work.largest_unit = std::max(1.0, all);  // a program without a model
  work.gradients /= times, work.weights /= times;
  work.gradient_bytes /= static_cast<double>(std::max<size_t>(1, reduced.size()));
  return work;
}

}  // namespace

simulate::Cluster ideal_cluster(const Job& job) {
  std::vector<Work> works;
  for (const Program& program : job.classes) works.push_back(work_of(program));
  Work most;
  double unit = 1;  // smallest fraction of a class's forward that its largest unit takes
  for (const Work& work : works) {
    most.forward = std::max(most.forward, work.forward);
    most.gradients = std::max(most.gradients, work.gradients);
    most.weights = std::max(most.weights, work.weights);
    most.update_bytes = std::max(most.update_bytes, work.update_bytes);
    most.gradient_bytes = std::max(most.gradient_bytes, work.gradient_bytes);
    most.other_bytes = std::max(most.other_bytes, work.other_bytes);
    unit = std::min(unit, work.largest_unit / work.forward);
  }
  const double message = kMessage * unit * kForward;

  simulate::Cluster cluster;
  cluster.name = "ideal";
  simulate::DeviceModel& device = cluster.node.device;
  const auto rate = [](double per_second) { return prun::Curve{{{1, std::max(1.0, per_second)}}}; };
  for (const Program& program : job.classes)
    for (const Stream& stream : program.step().streams)
      for (const Op& op : stream.ops) {
        simulate::OpRates& rates = device.ops[{std::string(op.def->name), simulate::op_dtype(program, op)}];
        rates.launch_s = kLeast;
        if (op.def->optimizer != nullptr)
          rates.bandwidth = rate(most.update_bytes / kOptimizer);
        else
          rates.rate = rate((op.def->role != OpRole::derivative ? most.forward
                             : makes_weights(op)                ? most.weights
                                                                : most.gradients) /
                            kForward);
      }
  device.bus_slowdown = 1;
  cluster.device = device;
  cluster.node.devices = static_cast<int>(job.class_of_rank.size());
  for (int rank = 0; rank < cluster.node.devices; ++rank)
    cluster.node.slow.emplace_back(rank, works[job.class_of_rank[rank]].forward / most.forward);
  cluster.bus.bandwidth = std::max({1.0, most.gradient_bytes / kReduction, most.other_bytes / message});
  cluster.bus.message_s = 0;  // the time of a message comes from its bytes alone
  cluster.collective_s = message;
  cluster.bus.message_efficiency = 1;
  return cluster;
}

}  // namespace prun::draw
