// An event is written as [step, op, ready, begin, end]; times are nanoseconds on the clock of node 0.
#include "watch/flight.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace prun {
namespace {

using Json = nlohmann::ordered_json;

std::vector<OpEvent> last_events(RecorderHeader& recorder, int stream, size_t count) {
  const uint64_t written = recorder.stream[stream].written.load(std::memory_order_acquire);
  const uint64_t kept = std::min({written, static_cast<uint64_t>(count), recorder.capacity});
  std::vector<OpEvent> events;
  for (uint64_t at = written - kept; at < written; ++at) {
    const OpEvent event = recorder_ring(&recorder, stream)[at & (recorder.capacity - 1)];
    if (event.end_ns != 0) events.push_back(event);  // 0: not sent by the other node
  }
  return events;
}

Json stream_json(const FlightStream& stream) {
  Json last = Json::array();
  for (const OpEvent& event : stream.last)
    last.push_back({event.step, event.op, event.ready_ns, event.begin_ns, event.end_ns});
  return {{"op", stream.op},           {"step", stream.step},         {"run", stream.run},
          {"running", stream.running}, {"since_ns", stream.since_ns}, {"last", std::move(last)}};
}

FlightStream parse_stream(const Json& json) {
  FlightStream stream{json.at("op"), json.at("step"), json.at("run"), json.at("running"), json.at("since_ns"), {}};
  for (const Json& event : json.at("last"))
    stream.last.push_back({event.at(0), event.at(1), event.at(2), event.at(3), event.at(4)});
  return stream;
}

Json rank_json(const FlightRank& rank) {
  Json streams = Json::array();
  for (const FlightStream& stream : rank.streams) streams.push_back(stream_json(stream));
  return {{"rank", rank.rank},
          {"node", rank.node},
          {"host", rank.host},
          {"pid", rank.pid},
          {"process", std::string(1, rank.process)},
          {"stopped_ns", rank.stopped_ns},
          {"phase", static_cast<uint32_t>(rank.phase)},
          {"body", rank.body},
          {"doing", rank.doing},
          {"alive_ns", rank.alive_ns},
          {"beat_ns", rank.beat_ns},
          {"steps", rank.steps},
          {"saving", rank.saving},
          {"saving_ns", rank.saving_ns},
          {"saved", rank.saved},
          {"streams", std::move(streams)}};
}

FlightRank parse_rank(const Json& json) {
  FlightRank rank;
  rank.rank = json.at("rank");
  rank.node = json.at("node");
  rank.host = json.at("host");
  rank.pid = json.at("pid");
  rank.process = json.at("process").get<std::string>().at(0);
  rank.stopped_ns = json.at("stopped_ns");
  rank.phase = static_cast<RunPhase>(json.at("phase").get<uint32_t>());
  rank.body = json.at("body");
  rank.doing = json.at("doing");
  rank.alive_ns = json.at("alive_ns");
  rank.beat_ns = json.value("beat_ns", uint64_t{0});  // missing in older flights
  rank.steps = json.at("steps");
  rank.saving = json.at("saving");
  rank.saving_ns = json.at("saving_ns");
  rank.saved = json.at("saved");
  for (const Json& stream : json.at("streams")) rank.streams.push_back(parse_stream(stream));
  return rank;
}

}  // namespace

const FlightRank* Flight::of(int rank) const {
  for (const FlightRank& one : ranks)
    if (one.rank == rank) return &one;
  return nullptr;
}

FlightRank read_recorder(RecorderHeader& recorder, size_t events) {
  FlightRank rank;
  rank.phase = recorder.phase.load(std::memory_order_acquire);
  rank.body = recorder.body.load(std::memory_order_acquire);
  rank.doing.assign(recorder.doing, strnlen(recorder.doing, sizeof recorder.doing));
  rank.alive_ns = recorder.alive_ns.load();
  rank.beat_ns = recorder.beat_ns.load();
  rank.steps = recorder.steps_written.load();
  rank.saving = recorder.saving.load();
  rank.saving_ns = recorder.saving_ns.load();
  rank.saved = recorder.saved.load();
  for (int s = 0; s < kMaxStreams; ++s) {
    const StreamState& state = recorder.stream[s];
    if (state.since_ns.load() == 0 && state.written.load() == 0) continue;  // the job has fewer streams
    rank.streams.resize(static_cast<size_t>(s) + 1);
    rank.streams.back() = {state.op.load(),      state.step.load(),     state.run.load(),
                           state.running.load(), state.since_ns.load(), last_events(recorder, s, events)};
  }
  return rank;
}

std::string flight_json(const Flight& flight) {
  Json ranks = Json::array();
  for (const FlightRank& rank : flight.ranks) ranks.push_back(rank_json(rank));
  const Json json = {
      {"format", 1}, {"wall_time", flight.wall_time}, {"now_ns", flight.now_ns}, {"ranks", std::move(ranks)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Flight parse_flight(const std::string& text, const std::string& path) {
  try {
    const Json json = Json::parse(text);
    if (json.at("format") != 1) throw usage_error(fmt::format("{} is of another version of prun", path));
    Flight flight{json.at("now_ns"), json.at("wall_time"), {}};
    for (const Json& rank : json.at("ranks")) flight.ranks.push_back(parse_rank(rank));
    return flight;
  } catch (const std::exception& error) {
    if (dynamic_cast<const Error*>(&error) != nullptr) throw;
    throw usage_error(fmt::format("{} is damaged: {}", path, error.what()));
  }
}

}  // namespace prun
