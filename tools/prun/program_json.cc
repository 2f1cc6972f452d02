#include "program_json.h"

#include <nlohmann/json.hpp>

namespace prun {
namespace {

using Json = nlohmann::ordered_json;

// Tensors are given by their index in the program's list.
Json op_json(const Op& op) {
  Json out = {{"op", op.def->name}, {"reads", Json::array()}, {"writes", Json::array()}};
  for (const TensorId id : op.reads) out["reads"].push_back(id.index());
  for (const TensorId id : op.writes) out["writes"].push_back(id.index());
  if (op.communicates()) out["axis"] = op.axis, out["lane"] = op.lane;
  out["phase"] = phase_name(op.phase);
  if (!op.unit.empty()) out["unit"] = op.unit;
  if (op.microbatch >= 0) out["microbatch"] = op.microbatch;
  if (op.site.known()) out["at"] = op.site.text();
  Json waits = Json::array();
  for (const Edge& edge : op.waits)
    waits.push_back({{"stream", edge.stream.index()}, {"op", edge.index}, {"steps_back", edge.back}});
  if (!waits.empty()) out["waits"] = waits;
  return out;
}

Json body_json(const Body& body) {
  Json streams = Json::array();
  for (const Stream& stream : body.streams) {
    Json ops = Json::array();
    for (const Op& op : stream.ops) ops.push_back(op_json(op));
    streams.push_back({{"name", stream.name}, {"ops", ops}});
  }
  return {{"name", body.name}, {"every", body.when.every}, {"times", body.when.times}, {"streams", streams}};
}

Json program_json(const Program& program) {
  Json tensors = Json::array(), bodies = Json::array();
  for (const Tensor& tensor : program.tensors) {
    const Buffer& buffer = program.buffers[tensor.buffer];
    tensors.push_back({{"name", tensor.name},
                       {"dtype", dtype_name(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"buffer", buffer.name},
                       {"buffer_bytes", buffer.bytes},
                       {"persistent", buffer.persistent},
                       {"role", role_name(buffer.role)},
                       {"space", buffer.space == Space::host ? "host" : "device"},
                       {"offset", buffer.offset < 0 ? -1 : buffer.offset + tensor.byte_offset}});
  }
  for (const Body& body : program.bodies) bodies.push_back(body_json(body));
  return {{"arena_bytes", program.arena_bytes}, {"tensors", tensors}, {"bodies", bodies}};
}

}  // namespace

Json job_json(const Job& job) {
  Json classes = Json::array();
  for (const Program& program : job.classes) classes.push_back(program_json(program));
  const Program& first = job.classes.front();
  return {{"plan", first.name},
          {"mesh", first.mesh.text()},
          {"device", first.device},
          {"steps", first.schedule.steps},
          {"class_of_rank", job.class_of_rank},
          {"classes", classes}};
}

}  // namespace prun
