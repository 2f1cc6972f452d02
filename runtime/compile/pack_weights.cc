// Weights that several products of a body read in one orientation are packed once, in the layout that the device's
// products read, where the device wants that: with several microbatches each would copy the weight anew.
//
// A packed copy is a tensor like its weight, in a buffer of as many bytes as its layout takes; it lives from its op to
// the last product that reads it. Surprising fact: which products share a copy is read off the program, not off the
// strategy. A weight that is gathered anew for each microbatch is another version each time, and stays as it is.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "compile/compile_state.h"
#include "compile/ir_build.h"
#include "ir/ops.h"
#include "ir/order.h"

namespace prun {
namespace {

// Of what persists, packed copies may take so much where a plan says `fitting`: optimizer state is two to four times
// the weights, and both orientations are another two.
constexpr int64_t kShareOfState = 4;

constexpr size_t kWeight = 1;  // the operand of a product

// Products that would read the same copy.
struct Readers {
  std::vector<int> at;  // ops of the compute stream
  int64_t bytes = 0;    // of the copy
  bool turned = false;  // the weight as products read it is transposed
};

// y = x·w and dx = dy·wᵀ, of a w that is stored transposed the other way round.
bool reads_turned(const Op& op) {
  const bool forward = op.is(ops::linear) || op.is(ops::linear_gelu);
  return (op.attrs.integer("transpose") != 0) == forward;
}

class Packing {
 public:
  Packing(CompileState& state, Body& body) : state_(state), program_(state.program), body_(body) {}

  void run() {
    if (body_.streams.empty() || body_.streams[0].ops.empty()) return;
    std::vector<Readers> found = shared_copies();
    if (state_.plan.pack_weights == PackWeights::fitting) keep_what_fits(found);
    if (!found.empty()) insert(found);
  }

 private:
  std::vector<Op>& ops() { return body_.streams[0].ops; }

  // By weight, orientation and version: how many writes of its buffer come before.
  std::vector<Readers> shared_copies() {
    using Key = std::tuple<TensorId, bool, size_t>;
    const Order order(body_);
    if (!order.stuck().empty()) return {};  // verify says it better
    std::map<BufferId, std::vector<OpRef>> writers;
    for (const StreamId s : body_.streams.ids())
      for (int i = 0; i < std::ssize(body_.streams[s].ops); ++i)
        for (const TensorId id : body_.streams[s].ops[i].writes) writers[program_.tensors[id].buffer].push_back({s, i});
    std::map<Key, Readers> all;
    for (int i = 0; i < std::ssize(ops()); ++i) {
      const Op& op = ops()[i];
      const int64_t bytes = state_.options.packed_bytes(program_, op);
      if (bytes <= 0) continue;
      const bool turned = reads_turned(op);
      size_t version = 0;
      for (const OpRef write : writers[program_.tensors[op.reads[kWeight]].buffer])
        version += order.before(write, {0, i}) ? 1 : 0;
      Readers& readers = all[{op.reads[kWeight], turned, version}];
      readers.at.push_back(i);
      readers.bytes = bytes;
      readers.turned = turned;
    }
    std::vector<Readers> shared;
    for (auto& [key, readers] : all)
      if (readers.at.size() > 1) shared.push_back(std::move(readers));
    std::sort(shared.begin(), shared.end(), [](const Readers& a, const Readers& b) { return a.at[0] < b.at[0]; });
    return shared;
  }

  // Copies of turned weights first: they spare two to three times as much. Of each kind those that are read most.
  void keep_what_fits(std::vector<Readers>& found) const {
    int64_t room = 0;
    for (const Buffer& buffer : program_.buffers)
      if (buffer.persistent && buffer.space == Space::device) room += buffer.bytes / kShareOfState;
    std::vector<const Readers*> order;
    for (const Readers& readers : found) order.push_back(&readers);
    std::stable_sort(order.begin(), order.end(), [](const Readers* a, const Readers* b) {
      return std::tuple(a->turned, a->at.size()) > std::tuple(b->turned, b->at.size());
    });
    std::vector<Readers> kept;
    for (const Readers* readers : order) {
      if (readers->bytes > room) continue;
      room -= readers->bytes;
      kept.push_back(*readers);
    }
    found = std::move(kept);
    std::sort(found.begin(), found.end(), [](const Readers& a, const Readers& b) { return a.at[0] < b.at[0]; });
  }

  Op pack(const Readers& readers) {
    Op& first = ops()[readers.at[0]];
    const Tensor weight = program_.tensors[first.reads[kWeight]];
    const std::string name = fmt::format("{}.packed{}", weight.name, readers.turned ? ".turned" : "");
    const TensorId packed = add_tensor(program_, name, Role::gathered, weight.type(), false, first.site);
    Buffer& buffer = program_.buffers[program_.tensors[packed].buffer];
    buffer.bytes = round_up(std::max(buffer.bytes, readers.bytes), kAlignBytes);
    Op op = make_op(ops::pack_weight, {first.reads[kWeight]}, {packed}, first.phase, first.site);
    if (readers.turned) op.attrs.set("transpose", int64_t{1});
    op.unit = first.unit;
    op.waits = std::move(first.waits);  // what the first reader waited for, it waits for behind this
    first.waits.clear();
    for (const int at : readers.at) {
      Op& reader = ops()[at];
      reader.reads[kWeight] = packed;
      reader.attrs = attrs_.with(reader.attrs, "packed", int64_t{1});
    }
    return op;
  }

  // Each copy is made in front of its first reader.
  void insert(const std::vector<Readers>& found) {
    std::vector<Op> copies;
    for (const Readers& readers : found) copies.push_back(pack(readers));
    std::vector<Op> all;
    std::vector<int> moved;  // where each op has gone; one behind the last, too
    for (int i = 0; i < std::ssize(ops()); ++i) {
      const size_t made = all.size() - moved.size();
      if (made < found.size() && found[made].at[0] == i) all.push_back(std::move(copies[made]));
      moved.push_back(static_cast<int>(all.size()));
      all.push_back(std::move(ops()[i]));
    }
    moved.push_back(static_cast<int>(all.size()));
    ops() = std::move(all);
    for (Stream& stream : body_.streams)
      for (Op& op : stream.ops)
        for (Edge& edge : op.waits)
          if (edge.stream == 0) edge.index = moved[edge.index];
    if (!body_.repeat.any()) return;
    Repeat::Span& period = body_.repeat.ops[StreamId(0)];
    const int first = moved[period.first];
    period = {first, moved[period.first + period.count] - first};
  }

  CompileState& state_;
  Program& program_;
  Body& body_;
  SharedAttrs attrs_;
};

}  // namespace

void pack_weights(CompileState& state) {
  if (!state.options.packed_bytes || state.plan.pack_weights == PackWeights::none) return;
  for (Body& body : state.program.bodies) Packing(state, body).run();
}

}  // namespace prun
