// Reads a trace of `prun --trace` (Chrome JSON, written by trace.cc) into a timeline. It reads event by event, because
// a trace may be far larger than the part that is kept.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json_whole.h"
#include "draw/timeline.h"
#include "draw/timeline_sources.h"

namespace prun::draw {
namespace {

using Json = nlohmann::ordered_json;
using Track = std::pair<int, int>;  // rank, stream

constexpr double kLatestMicros = 1e12;  // 11 days; a double of a later time is not exact to a nanosecond

int64_t nanoseconds(const Json& event, const char* key) {
  const double micros = event.at(key).get<double>();
  if (!(micros >= 0 && micros <= kLatestMicros)) throw usage_error(fmt::format("'{}' is {}", key, micros));
  return std::llround(micros * 1000);
}

int small_number(const Json& object, const char* key, int missing, int least = -1) {
  if (!object.contains(key)) return missing;
  if (!object[key].is_number_integer())
    throw usage_error(fmt::format("'{}' is {}, should be a whole number", key, object[key].dump()));
  const int64_t number = json_whole(object[key]);
  if (number < least || number > 10'000'000) throw usage_error(fmt::format("'{}' is {}", key, number));
  return static_cast<int>(number);
}

class TraceReader {
 public:
  TraceReader(int first, int last) : first_(first), last_(last) {}

  void event(const Json& event) {
    const std::string what = event.value("ph", "");
    if (what == "M") {
      metadata(event);
    } else if (what == "X") {
      slice(event);
    } else if (what == "s" || what == "f") {
      flow(event, what == "s");
    }
  }

  Timeline take(const std::string& path) {
    if (timeline_.boxes.empty())
      throw usage_error(dropped_ > 0
                            ? fmt::format("{} has no ops of these steps (--steps)", path)
                            : fmt::format("{} has no ops: its run ended before a step was whole on all ranks", path));
    timeline_.source = path;
    timeline_.name = "measured";
    from_first_event();
    number_lanes();
    put_waits();
    put_arrows();
    finish(timeline_);
    return std::move(timeline_);
  }

 private:
  struct Wait {
    Track track;
    int64_t begin, end;
  };
  struct Flow {
    Track from, to;
    int64_t leaves = -1, arrives = -1;
    bool between_ranks = false;
  };

  static Track track_of(const Json& event) {
    return {small_number(event, "pid", 0, 0), small_number(event, "tid", 0, 0)};
  }

  void metadata(const Json& event) {
    if (event.value("name", "") == "thread_name") names_[track_of(event)] = event.at("args").at("name");
  }

  void slice(const Json& event) {
    const Track track = track_of(event);
    const int64_t begin = nanoseconds(event, "ts"), end = begin + nanoseconds(event, "dur");
    const std::string name = event.at("name"), category = event.value("cat", "");
    if (category == "wait") {
      waits_.push_back({track, begin, end});
      return;
    }
    const Json args = event.value("args", Json::object());
    Box box;
    box.step = small_number(args, "step", 0);
    if (box.step < first_ || box.step > last_) {
      dropped_++;
      return;
    }
    box.ready = box.begin = box.arrived = begin;
    box.end = std::max(end, begin + 1);
    box.op = small_number(args, "op", 0);
    box.microbatch = small_number(args, "microbatch", -1);
    box.bytes = args.contains("bytes") ? json_whole(args["bytes"]) : 0;
    const std::string unit = args.value("unit", ""), phase = args.value("phase", ""), role = args.value("role", "");
    box.kind = kind_of({std::string_view(name).substr(0, name.find(' ')), phase, role, category == "communication"});
    Texts& texts = timeline_.texts;
    box.name = texts.add(name);
    box.unit = texts.add(unit);
    box.phase = texts.add(phase);
    box.site = texts.add(args.value("at", ""));
    box.group = texts.add(args.value("group", ""));
    names_.emplace(track, "");
    tracks_.push_back(track);
    timeline_.boxes.push_back(box);
  }

  void flow(const Json& event, bool leaves) {
    Flow& flow = flows_[json_whole(event.at("id"))];
    (leaves ? flow.from : flow.to) = track_of(event);
    (leaves ? flow.leaves : flow.arrives) = nanoseconds(event, "ts");
    flow.between_ranks = event.value("name", "") == "collective";
  }

  void from_first_event() {
    int64_t origin = INT64_MAX;
    for (const Box& box : timeline_.boxes) origin = std::min(origin, box.begin);
    for (Box& box : timeline_.boxes)
      for (int64_t* time : {&box.ready, &box.begin, &box.arrived, &box.end}) *time -= origin;
    for (Wait& wait : waits_) wait.begin -= origin, wait.end -= origin;
    for (auto& [id, flow] : flows_) flow.leaves -= origin, flow.arrives -= origin;
  }

