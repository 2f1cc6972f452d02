// Times are microseconds with three decimals: the clock's nanoseconds.
//
// A flow arrow binds to the slice that encloses its time on its thread, so it leaves in the producer's last nanosecond
// and arrives in the consumer's first.
#include "watch/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/error.h"
#include "ir/order.h"

namespace prun {
namespace {

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Text common to all events of an op, rendered once.
struct OpText {
  std::string name, args;
  bool communicates = false;
  const char* category = "compute";
  std::string lane;   // group's axis and lane
  int sequence = -1;  // number of a collective on its lane within the step
  int message = -1;   // number of a message among those of its pair
};

using OpTexts = Table<StreamId, std::vector<OpText>>;  // by op

int64_t op_bytes(const Program& program, const Op& op) {
  int64_t bytes = 0;
  for (const std::vector<TensorId>* ids : {&op.reads, &op.writes})
    for (const TensorId id : *ids) bytes += program.tensors[id].bytes();
  return bytes;
}

OpTexts op_texts(const Program& program) {
  const Body& body = program.step();
  OpTexts texts(body.streams.size());
  for (size_t s = 0; s < body.streams.size(); s++) {
    for (size_t i = 0; i < body.streams[s].ops.size(); i++) {
      const Op& op = body.streams[s].ops[i];
      OpText text;
      text.communicates = op.communicates();
      text.category = op.communicates()                       ? "communication"
                      : op.def->op_class == OpClass::host     ? "host"
                      : op.def->op_class == OpClass::transfer ? "transfer"
                                                              : "compute";
      text.name = quoted(op.unit.empty() ? std::string(op.def->name) : fmt::format("{} {}", op.def->name, op.unit));
      text.args = fmt::format("\"at\":{},\"unit\":{},\"phase\":\"{}\",\"bytes\":{},\"op\":{}", quoted(op.site.text()),
                              quoted(op.unit), phase_name(op.phase), op_bytes(program, op), i);
      if (op.microbatch >= 0) text.args += fmt::format(",\"microbatch\":{}", op.microbatch);
      const std::vector<TensorId>& result = op.writes.empty() ? op.reads : op.writes;
      if (!result.empty())
        text.args +=
            fmt::format(",\"role\":\"{}\"", role_name(program.buffers[program.tensors[result.front()].buffer].role));
      if (op.communicates()) {
        text.lane = fmt::format("{}/{}", op.axis, op.lane);
        text.args += fmt::format(",\"group\":{},\"lane\":{}", quoted(op.axis), op.lane);
      }
      texts[s].push_back(std::move(text));
    }
  }
  std::map<std::string, int> next;
  std::map<std::tuple<std::string, int, bool>, int> next_message;  // by lane, offset of the peer, direction
  const Order order(body);
  for (const OpRef ref : order.sequence()) {
    OpText& text = texts[ref.stream][ref.index];
    if (!text.communicates) continue;
    text.sequence = next[text.lane]++;
    if (const Op& op = body.streams[ref.stream].ops[ref.index]; op.point_to_point())
      text.message = next_message[{text.lane, peer_offset(program.mesh, op), op.sends()}]++;
    text.args += fmt::format(",\"sequence\":{}", text.sequence);
  }
  return texts;
}

// Track and time of an event, for arrows from and to it.
struct Spot {
  int rank = 0, stream = 0;
  uint64_t begin_ns = 0, end_ns = 0;
};

Spot spot_of(int rank, StreamId stream, const OpEvent& event) {
  return {rank, stream.index(), event.begin_ns, std::max(event.end_ns, event.begin_ns + 1)};
}

using Meetings = std::map<std::tuple<uint32_t, std::string, int, int>,
                          std::vector<Spot>>;  // step, lane, group's first rank, sequence

class Writer {
 public:
  // `remark`: about the whole trace; "": none.
  Writer(OutputFile& file, uint64_t origin_ns, const std::string& remark)
      : file_(file), origin_(origin_ns), head_(Trace::kHead) {
    if (!remark.empty()) head_ += fmt::format("\"otherData\":{{\"prun\":{}}},", quoted(remark));
  }

  void name_track(int rank, int stream, const std::string& name) {
    if (stream == 0) {
      metadata(rank, 0, "process_name", fmt::format("\"name\":\"rank {}\"", rank));
      metadata(rank, 0, "process_sort_index", fmt::format("\"sort_index\":{}", rank));
    }
    metadata(rank, stream, "thread_name", fmt::format("\"name\":{}", quoted(name)));
    metadata(rank, stream, "thread_sort_index", fmt::format("\"sort_index\":{}", stream));
  }

  void op(const Spot& spot, const OpEvent& event, const OpText& text) {
    if (event.begin_ns > event.ready_ns) {
      slice(spot, event.ready_ns, event.begin_ns, "\"(wait for edge)\"", "wait",
            fmt::format("\"before\":{},\"step\":{}", text.name, event.step));
    }
    slice(spot, spot.begin_ns, spot.end_ns, text.name, text.category,
          fmt::format("{},\"step\":{}", text.args, event.step));
  }

