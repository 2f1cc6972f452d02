// Unrolls repeats: adds the tensors and buffers of the omitted microbatches, then the ops.
#include "ir/repeat.h"

#include <fmt/format.h>

#include <map>
#include <tuple>
#include <utility>

#include "ir/program.h"

namespace prun {

WrittenOut::WrittenOut(const Body& body) : body_(body) {}

int64_t WrittenOut::ops(StreamId stream) const {
  const Repeat& repeat = body_.repeat;
  const int64_t listed = std::ssize(body_.streams[stream].ops);
  return repeat.any() ? listed + repeat.times * repeat.ops[stream].count : listed;
}

WrittenOut::Place WrittenOut::at(StreamId stream, int64_t index) const {
  const Repeat& repeat = body_.repeat;
  if (!repeat.any()) return {static_cast<int>(index), 0};
  const auto [first, count] = repeat.ops[stream];
  const int64_t behind = index - first - count;
  if (behind < 0) return {static_cast<int>(index), 0};
  if (behind >= repeat.times * count) return {static_cast<int>(index - repeat.times * count), repeat.times};
  return {static_cast<int>(first + behind % count), 1 + behind / count};
}

int64_t WrittenOut::target(StreamId stream, int index, int64_t copy) const {
  if (copy == 0) return index;
  const auto [first, count] = body_.repeat.ops[stream];
  return index >= first - count ? index + copy * count : index;
}

int64_t WrittenOut::runs(StreamId stream, int index) const {
  if (!body_.repeat.any()) return 1;
  const auto [first, count] = body_.repeat.ops[stream];
  return index >= first && index < first + count ? 1 + body_.repeat.times : 1;
}

namespace {

class Writer {
 public:
  Writer(const Program& listed, Program& out, Body& body) : listed_(listed), out_(out), body_(body) {
    const Repeat& repeat = body.repeat;
    member_.assign(listed.buffers.size(), {-1, -1, 0});
    slide_.assign(listed.tensors.size(), 0);
    for (const Repeat::Member& member : repeat.members) {
      member_[member.buffer] = {member.buffer, member.ring, member.microbatch};
      of_microbatch_[{member.ring, member.microbatch}] = member.buffer;
    }
    for (const Repeat::Slide& slide : repeat.slides) slide_[slide.tensor] = slide.bytes;
    for (const TensorId id : listed.tensors.ids())
      if (member_[listed.tensors[id].buffer].ring >= 0 || slide_[id] != 0)
        tensors_.try_emplace(key(listed.tensors[id]), id);
    for (const Repeat::Growth& growth : repeat.growths) growths_[{growth.stream, growth.index}].push_back(&growth);
  }

  void write() {
    const Body from = body_;
    const WrittenOut places(from);
    for (StreamId stream : from.streams.ids()) {
      std::vector<Op>& ops = body_.streams[stream].ops;
      ops.clear();
      ops.reserve(places.ops(stream));
      for (int64_t i = 0; i < places.ops(stream); ++i) {
        const WrittenOut::Place at = places.at(stream, i);
        ops.push_back(further(from, places, stream, at));
      }
    }
    body_.repeat = {};
  }

 private:
  Op further(const Body& from, const WrittenOut& places, StreamId stream, WrittenOut::Place at) {
    Op op = from.streams[stream].ops[at.index];
    for (Edge& edge : op.waits) {
      const auto [first, count] = from.repeat.ops[edge.stream];
      const bool behind = edge.index >= first + count;
      edge.index = static_cast<int>(edge.back > 0 ? edge.index + (behind ? from.repeat.times * count : 0)
                                                  : places.target(edge.stream, edge.index, at.copy));
    }
    const int64_t by = at.copy * from.repeat.microbatches;
    if (by == 0) return op;
    if (op.microbatch >= 0) op.microbatch += static_cast<int>(by);
    for (std::vector<TensorId>* ids : {&op.reads, &op.writes})
      for (TensorId& id : *ids) id = further(id, by);
    if (const auto found = growths_.find({stream, at.index}); found != growths_.end())
      for (const Repeat::Growth* growth : found->second)
        op.attrs.set(growth->attr, op.attrs.integer(growth->attr) + growth->by * by);
    return op;
  }

  TensorId further(TensorId id, int64_t by) {
    const Tensor& listed = listed_.tensors[id];
    const int ring = member_[listed.buffer].ring;
    if (ring < 0 && slide_[id] == 0) return id;
    Tensor tensor = listed;
    if (ring >= 0) {
      const int from = member_[listed.buffer].microbatch;
      tensor.buffer = buffer(listed.buffer, ring, from + by);
      tensor.name = renamed(tensor.name, from, from + by);
    } else {
      tensor.byte_offset += slide_[id] * by;
      const int64_t from = slide_[id] == 0 ? 0 : listed.byte_offset / slide_[id];
      tensor.name = renamed(tensor.name, from, from + by);
    }
    return known(std::move(tensor));
  }

  // Ops that name the same tensor share it, wherever they are listed.
  TensorId known(Tensor tensor) {
    auto [known, fresh] = tensors_.try_emplace(key(tensor), out_.tensors.next());
    if (fresh) out_.tensors.push_back(std::move(tensor));
    return known->second;
  }

  using Key = std::tuple<BufferId, int64_t, std::string, Dtype, Shape>;
  static Key key(const Tensor& tensor) {
    return {tensor.buffer, tensor.byte_offset, tensor.name, tensor.dtype, tensor.shape};
  }

  BufferId buffer(BufferId like, int ring, int64_t microbatch) {
    auto [known, fresh] = of_microbatch_.try_emplace({ring, microbatch}, -1);
    if (!fresh) return known->second;
    const Repeat::Ring& places = body_.repeat.rings[ring];
    Buffer made = listed_.buffers[like];
    made.name = renamed(made.name, member_[like].microbatch, microbatch);
    if (made.offset >= 0) made.offset = places.offset + places.place(microbatch) * places.bytes;
    if (places.pool >= 0) made.slot = places.place(microbatch);
    out_.buffers.push_back(std::move(made));
    return known->second = out_.buffers.last();
  }

  // Renames for a microbatch: "block0.h#1" becomes "block0.h#3".
  static std::string renamed(const std::string& name, int64_t from, int64_t to) {
    const std::string label = fmt::format("#{}", from);
    return name.ends_with(label) ? fmt::format("{}#{}", name.substr(0, name.size() - label.size()), to) : name;
  }

  struct Place {
    BufferId buffer;
    int ring = -1, microbatch = 0;
  };
  const Program& listed_;
  Program& out_;
  Body& body_;
  Table<BufferId, Place> member_;
  Table<TensorId, int64_t> slide_;
  std::map<std::pair<int, int64_t>, BufferId> of_microbatch_;  // ring, microbatch
  std::map<Key, TensorId> tensors_;
  std::map<std::pair<StreamId, int>, std::vector<const Repeat::Growth*>> growths_;
};

}  // namespace

Program written_out(const Program& program) {
  Program out = program;
  for (Body& body : out.bodies)
    if (body.repeat.any()) Writer(program, out, body).write();
  return out;
}

Job written_out(const Job& job) {
  Job out{{}, job.class_of_rank, job.numerics};
  for (const Program& program : job.classes) out.classes.push_back(written_out(program));
  return out;
}

}  // namespace prun
