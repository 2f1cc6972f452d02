// Small hand-made programs for the tests of runtime/verify.
#pragma once
#include <algorithm>
#include <string>
#include <vector>

#include "ir/ops.h"
#include "ir/program.h"
#include "verify/verify.h"

namespace prun {

// Returns the op without shape inference, so that a test may give it any number of operands.
inline OpDef without_shapes(OpDef op) {
  op.infer = nullptr;
  return op;
}
inline const OpDef kCompute = without_shapes(ops::add);
inline const OpDef& kAllReduce = ops::all_reduce;
inline const OpDef& kAllGather = ops::all_gather;
inline const OpDef& kBroadcast = ops::broadcast;
inline const OpDef& kSend = ops::send;
inline const OpDef& kRecv = ops::recv;
inline const OpDef& kPut = ops::put;
inline const OpDef& kSignal = ops::signal;
inline const OpDef& kWaitSignal = ops::wait_signal;

inline const OpDef& kLoad = ops::load;
inline const OpDef& kStore = ops::store;

// Builds a program op by op; the site of each op is plan.lua:<number of the op>.
class Builder {
 public:
  explicit Builder(std::vector<Axis> axes = {{"dp", 2}}) { program.mesh = Mesh(std::move(axes)); }

  // Adds a buffer of `floats` elements and a tensor over all of it; returns the tensor.
  int buffer(const std::string& name, int64_t floats, int64_t offset = -1) {
    Buffer b;
    b.name = name;
    b.bytes = round_up(floats * 4, kAlignBytes);
    b.offset = offset >= 0 ? offset : program.arena_bytes;
    b.site = {"plan.lua", 100 + static_cast<int>(program.buffers.size())};
    program.arena_bytes = std::max(program.arena_bytes, b.offset + b.bytes);
    program.buffers.push_back(b);
    return tensor(static_cast<int>(program.buffers.size()) - 1, 0, floats);
  }
  int persistent(const std::string& name, int64_t floats) {
    const int id = buffer(name, floats);
    program.buffers.back().persistent = true;
    return id;
  }
  int tensor(BufferId buffer, int64_t first_float, int64_t floats) {
    Tensor t;
    t.name = "t" + std::to_string(program.tensors.size());
    t.buffer = buffer;
    t.byte_offset = first_float * 4;
    t.shape = {floats};
    program.tensors.push_back(t);
    return static_cast<int>(program.tensors.size()) - 1;
  }
  Op& op(const OpDef& def, std::vector<TensorId> reads, std::vector<TensorId> writes, int stream = 0,
         std::vector<Edge> waits = {}, bool init = false) {
    Body& body = init ? program.init() : program.step();
    static const char* const kNames[] = {"compute", "comm", "other"};
    while (static_cast<int>(body.streams.size()) <= stream) body.streams.push_back({kNames[body.streams.size()], {}});
    Op o;
    o.def = &def;
    o.reads = std::move(reads);
    o.writes = std::move(writes);
    o.waits = std::move(waits);
    o.site = {"plan.lua", ++lines_};
    if (def.op_class == OpClass::communication) {
      o.axis = "dp";
      o.lane = stream;
    }
    std::vector<Op>& ops = body.streams[static_cast<size_t>(stream)].ops;
    ops.push_back(o);
    return ops.back();
  }
  Job job() const {
    Job j;
    j.classes.push_back(program);
    j.class_of_rank.assign(static_cast<size_t>(program.mesh.ranks()), 0);
    return j;
  }
  Program program;

 private:
  int lines_ = 0;
};

inline std::string only(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) {
    if (!text.empty()) text += "\n";
    text += finding.rule + ": " + finding.message;
  }
  return text;
}

inline std::string check(const Builder& builder) { return only(verify_job(builder.job(), 0)); }
inline std::string check(const Builder& a, const Builder& b, std::vector<int> class_of_rank = {0, 1}) {
  Job job;
  job.classes = {a.program, b.program};
  job.class_of_rank = std::move(class_of_rank);
  return only(verify_job(job, 0));
}

}  // namespace prun
