// --check-finite: appends to every op that writes floats, on its stream, an op that records whether they are finite,
// and to the body one op that reads all records.
//
// Every value is checked once, by the rank that writes it; a value from another rank is checked on arrival, and the
// result of a rooted collective at its root. Other ops treat an op and its check as one: an edge to the op becomes an
// edge to its check.
#include <fmt/format.h>

#include <algorithm>

#include "compile/compile_state.h"
#include "compile/ir_build.h"
#include "ir/ops.h"

namespace prun {
namespace {

constexpr size_t kMostReads = 15;  // reads of one check: two bits each

// Ops whose results another check covers: the tensor of an offer is checked when the put has arrived; a tensor stored
// to host memory is checked when it is computed and again when it is loaded; a tensor that several ops write in parts,
// after the last one.
bool is_seen_elsewhere(const Op& op) { return op.offers() || op.is(ops::store) || op.attrs.integer("continued") != 0; }

// Returns whether the op writes slots of a round of experts, which it leaves as they are if no slot has a token. The
// results that later ops add up are checked.
bool may_leave(const Op& op, TensorId tensor) {
  if (!op.attrs.has("round") || op.is(ops::combine) || op.is(ops::dispatch_grad)) return false;
  if (op.is(ops::combine_grad)) return tensor == op.writes[0];
  return !op.is(ops::expert_linear_dw) && !op.is(ops::expert_linear_dw_add) && !op.is(ops::add);
}

// Returns the float tensors that the op writes, without duplicates.
std::vector<TensorId> results(const Program& program, const Op& op) {
  std::vector<TensorId> tensors;
  if (is_seen_elsewhere(op)) return tensors;
  for (const TensorId id : op.writes) {
    const Dtype dtype = program.tensors[id].dtype;
    if (may_leave(op, id)) continue;
    if (computes(dtype) && std::find(tensors.begin(), tensors.end(), id) == tensors.end()) tensors.push_back(id);
  }
  PRUN_CHECK(tensors.size() <= kMostReads, fmt::format("{} writes {} tensors", op.def->name, tensors.size()));
  return tensors;
}

Op check_of(const Op& made, std::vector<TensorId> tensors, TensorId flag) {
  Op check;
  check.def = &ops::check_finite;
  check.reads = std::move(tensors);
  check.writes = {flag};
  if (made.is(ops::reduce) || made.is(ops::gather)) {  // only the root writes its result
    check.attrs.set("axis", made.axis);
    check.attrs.set("root", made.attrs.integer("root"));
  }
  if (made.is(ops::all_gather_v)) {
    check.attrs.set("counted", int64_t{1});
    check.reads.push_back(made.writes[1]);
  }
  // The maximum of a shard that is all padding is infinite.
  if (made.is(ops::cross_entropy_max)) check.attrs.set("infinite", int64_t{1});
  check.phase = made.phase;
  check.unit = made.unit;
  check.microbatch = made.microbatch;
  check.site = made.site;
  return check;
}

void check_body(Program& program, Body& body) {
  int64_t checks = 0;
  for (const Stream& stream : body.streams)
    for (const Op& op : stream.ops) checks += results(program, op).empty() ? 0 : 1;
  if (checks == 0) return;
  const TensorId flags = add_tensor(program, "finite." + body.name, Role::data, {Dtype::i32, {checks}}, false,
                                    body.streams[0].ops.front().site);
  Table<StreamId, std::vector<int>> moved;  // new index of each op, or of its check
  int64_t next = 0;
  for (Stream& stream : body.streams) {
    std::vector<Op> ops;
    std::vector<int>& to = moved.emplace_back();
    for (Op& op : stream.ops) {
      std::vector<TensorId> tensors = results(program, op);
      ops.push_back(std::move(op));
      if (!tensors.empty()) {
        const TensorId flag = add_view(program, fmt::format("finite[{}]", next), flags, next, {});
        ops.push_back(check_of(ops.back(), std::move(tensors), flag));
        ++next;
      }
      to.push_back(ops.size() - 1);
    }
    stream.ops = std::move(ops);
  }
  for (Stream& stream : body.streams)
    for (Op& op : stream.ops)
      for (Edge& edge : op.waits) edge.index = moved[edge.stream][edge.index];
  Op require;
  require.def = &ops::require_finite;
  require.reads = {flags};
  require.phase = body.streams[0].ops.back().phase;
  body.streams[0].ops.push_back(std::move(require));  // the last op of stream 0 waits for all others: step_barrier.cc
}

}  // namespace

void check_finite(CompileState& state) {
  if (!state.options.check_finite) return;
  for (Body& body : state.program.bodies) check_body(state.program, body);
}

}  // namespace prun
