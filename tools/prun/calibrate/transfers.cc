// Matches the transfers of different ranks by name. A collective is named by its position in the common program, a
// message by its two ranks and its number within the step.
#include "calibrate/transfers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "calibrate/recorded_events.h"
#include "ir/walk.h"
#include "simulate/fit.h"
#include "simulate/op_cost.h"

namespace prun {
namespace {

using TransferJson = nlohmann::json;
using simulate::CollectiveRates;

constexpr double kSmallTransfer = 16384;  // smaller transfers are dominated by latency

struct Span {
  uint64_t begin = 0, end = 0;
};

// Returns the fraction of a span in which this rank computed.
double computed_part(const std::vector<Span>& computed, const Span& span) {
  double inside = 0;
  for (const Span& each : computed)
    if (each.begin < span.end && each.end > span.begin)
      inside += static_cast<double>(std::min(each.end, span.end) - std::max(each.begin, span.begin));
  return inside / std::max(1.0, static_cast<double>(span.end - span.begin));
}

}  // namespace

nlohmann::json recorded_transfers(const Program& program, int rank, RecorderHeader* recorder) {
  const Body& body = program.step();
  std::vector<Span> computed;
  for (int s = 0; s < std::ssize(body.streams); ++s)
    each_event(recorder, s, [&](const OpEvent& event) {
      if (body.streams[s].ops[event.op].def->op_class == OpClass::compute)
        computed.push_back({event.begin_ns, event.end_ns});
    });
  TransferJson all = TransferJson::array();
  std::map<std::string, int> numbers;  // number of messages so far, by pair and step
  for (int s = 0; s < std::ssize(body.streams); ++s)
    each_event(recorder, s, [&](const OpEvent& event) {
      const Op& op = body.streams[s].ops[event.op];
      if (!op.communicates() || op.offers() || op.one_sided()) return;
      std::string name;
      double bytes = 0;
      int members = 2;
      if (op.point_to_point()) {
        const int peer = peer_rank(program.mesh, op, rank), from = op.sends() ? rank : peer;
        const std::string pair = fmt::format("{}>{}@{}", from, op.sends() ? peer : rank, event.step);
        name = fmt::format("{}#{}", pair, numbers[pair]++);
        bytes = static_cast<double>(program.tensors[op.sends() ? op.reads[0] : op.writes[0]].bytes());
      } else {
        const std::vector<int> group = program.mesh.group(op.axis, rank);
        name = fmt::format("{}.{}:{}@{}", group.front(), s, event.op, event.step);
        bytes = simulate::full_bytes(program, op);
        members = static_cast<int>(group.size());
      }
      if (members < 2 || bytes < kSmallTransfer) return;
      const Span span{event.begin_ns, event.end_ns};
      const int kind = op.point_to_point() ? -1 : static_cast<int>(op.def->coll.value_or(CollKind::barrier));
      constexpr double kAlone = 0.05;
      all.push_back({name, kind, members, bytes, span.begin, span.end, computed_part(computed, span) < kAlone});
    });
  return all;
}

std::vector<TransferSample> transfers_of_all(const std::vector<nlohmann::json>& ranks) {
  struct Meeting {
    int kind = 0, members = 0, came = 0;
    double bytes = 0;
    uint64_t begin = 0, end = 0;
    bool alone = true;
  };
  std::map<std::string, Meeting> meetings;
  for (const TransferJson& rank : ranks)
    for (const TransferJson& each : rank) {
      Meeting& meeting = meetings[each[0]];
      meeting.kind = each[1];
      meeting.members = each[2];
      meeting.bytes = each[3];
      meeting.begin = std::max(meeting.begin, each[4].get<uint64_t>());
      meeting.end = std::max(meeting.end, each[5].get<uint64_t>());
      meeting.alone = meeting.alone && each[6].get<bool>();
      ++meeting.came;
    }
  std::map<std::tuple<int, int, double>, std::vector<double>> alike;
  for (const auto& [name, meeting] : meetings)
    if (meeting.came == meeting.members && meeting.alone && meeting.end > meeting.begin)
      alike[{meeting.kind, meeting.members, meeting.bytes}].push_back(static_cast<double>(meeting.end - meeting.begin) *
                                                                      1e-9);
  std::vector<TransferSample> samples;
  for (auto& [what, seconds] : alike) {
    const auto& [kind, members, bytes] = what;
    samples.push_back({kind < 0 ? std::nullopt : std::optional(static_cast<CollKind>(kind)), members, bytes,
                       middle_of(std::move(seconds))});
  }
  return samples;
}

void take_transfers(const std::vector<TransferSample>& samples, simulate::LinkModel& link) {
  std::map<CollKind, std::map<int, std::vector<std::pair<double, double>>>> points;  // points by power of two
  std::vector<double> messages;
  for (const TransferSample& sample : samples) {
    if (!sample.kind) {
      messages.push_back(sample.bytes / std::max(sample.seconds - link.message_s, 0.1 * sample.seconds));
      continue;
    }
    const CollectiveRates& rates = link.collectives[*sample.kind];
    const double c = *sample.kind == CollKind::all_reduce ? 2 : 1, n = sample.ranks;
    const double moved = (traits(*sample.kind).rooted ? 1 : c * (n - 1) / n) * sample.bytes;
    const double seconds = std::max(sample.seconds - c * (n - 1) * rates.step_s, 0.1 * sample.seconds);
    points[*sample.kind][static_cast<int>(std::lround(std::log2(moved)))].emplace_back(moved, moved / seconds);
  }
  for (const auto& [kind, sizes] : points) {
    Curve& curve = link.collectives[kind].bandwidth;
    const int first = sizes.begin()->first, last = sizes.rbegin()->first;
    std::erase_if(curve.at, [&](const auto& point) {
      const double power = std::log2(point.first);
      return power > first - 2 && power < last + 2;
    });
    for (const auto& [power, alike] : sizes) {
      std::vector<double> moved, speed;
      for (const auto& [bytes, each] : alike) moved.push_back(bytes), speed.push_back(each);
      curve.at.emplace_back(middle_of(moved), middle_of(speed));
    }
    std::sort(curve.at.begin(), curve.at.end());
  }
  if (!messages.empty()) link.message_efficiency = std::min(1.0, middle_of(messages) / link.bandwidth);
}

}  // namespace prun