  void number_lanes() {
    for (const auto& [track, name] : names_) {
      lane_of_[track] = static_cast<int>(timeline_.lanes.size());
      timeline_.lanes.push_back({track.first, track.second, -1, name, fmt::format("rank {}", track.first)});
    }
    for (size_t i = 0; i < timeline_.boxes.size(); ++i) timeline_.boxes[i].lane = lane_of_[tracks_[i]];
    std::stable_sort(timeline_.boxes.begin(), timeline_.boxes.end(),
                     [](const Box& a, const Box& b) { return std::tie(a.lane, a.begin) < std::tie(b.lane, b.begin); });
  }

  // Returns the box of a track that is running at a moment, or -1.
  int box_at(const Track& track, int64_t time) const {
    const auto lane = lane_of_.find(track);
    if (lane == lane_of_.end()) return -1;
    const auto after =
        std::upper_bound(timeline_.boxes.begin(), timeline_.boxes.end(), std::pair(lane->second, time),
                         [](const auto& at, const Box& box) { return at < std::pair(box.lane, box.begin); });
    if (after == timeline_.boxes.begin()) return -1;
    const Box& box = *(after - 1);
    return box.lane == lane->second && time <= box.end ? static_cast<int>(after - timeline_.boxes.begin()) - 1 : -1;
  }

  // A wait before a box ends at its begin; a wait for other ranks is the beginning of a box.
  void put_waits() {
    for (const Wait& wait : waits_) {
      const int within = box_at(wait.track, wait.begin);
      if (within >= 0 && timeline_.boxes[static_cast<size_t>(within)].begin == wait.begin &&
          timeline_.boxes[static_cast<size_t>(within)].end >= wait.end) {
        Box& box = timeline_.boxes[static_cast<size_t>(within)];
        box.arrived = std::max(box.arrived, wait.end);
      } else if (const int before = box_at(wait.track, wait.end); before >= 0) {
        Box& box = timeline_.boxes[static_cast<size_t>(before)];
        if (box.begin == wait.end) box.ready = std::min(box.ready, wait.begin);
      }
    }
  }

  void put_arrows() {
    for (const auto& [id, flow] : flows_) {
      const int from = box_at(flow.from, flow.leaves), to = box_at(flow.to, flow.arrives);
      if (from >= 0 && to >= 0 && from != to) timeline_.arrows.push_back({from, to, flow.between_ranks});
    }
  }

  int first_, last_;
  int64_t dropped_ = 0;
  Timeline timeline_;
  std::vector<Track> tracks_;  // tracks by box
  std::map<Track, std::string> names_;
  std::map<Track, int> lane_of_;
  std::vector<Wait> waits_;
  std::map<int64_t, Flow> flows_;
};

}  // namespace

Timeline read_trace_file(const std::string& path, int first, int last) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw usage_error(fmt::format("cannot read {}: {}", path, std::strerror(errno)));
  if (file.peek() == std::ifstream::traits_type::eof())
    throw usage_error(fmt::format("{} is empty: no trace was written to it", path));
  TraceReader reader(first, last);
  bool in_events = false;
  int64_t events = 0;
  const auto on_value = [&](int depth, Json::parse_event_t what, Json& value) {
    if (what == Json::parse_event_t::key && depth == 1) in_events = value == "traceEvents";
    if (!in_events || depth != 2 || what != Json::parse_event_t::object_end) return true;
    ++events;
    reader.event(value);
    return false;  // not kept
  };
  try {
    const Json json = Json::parse(file, on_value);
    if (!json.is_object() || !json.contains("traceEvents") || !json["traceEvents"].is_array())
      throw usage_error(fmt::format("{} is not a trace of `prun PLAN --trace`: it has no traceEvents", path));
    return reader.take(path);
  } catch (const Json::parse_error& error) {
    throw usage_error(fmt::format("{} is not valid JSON, or is truncated, at byte {}", path, error.byte));
  } catch (const Json::exception& error) {
    const std::string why = error.what();  // "[json.exception.type_error.302] type must be number, but is string"
    throw usage_error(
        fmt::format("{}: event {} is not valid in a trace: {}", path, events, why.substr(why.find(' ') + 1)));
  } catch (Error& error) {
    if (error.message().starts_with(path)) throw;
    throw usage_error(fmt::format("{}: event {}: {}", path, events, error.message()));
  }
}

}  // namespace prun::draw
