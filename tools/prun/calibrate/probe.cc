// Each rank reads its own recorder after its steps, and sends one line of JSON.
#include "calibrate/probe.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/error.h"
#include "calibrate/launch_lines.h"
#include "calibrate/recorded_events.h"
#include "exec/recorder.h"
#include "ir/op_cost.h"
#include "job/build.h"
#include "job/device_check.h"
#include "job/rank.h"
#include "simulate/fit.h"
#include "simulate/op_cost.h"

namespace prun {
namespace {

using ProbeJson = nlohmann::json;

constexpr uint64_t kProbeEvents = 1 << 14;

// The end times of a stream's events, by step and op.
using Ends = std::map<std::pair<uint32_t, uint32_t>, uint64_t>;

class RecordedOps {
 public:
  RecordedOps(const Program& program, RecorderHeader* recorder) : program_(program), recorder_(recorder) {}

  ProbeJson read() {
    const Body& body = program_.step();
    for (int s = 0; s < std::ssize(body.streams); ++s)
      each_event(recorder_, s, [&](const OpEvent& event) { ends_[s][{event.op, event.step}] = event.end_ns; });
    for (int s = 0; s < std::ssize(body.streams); ++s) read_stream(s, body.streams[s]);
    return {{"ops", ops_}, {"wakes", wakes_}};
  }

 private:
  void read_stream(int s, const Stream& stream) {
    std::map<uint32_t, std::vector<double>> seconds;
    each_event(recorder_, s, [&](const OpEvent& event) {
      const Op& op = stream.ops[event.op];
      if (op.def->op_class == OpClass::compute)
        seconds[event.op].push_back(static_cast<double>(event.end_ns - event.begin_ns) * 1e-9);
      for (const Edge& edge : op.waits) {
        const auto end = ends_[edge.stream].find({edge.index, event.step});
        if (edge.back == 0 && end != ends_[edge.stream].end() && end->second > event.ready_ns &&
            event.begin_ns >= end->second)
          wakes_.push_back(static_cast<double>(event.begin_ns - end->second) * 1e-9);
      }
    });
    for (const auto& [index, times] : seconds) {
      const Op& op = stream.ops[index];
      const Cost cost = op_cost(program_, op);
      ops_.push_back({op.def->name, dtype_name(simulate::op_dtype(program_, op)), cost.flops, cost.bytes,
                      cost.model > 0, middle_of(times)});
    }
  }

  const Program& program_;
  RecorderHeader* recorder_;
  std::map<StreamId, Ends> ends_;
  ProbeJson ops_ = ProbeJson::array();
  std::vector<double> wakes_;
};

Probe merged(const std::vector<std::string>& lines) {
  std::map<std::tuple<std::string, std::string, double, double, bool>, std::vector<double>> alike;
  std::vector<double> wakes;
  std::vector<ProbeJson> transfers;
  for (const std::string& line : lines) {
    const ProbeJson rank = ProbeJson::parse(line);
    transfers.push_back(rank["transfers"]);
    for (const ProbeJson& op : rank["ops"]) alike[{op[0], op[1], op[2], op[3], op[4]}].push_back(op[5].get<double>());
    for (const ProbeJson& wake : rank["wakes"]) wakes.push_back(wake.get<double>());
  }
  Probe probe;
  for (const auto& [key, seconds] : alike) {
    const auto& [op, dtype, flops, bytes, product] = key;
    probe.ops.push_back({op, parse_dtype(dtype).value_or(Dtype::f32), flops, bytes, product, middle_of(seconds)});
  }
  if (!wakes.empty()) probe.wake_s = middle_of(wakes);
  probe.transfers = transfers_of_all(transfers);
  return probe;
}

}  // namespace

Probe run_probe(const JobSpec& spec, const std::map<std::string, std::string>& settings) {
  JobSpec probe = spec;
  probe.purpose = Purpose::train;
  probe.plan = "plans/gpt.lua";
  probe.settings = settings;
  probe.check_replicas = 0;
  probe.launch.recorder_bytes = recorder_bytes(kProbeEvents);
  const DeviceReport devices = check_devices(probe);
  const Job job = build_job(probe, probe.launch.nproc);
  const std::vector<std::string> lines = launch_lines(probe.launch, serialize_job(job), [&](const RankStart& start) {
    auto* recorder = static_cast<RecorderHeader*>(start.recorder);
    recorder->capacity = kProbeEvents;
    recorder->magic = kRecorderMagic;
    const int code = run_rank(start, probe, devices);
    if (code == 0) {
      const Job ran = written_out(parse_job(start.job));
      const Program& program = ran.program(start.rank);
      ProbeJson found = RecordedOps(program, recorder).read();
      found["transfers"] = recorded_transfers(program, start.rank, recorder);
      start.launcher->print(found.dump());
    }
    return code;
  });
  return merged(lines);
}

}  // namespace prun