  // An edge without a wait reads no clock, so the consumer may begin before the producer's recorded end; in that case
  // the arrow arrives after the begin.
  void edge_arrow(const Spot& from, const Spot& to) {
    const uint64_t leaves = from.end_ns - 1;
    if (leaves < to.end_ns) arrow("edge", from, leaves, to, std::max(to.begin_ns, leaves));
  }

  // Draws arrows from the last arrival of a collective to the others, and their wait for it as slices.
  void meeting(const std::vector<Spot>& members) {
    const Spot& last = *std::max_element(members.begin(), members.end(),
                                         [](const Spot& a, const Spot& b) { return a.begin_ns < b.begin_ns; });
    for (const Spot& member : members) {
      // A member that left before the last arrival (the root of a broadcast) did not wait for it.
      if (&member == &last || member.end_ns <= last.begin_ns) continue;
      if (last.begin_ns > member.begin_ns) {
        slice(member, member.begin_ns, last.begin_ns, fmt::format("\"(wait for rank {})\"", last.rank), "wait", "");
      }
      arrow("collective", last, last.begin_ns, member, std::max(last.begin_ns, member.begin_ns));
    }
  }

  void end() { file_.write(first_ ? "{\"traceEvents\":[]}\n" : "\n]}\n"); }

 private:
  void item(const std::string& json) {
    file_.write(first_ ? head_ + "\"traceEvents\":[\n" : ",\n");
    file_.write(json);
    first_ = false;
  }
  void metadata(int rank, int stream, const char* what, const std::string& args) {
    item(fmt::format("{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"{}\",\"args\":{{{}}}}}", rank, stream, what,
                     args));
  }
  void slice(const Spot& where, uint64_t begin, uint64_t end, const std::string& name, const char* category,
             const std::string& args) {
    item(fmt::format(
        "{{\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},\"name\":{},\"cat\":\"{}\",\"args\":{{{}}}}}",
        where.rank, where.stream, time(begin), micros(end - begin), name, category, args));
  }
  void arrow(const char* name, const Spot& from, uint64_t leaves, const Spot& to, uint64_t arrives) {
    arrows_++;
    item(fmt::format("{{\"ph\":\"s\",\"pid\":{},\"tid\":{},\"ts\":{},\"id\":{},\"name\":\"{}\",\"cat\":\"flow\"}}",
                     from.rank, from.stream, time(leaves), arrows_, name));
    item(fmt::format(
        "{{\"ph\":\"f\",\"bp\":\"e\",\"pid\":{},\"tid\":{},\"ts\":{},\"id\":{},\"name\":\"{}\",\"cat\":\"flow\"}}",
        to.rank, to.stream, time(arrives), arrows_, name));
  }
  static std::string micros(uint64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }
  std::string time(uint64_t ns) const { return micros(ns - origin_); }

