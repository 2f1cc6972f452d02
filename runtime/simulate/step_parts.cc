// Attributes a rank's time between consecutive begins and ends of spans by the clock's priorities: compute, then
// transfers, then copies, then waiting. Concurrent spans of one kind have equal shares.
#include <algorithm>
#include <array>
#include <vector>

#include "simulate/op_cost.h"
#include "simulate/simulate.h"

namespace prun::simulate {
namespace {

enum Layer : uint8_t { kComputes, kTransfers, kCopies, kWaits, kLayers };

struct Interval {
  double begin = 0, end = 0;
  Layer layer = kComputes;
  const Op* op = nullptr;
  double alone = 0;  // compute: seconds without overlapped transfers
};

struct Moment {
  double at = 0;
  bool begins = false;
  size_t interval = 0;
};

class RankParts {
 public:
  RankParts(const Program& program, const DeviceModel& device, double speed, const ClassResult& of, double step_s)
      : program_(program), device_(device), speed_(speed) {
    Table<StreamId, double> stream_ends(program.step().streams.size(), 0);
    for (const OpSpan& span : of.spans) {  // in the order of their ends, hence in stream order
      double& before = stream_ends[span.op.stream];
      if (span.ready < step_s) add(span, before, step_s);
      before = span.end;
    }
  }

  void add_to(std::map<StepPart, double>& parts, double step_s, double share) {
    std::vector<Moment> moments;
    for (size_t i = 0; i < intervals_.size(); ++i) {
      moments.push_back({intervals_[i].begin, true, i});
      moments.push_back({intervals_[i].end, false, i});
    }
    std::sort(moments.begin(), moments.end(), [](const Moment& a, const Moment& b) { return a.at < b.at; });
    std::vector<double> seconds(intervals_.size(), 0);
    std::array<std::vector<size_t>, kLayers> running;
    double now = 0, unnamed = 0;
    const auto pass_to = [&](double then) {
      const auto first = std::find_if(running.begin(), running.end(), [](const auto& layer) { return !layer.empty(); });
      if (first == running.end())
        unnamed += then - now;
      else
        for (const size_t i : *first) seconds[i] += (then - now) / static_cast<double>(first->size());
      now = then;
    };
    for (const Moment& moment : moments) {
      pass_to(moment.at);
      std::vector<size_t>& layer = running[intervals_[moment.interval].layer];
      if (moment.begins)
        layer.push_back(moment.interval);
      else
        std::erase(layer, moment.interval);
    }
    pass_to(step_s);
    for (size_t i = 0; i < intervals_.size(); ++i) put(parts, intervals_[i], share * seconds[i], share);
    if (unnamed > 0) parts[{PartKind::waiting, "", "", ""}] += share * unnamed;
  }

 private:
  void add(OpSpan span, double before, double step_s) {
    span.end = std::min(span.end, step_s);  // the remainder belongs to the next step
    span.begin = std::min(span.begin, step_s);
    const Op& op = program_.step().streams[span.op.stream].ops[span.op.index];
    const bool transfers = op.communicates() && !op.offers();
    const double begin = std::max(span.ready, span.begin);  // a message may be in flight before its receiver arrives
    if (transfers && begin > span.ready) intervals_.push_back({span.ready, begin, kWaits, &op});
    if (span.end <= begin) return;
    Interval runs{begin, span.end, kComputes, &op};
    if (transfers)
      runs.layer = kTransfers;
    else if (op.def->op_class == OpClass::transfer)
      runs.layer = kCopies;
    else
      runs.alone = op_time(device_, program_, op).seconds / speed_ + (span.ready > before ? device_.wake_s : 0);
    intervals_.push_back(runs);
  }

  static void put(std::map<StepPart, double>& parts, const Interval& of, double seconds, double share) {
    if (seconds <= 0) return;
    const std::string name(of.op->def->name);
    if (of.layer == kTransfers) parts[{PartKind::exposed, name, of.op->axis, ""}] += seconds;
    if (of.layer == kCopies) parts[{PartKind::copy, name, "", ""}] += seconds;
    if (of.layer == kWaits) parts[{PartKind::waiting, name, of.op->axis, ""}] += seconds;
    if (of.layer != kComputes) return;
    const double own = std::min(seconds, share * of.alone);
    parts[{PartKind::compute, name, "", of.op->site.text()}] += own;
    if (seconds > own) parts[{PartKind::slowed, "", "", ""}] += seconds - own;
  }

  const Program& program_;
  const DeviceModel& device_;
  const double speed_;
  std::vector<Interval> intervals_;
};

}  // namespace

std::map<StepPart, double> step_parts(const Job& job, const Cluster& cluster, const Simulation& simulation) {
  const std::vector<RankPlace> places = place_ranks(cluster, simulation.ranks);
  std::map<StepPart, double> parts;
  for (const ClassResult& of : simulation.classes) {
    const RankPlace place = places[of.first_rank];
    RankParts rank(job.program(of.first_rank), cluster.node_at(place.node).device, speed_of(cluster, place), of,
                   simulation.step_s);
    rank.add_to(parts, simulation.step_s, static_cast<double>(of.ranks) / simulation.ranks);
  }
  return parts;
}

}  // namespace prun::simulate
