#include "draw/ideal_costs.h"

#include <algorithm>
#include <map>
#include <set>

#include "draw/groups.h"
#include "draw/program_view.h"
#include "ir/op_cost.h"

namespace prun::draw {
namespace {

constexpr double kForward = 1, kBackward = 2, kOptimizer = 0.25, kReduction = 0.5, kSmallShare = 0.1,
                 kLatencyShare = 0.2;
constexpr double kLeast = 1e-3;  // of a forward: every op is seen

double bytes_of(const Program& program, const Op& op) {
  int64_t bytes = 0;
  for (const std::vector<TensorId>* ids : {&op.reads, &op.writes})
    for (const TensorId id : *ids) bytes += program.tensors[id].bytes();
  return static_cast<double>(bytes);
}

// The larger side of a collective: what is gathered or reduced.
double whole_bytes(const Program& program, const Op& op) {
  int64_t sides[2] = {0, 0};
  for (const TensorId id : op.reads) sides[0] += program.tensors[id].bytes();
  for (const TensorId id : op.writes) sides[1] += program.tensors[id].bytes();
  return static_cast<double>(std::max(sides[0], sides[1]));
}

class Coster {
 public:
  explicit Coster(const Program& program) : program_(program) {
    for (const Stream& stream : program.step().streams)
      for (const Op& op : stream.ops) count(op);
    double largest = 0;
    for (const auto& [unit, flops] : forward_by_unit_) largest = std::max(largest, flops);
    for (const auto& [unit, flops] : forward_by_unit_)
      if (flops * 4 >= largest) units_++;
    repetitions_ = std::max<size_t>(1, reduced_microbatches_.size());
  }

  double cost(const Op& op) const {
    const double small = kSmallShare * kForward / std::max(1, units_);
    if (op.communicates()) {
      if (program_.mesh.size(op.axis) < 2) return kLeast;
      const BoxKind kind = kind_of_op(op);
      if ((kind != BoxKind::gradient && kind != BoxKind::gather) || gradient_bytes_ <= 0) return small;
      const double times = op.def->coll == CollKind::all_reduce ? 2 : 1;
      const double whole = gradient_bytes_ / static_cast<double>(repetitions_);
      return small * kLatencyShare + kReduction * times * whole_bytes(program_, op) / whole;
    }
    if (op.def->op_class != OpClass::compute) return op.def->op_class == OpClass::transfer ? small : kLeast;
    const double microbatches = std::max<double>(1, static_cast<double>(microbatches_.size()));
    switch (op.phase) {
      case Phase::forward:
        return std::max(kLeast, part(op, forward_) * kForward * microbatches);
      case Phase::backward:
        return std::max(kLeast, part(op, makes_weights(op) ? weights_ : backward_) * split_share(op) * microbatches);
      case Phase::step:
        return std::max(kLeast, kOptimizer * bytes_of(program_, op) / std::max(1.0, step_bytes_));
      case Phase::program:
        return kForward;
      default:
        return kLeast;
    }
  }

 private:
  BoxKind kind_of_op(const Op& op) const {
    return kind_of({op.def->name, phase_name(op.phase), role_of_result(program_, op), op.communicates()});
  }
  bool makes_weights(const Op& op) const { return kind_of_op(op) == BoxKind::weight_gradient; }
  // Halves of a backward take the same; where nothing is a gradient of weights by itself, the other has all.
  double split_share(const Op&) const { return weights_ > 0 && backward_ > 0 ? kBackward / 2 : kBackward; }
  double part(const Op& op, double all) const { return all > 0 ? op_cost(program_, op).flops / all : 0; }

  void count(const Op& op) {
    if (op.microbatch >= 0) microbatches_.insert(op.microbatch);
    const double flops = op.def->op_class == OpClass::compute ? op_cost(program_, op).flops : 0;
    if (op.communicates()) {
      if (kind_of_op(op) != BoxKind::gradient || program_.mesh.size(op.axis) < 2) return;
      gradient_bytes_ += whole_bytes(program_, op);
      reduced_microbatches_.insert(op.microbatch);
    } else if (op.phase == Phase::forward) {
      forward_ += flops;
      forward_by_unit_[op.unit] += flops;
    } else if (op.phase == Phase::backward) {
      (makes_weights(op) ? weights_ : backward_) += flops;
    } else if (op.phase == Phase::step) {
      step_bytes_ += bytes_of(program_, op);
    }
  }

  const Program& program_;
  double forward_ = 0, backward_ = 0, weights_ = 0, step_bytes_ = 0, gradient_bytes_ = 0;
  size_t repetitions_ = 1;
  int units_ = 0;
  std::map<std::string, double> forward_by_unit_;
  std::set<int> microbatches_, reduced_microbatches_;
};

}  // namespace

OpCosts ideal_costs(const Program& program) {
  const Coster coster(program);
  OpCosts costs;
  for (const Stream& stream : program.step().streams) {
    std::vector<double>& of_stream = costs.emplace_back();
    for (const Op& op : stream.ops) of_stream.push_back(coster.cost(op));
  }
  return costs;
}

}  // namespace prun::draw