  OutputFile& file_;
  uint64_t origin_;
  std::string head_;
  uint64_t arrows_ = 0;
  bool first_ = true;
};

}  // namespace

void require_traced(const StepWindow& window, int64_t first, int64_t last) {
  if (!window.given || first >= last) return;
  if (window.first >= last)
    throw usage_error(
        fmt::format("--trace-steps begins with step {}, and the run ends with step {}", window.first + 1, last));
  if (window.last < first)
    throw usage_error(
        fmt::format("--trace-steps ends with step {}, and the run begins with step {}", window.last + 1, first + 1));
}

void Trace::begin(const Job& job, const std::vector<int>& ranks, const std::vector<RecorderHeader*>& recorders) {
  file_.begin();
  job_ = &job;
  if (job.classes.empty()) return;
  for (size_t i = 0; i < ranks.size(); i++) {
    const int streams = static_cast<int>(job.program(ranks[i]).step().streams.size());
    for (int s = 0; s < streams; s++) tracks_.push_back({ranks[i], s, recorders[i], 0, {}});
  }
}

void Trace::started(const RunningJob& job) { begin(job.job, job.ranks, job.recorders); }

std::vector<IncompleteOutput> Trace::losses() const {
  std::vector<IncompleteOutput> all = losses_of(file_);
  if (lost_ > 0) all.push_back({fmt::format("{} lacks {} events that came too fast", file_.path(), lost_), false});
  if (full() && !window_.given) all.push_back({fmt::format("{} holds the first steps only", file_.path()), false});
  return all;
}

void Trace::collect() {
  if (full()) return;
  for (Track& track : tracks_) {
    const uint64_t capacity = track.recorder->capacity;
    const uint64_t written = track.recorder->stream[track.stream].written.load(std::memory_order_acquire);
    const OpEvent* ring = recorder_ring(track.recorder, track.stream);
    const size_t kept = track.events.size();
    const uint64_t from = std::max(track.read, written > capacity ? written - capacity : 0);
    for (uint64_t i = from; i < written; i++) track.events.push_back(ring[i & (capacity - 1)]);
    // The writer may have overwritten slots during the copy: drop those.
    const uint64_t now = track.recorder->stream[track.stream].written.load(std::memory_order_acquire);
    const uint64_t oldest = now + 1 > capacity ? now + 1 - capacity : 0;
    const uint64_t torn = std::min(oldest > from ? oldest - from : 0, written - from);
    track.events.erase(track.events.begin() + static_cast<std::ptrdiff_t>(kept),
                       track.events.begin() + static_cast<std::ptrdiff_t>(kept + torn));
    const auto copied = track.events.begin() + static_cast<std::ptrdiff_t>(kept);
    const size_t ops = job_->program(track.rank).step().streams[track.stream].ops.size();
    const auto no_event = [ops](const OpEvent& event) { return event.end_ns == 0 || event.op >= ops; };
    const auto whole = std::remove_if(copied, track.events.end(), no_event);  // gaps in another node's events
    lost_ += static_cast<uint64_t>(track.events.end() - whole);
    track.events.erase(whole, track.events.end());
    track.events.erase(
        std::remove_if(copied, track.events.end(), [&](const OpEvent& event) { return !window_.holds(event.step); }),
        track.events.end());
    lost_ += from - track.read + torn;
    track.read = written;
    kept_ += track.events.size() - kept;
  }
}

const Trace::Track* Trace::track_of(int rank, StreamId stream) const {
  for (const Track& track : tracks_)
    if (track.rank == rank && track.stream == stream) return &track;
  return nullptr;
}

// Searches by bisection, because events are ordered by step and op. Returns null if the event was lost or dropped.
const OpEvent* Trace::find(const Track& track, uint32_t step, uint32_t op) const {
  const auto at = std::lower_bound(
      track.events.begin(), track.events.end(), std::pair(step, op),
      [](const OpEvent& event, std::pair<uint32_t, uint32_t> key) { return std::pair(event.step, event.op) < key; });
  return at != track.events.end() && at->step == step && at->op == op ? &*at : nullptr;
}

// Drops the last steps that are incomplete on some stream.
void Trace::drop_last_steps() {
  uint32_t keep = UINT32_MAX;  // steps below it
  for (const Track& track : tracks_) {
    const size_t ops = job_->program(track.rank).step().streams[track.stream].ops.size();
    if (ops == 0) continue;
    if (track.events.empty()) return;
    const OpEvent& last = track.events.back();
    keep = std::min(keep, last.op + 1 == ops ? last.step + 1 : last.step);
  }
  for (Track& track : tracks_) {
    while (!track.events.empty() && track.events.back().step >= keep) track.events.pop_back();
  }
}

void Trace::finish() {
  if (full()) drop_last_steps();
  uint64_t origin = UINT64_MAX;
  for (const Track& track : tracks_)
    for (const OpEvent& event : track.events) origin = std::min(origin, event.ready_ns);
  Writer out(file_, origin,
             eager_ ? "ops were enqueued one by one: without --trace the device replays steps as graphs, "
                      "which take less time and overlap otherwise"
                    : "");
  std::vector<OpTexts> texts;
  for (const Program& program : job_->classes) texts.push_back(op_texts(program));

  Meetings meetings;
  for (const Track& track : tracks_) {
    const Program& program = job_->program(track.rank);
    const Stream& stream = program.step().streams[track.stream];
    const std::vector<OpText>& names = texts[job_->class_of_rank[track.rank]][track.stream];
    out.name_track(track.rank, track.stream, stream.name);
    for (const OpEvent& event : track.events) {
      const Op& op = stream.ops[event.op];
      const OpText& text = names[event.op];
      const Spot spot = spot_of(track.rank, track.stream, event);
      out.op(spot, event, text);
      for (const Edge& edge : op.waits) {
        const Track* source = track_of(track.rank, edge.stream);
        if (edge.stream == track.stream || source == nullptr || event.step < static_cast<uint32_t>(edge.back)) continue;
        const OpEvent* from =
            find(*source, event.step - static_cast<uint32_t>(edge.back), static_cast<uint32_t>(edge.index));
        if (from != nullptr) out.edge_arrow(spot_of(track.rank, edge.stream, *from), spot);
      }
      if (!text.communicates || op.offers()) continue;
      if (op.point_to_point()) {
        const std::vector<int> pair = members_of(program.mesh, op, track.rank);
        meetings[{event.step, fmt::format("{} to {}", text.lane, pair.back()), pair.front(), text.message}].push_back(
            spot);
        continue;
      }
      const int leader = program.mesh.group(op.axis, track.rank).front();
      meetings[{event.step, text.lane, leader, text.sequence}].push_back(spot);
    }
  }
  for (const auto& [key, members] : meetings) out.meeting(members);
  out.end();
  file_.flush();
}

}  // namespace prun
