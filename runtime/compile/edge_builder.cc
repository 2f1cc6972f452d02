// Derives edges from byte ranges: a read waits for overlapping writes, a write for overlapping reads and writes. An
// edge that other edges imply is omitted.
#include "compile/edge_builder.h"

#include <fmt/format.h>

#include <algorithm>

#include "compile/ir_build.h"
#include "ir/ops.h"

namespace prun {
namespace {

constexpr size_t kUsualAccesses = 4;  // most buffers have a writer and a few readers

bool is_in_mesh(const Mesh& mesh, const std::string& axis) { return axis == kWorld || mesh.has(axis); }

// Returns whether the op is a collective over a group of one rank. A malformed collective is not simplified, so that
// verify reports it in the plan's terms.
bool is_alone(const Program& program, const Op& op) {
  if (op.def->role != OpRole::collective || !op.def->coll) return false;
  if (!is_in_mesh(program.mesh, op.axis) || program.mesh.size(op.axis) > 1) return false;
  const CollTraits& kind = op.def->collective();
  if (kind.rooted && op.attrs.integer("root") != 0) return false;
  if (kind.reduces && !parse_redop(op.attrs.text("op", "sum"))) return false;
  const auto fits = [&](TensorId in, TensorId out) {
    const Tensor &from = program.tensors[in], &to = program.tensors[out];
    return from.dtype == to.dtype && from.count() == to.count();
  };
  return std::equal(op.reads.begin(), op.reads.end(), op.writes.begin(), op.writes.end(), fits);
}

bool are_same_bytes(const Tensor& a, const Tensor& b) { return a.buffer == b.buffer && a.byte_offset == b.byte_offset; }

}  // namespace

StreamId EdgeBuilder::stream(const std::string& name) {
  if (body_.streams.empty()) body_.streams.push_back({"compute", {}});
  std::string wanted = name.empty() ? "compute" : name;
  for (StreamId id : body_.streams.ids())
    if (body_.streams[id].name == wanted) return id;
  if (std::ssize(body_.streams) == kMaxStreams)
    throw plan_error(fmt::format("stream '{}' would be the {}th: a program has at most {}", wanted,
                                 body_.streams.size() + 1, kMaxStreams));
  body_.streams.push_back({wanted, {}});
  return body_.streams.last();
}

std::vector<EdgeBuilder::Access>& EdgeBuilder::history(BufferId buffer) {
  if (!(buffer < history_.next())) history_.resize(program_.buffers.size());
  return history_[buffer];
}

void EdgeBuilder::need(Clock& latest, TensorId tensor, bool write) {
  const Tensor& t = program_.tensors[tensor];
  int64_t begin = t.byte_offset, end = begin + t.bytes();
  for (const Access& access : history(t.buffer)) {
    if (access.end <= begin || end <= access.begin || !(write || access.write)) continue;
    int& last = latest[access.at.stream];
    last = std::max(last, access.at.index);
  }
}

void EdgeBuilder::note(OpRef at, TensorId tensor, bool write) {
  const Tensor& t = program_.tensors[tensor];
  int64_t begin = t.byte_offset, end = begin + t.bytes();
  std::vector<Access>& accesses = history(t.buffer);
  // This write supersedes accesses of its bytes, because an op that waits for it has waited for those.
  if (write) std::erase_if(accesses, [&](const Access& a) { return begin <= a.begin && a.end <= end; });
  // The last read of the same bytes on a stream supersedes the earlier ones.
  if (!write)
    std::erase_if(accesses, [&](const Access& a) {
      return !a.write && a.at.stream == at.stream && begin <= a.begin && a.end <= end;
    });
  if (accesses.empty()) accesses.reserve(kUsualAccesses);
  accesses.push_back({at, begin, end, write});
}

std::vector<OpRef> EdgeBuilder::last(std::string_view stream) const {
  for (const StreamId id : body_.streams.ids())
    if (const auto& [name, ops] = body_.streams[id]; name == stream && !ops.empty())
      return {{id, static_cast<int>(std::ssize(ops)) - 1}};
  return {};
}

int EdgeBuilder::last_writer(StreamId stream, TensorId tensor) {
  Clock latest;
  latest.fill(-1);
  need(latest, tensor, false);
  return latest[stream];
}

OpRef EdgeBuilder::append(StreamId stream, Op&& op, const std::vector<OpRef>& floors) {
  size_t streams = body_.streams.size();
  clocks_.resize(streams);
  Clock latest;  // per stream: the last op that must have completed
  latest.fill(-1);
  for (const OpRef& floor : floors) latest[floor.stream] = floor.index;
  for (TensorId tensor : op.reads) need(latest, tensor, false);
  for (TensorId tensor : op.writes) need(latest, tensor, true);

  OpRef at{stream, static_cast<int>(std::ssize(body_.streams[stream].ops))};
  std::vector<Clock>& own = clocks_[stream];
  Clock clock = own.empty() ? Clock() : own.back();
  auto clock_of = [&](StreamId s) -> const Clock& { return clocks_[s][latest[s]]; };
  for (StreamId s : body_.streams.ids()) {
    if (s == stream || latest[s] < 0 || clock[s] > latest[s]) continue;
    bool implied = false;
    for (StreamId other : body_.streams.ids())
      if (other != s && other != stream && latest[other] >= 0) implied = implied || clock_of(other)[s] > latest[s];
    if (!implied) op.waits.push_back({s, latest[s], 0});
  }
  for (const Edge& edge : op.waits) {
    const Clock& seen = clocks_[edge.stream][edge.index];
    for (StreamId s : body_.streams.ids()) clock[s] = std::max(clock[s], seen[s]);
  }
  clock[stream] = at.index + 1;
  own.push_back(clock);

  for (TensorId tensor : op.reads) note(at, tensor, false);
  for (TensorId tensor : op.writes) note(at, tensor, true);
  body_.streams[stream].ops.push_back(std::move(op));
  return at;
}

void EdgeBuilder::communicate(const std::string& stream, Op&& op) {
  if (is_alone(program_, op)) return copy_alone(op);
  append(this->stream(stream), std::move(op));
}

void EdgeBuilder::copy_alone(const Op& collective) {
  for (size_t i = 0; i < collective.reads.size(); ++i) {
    const TensorId from = collective.reads[i];
    TensorId to = collective.writes[i];
    if (are_same_bytes(program_.tensors[from], program_.tensors[to])) continue;
    const Shape shape = program_.tensors[from].shape;
    if (program_.tensors[to].shape != shape) to = add_view(program_, program_.tensors[to].name, to, 0, shape);
    Op copy = make_op(ops::copy, {from}, {to}, collective.phase, collective.site);
    copy.unit = collective.unit;
    copy.microbatch = collective.microbatch;
    append(stream(""), std::move(copy));
  }
}

// The last access on each stream supersedes the earlier ones.
void EdgeBuilder::take_over(BufferId buffer, BufferId previous) {
  const int64_t bytes = program_.buffers[buffer].bytes;
  std::vector<Access> inherited;
  for (const Access& access : history(previous)) {
    const auto known = std::find_if(inherited.begin(), inherited.end(),
                                    [&](const Access& other) { return other.at.stream == access.at.stream; });
    if (known == inherited.end())
      inherited.push_back({access.at, 0, bytes, true});
    else
      known->at.index = std::max(known->at.index, access.at.index);
  }
  history(buffer) = std::move(inherited);
}

}  // namespace prun
