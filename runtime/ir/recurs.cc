// Compares periods op by op: the n-th op of a stream in one period with the n-th in the next.
#include "ir/recurs.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace prun {
namespace {

class Recurrence {
 public:
  Recurrence(const Program& program, const Body& body) : program_(program), body_(body), repeat_(body.repeat) {
    member_.assign(program.buffers.size(), {});
    slide_.assign(program.tensors.size(), 0);
    for (const Repeat::Member& member : repeat_.members) member_[member.buffer] = {member.ring, member.microbatch};
    for (const Repeat::Slide& slide : repeat_.slides) {
      slide_[slide.tensor] = slide.bytes;
      slides_.insert(program.tensors[slide.tensor].buffer);
    }
    for (const Repeat::Growth& growth : repeat_.growths) {
      growth_[{growth.stream, growth.index}][growth.attr] = growth.by;
      grows_.insert({body.streams[growth.stream].ops[growth.index].def, growth.attr});
    }
  }

  std::optional<NotRecurring> find() {
    for (StreamId stream : body_.streams.ids()) {
      const auto [first, count] = repeat_.ops[stream];
      for (int i = first; i < first + count; ++i)
        if (!follows(stream, i - count, i, i) || !follows(stream, i, i + count, i)) return problem_;
      for (int i = first + count; i < std::ssize(body_.streams[stream].ops); ++i)
        if (!fits_behind(stream, i)) return problem_;
    }
    return std::nullopt;
  }

 private:
  const Op& op(StreamId stream, int index) const { return body_.streams[stream].ops[index]; }

  bool broken(StreamId stream, int index, std::string what) {
    problem_ = {{stream, index}, std::move(what)};
    return false;
  }

  // Returns whether `later` is `earlier` shifted by one period; growths are those of the op at `listed`.
  bool follows(StreamId stream, int earlier, int later, int listed) {
    const Op &a = op(stream, earlier), &b = op(stream, later);
    const int by = repeat_.microbatches;
    if (a.def != b.def || a.axis != b.axis || a.lane != b.lane || a.phase != b.phase || a.unit != b.unit)
      return broken(stream, later, "is another op than a period before");
    if (b.microbatch != (a.microbatch < 0 ? -1 : a.microbatch + by))
      return broken(stream, later, "is not of the microbatch that a period makes it");
    if (!tensors_follow(a.reads, b.reads)) return broken(stream, later, "reads something else than a period before");
    if (!tensors_follow(a.writes, b.writes)) return broken(stream, later, "writes something else than a period before");
    if (!attrs_follow(a.attrs, b.attrs, {stream, listed}))
      return broken(stream, later, "has other attributes than a period before");
    if (!edges_follow(a.waits, b.waits)) return broken(stream, later, "waits for other ops than a period before");
    return true;
  }

  bool tensors_follow(const std::vector<TensorId>& a, const std::vector<TensorId>& b) const {
    const auto follows = [&](TensorId x, TensorId y) {
      const Tensor &from = program_.tensors[x], &to = program_.tensors[y];
      if (from.dtype != to.dtype || from.shape != to.shape) return false;
      const Member &of = member_[from.buffer], &then = member_[to.buffer];
      if (of.ring >= 0)
        return then.ring == of.ring && then.microbatch == of.microbatch + repeat_.microbatches &&
               from.byte_offset == to.byte_offset;
      return from.buffer == to.buffer && slide_[x] == slide_[y] &&
             to.byte_offset == from.byte_offset + slide_[x] * repeat_.microbatches;
    };
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), follows);
  }

  bool attrs_follow(const Attrs& a, const Attrs& b, std::pair<StreamId, int> listed) const {
    const auto grows = growth_.find(listed);
    if (grows == growth_.end()) return a == b;
    const auto follows = [&](const auto& x, const auto& y) {
      if (x.first != y.first) return false;
      const auto by = grows->second.find(x.first);
      const auto *from = std::get_if<int64_t>(&x.second), *to = std::get_if<int64_t>(&y.second);
      if (by == grows->second.end() || from == nullptr || to == nullptr) return x.second == y.second;
      return *to - *from == by->second * repeat_.microbatches;
    };
    return std::equal(a.values().begin(), a.values().end(), b.values().begin(), b.values().end(), follows);
  }

  // Edges that reach back at most one period shift with the period; others lead to the same op from every period.
  bool edges_follow(const std::vector<Edge>& a, const std::vector<Edge>& b) const {
    const auto follows = [&](const Edge& x, const Edge& y) {
      if (x.stream != y.stream || x.back != 0 || y.back != 0) return false;
      const auto [first, count] = repeat_.ops[x.stream];
      return y.index == (y.index >= first - count ? x.index + count : x.index);
    };
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), follows);
  }

  // Ops listed after the period move as a whole. Every tensor and op that they refer to must therefore move, too, or
  // exist once.
  bool fits_behind(StreamId stream, int index) {
    const Op& behind = op(stream, index);
    for (const Edge& edge : behind.waits) {
      if (edge.back > 0) continue;
      const auto [first, count] = repeat_.ops[edge.stream];
      if (edge.index < first - count && op(edge.stream, edge.index).microbatch >= 0)
        return broken(stream, index, "waits for an op of a microbatch from before the periods");
    }
    if (behind.microbatch < 0) return true;
    for (const std::vector<TensorId>* ids : {&behind.reads, &behind.writes})
      for (const TensorId id : *ids)
        if (slide_[id] == 0 && slides_.contains(program_.tensors[id].buffer))
          return broken(stream, index, "reads a part of the batch that does not move");
    const auto growth = growth_.find({stream, index});
    for (const auto& [name, value] : behind.attrs.values())
      if (grows_.contains({behind.def, name}) && (growth == growth_.end() || !growth->second.contains(name)))
        return broken(stream, index, fmt::format("has an attribute '{}' that does not grow", name));
    return true;
  }

  struct Member {
    int ring = -1, microbatch = 0;
  };
  const Program& program_;
  const Body& body_;
  const Repeat& repeat_;
  Table<BufferId, Member> member_;
  Table<TensorId, int64_t> slide_;
  std::set<BufferId> slides_;
  std::map<std::pair<StreamId, int>, std::map<std::string, int64_t>> growth_;
  std::set<std::pair<const OpDef*, std::string>> grows_;
  std::optional<NotRecurring> problem_;
};

bool within(int64_t value, size_t size) { return value >= 0 && value < static_cast<int64_t>(size); }

}  // namespace

std::optional<NotRecurring> not_recurring(const Program& program, const Body& body) {
  return body.repeat.any() ? Recurrence(program, body).find() : std::nullopt;
}

std::string repeat_out_of_range(const Program& program, const Body& body) {
  const Repeat& repeat = body.repeat;
  if (!repeat.any()) return "";
  constexpr int64_t kMost = 1 << 30;
  if (repeat.times > kMost || repeat.microbatches < 1 || repeat.microbatches > kMost) return "times";
  if (repeat.ops.size() != body.streams.size()) return "streams";
  for (StreamId stream : body.streams.ids()) {
    const auto [first, count] = repeat.ops[stream];
    const int64_t listed = std::ssize(body.streams[stream].ops);
    if (first < 0 || count < 0 || first > listed || count > first || int64_t{first} + 2 * int64_t{count} > listed)
      return "ops";
    if (count * repeat.times > kMost) return "ops";
  }
  for (const Repeat::Ring& ring : repeat.rings) {
    if (ring.slots < 1 || ring.start < 0 || ring.step < 0 || ring.bytes < 0 || ring.offset < -1) return "rings";
    int64_t last = 0;
    if (__builtin_mul_overflow(ring.bytes, ring.slots - 1, &last) || __builtin_add_overflow(last, ring.offset, &last) ||
        ring.pool >= std::ssize(program.pools))
      return "rings";
  }
  std::set<std::pair<int, int>> known;
  for (const Repeat::Member& member : repeat.members) {
    if (!program.buffers.has(member.buffer) || !within(member.ring, repeat.rings.size()) || member.microbatch < 0 ||
        !known.insert({member.ring, member.microbatch}).second)
      return "buffers";
    const Repeat::Ring& ring = repeat.rings[member.ring];
    const Buffer& buffer = program.buffers[member.buffer];
    if (buffer.persistent || buffer.bytes > ring.bytes || buffer.space != Space::device) return "buffers";
    if (ring.offset < 0) continue;
    if (buffer.offset != ring.offset + ring.place(member.microbatch) * ring.bytes) return "buffers";
    int64_t end = 0;  // end of the last slot
    if (__builtin_add_overflow(ring.offset + (ring.slots - 1) * ring.bytes, buffer.bytes, &end) ||
        end > program.arena_bytes)
      return "rings";
  }
  for (const Repeat::Slide& slide : repeat.slides) {
    if (!program.tensors.has(slide.tensor)) return "tensors";
    const Tensor& tensor = program.tensors[slide.tensor];
    int64_t end = 0;
    if (__builtin_mul_overflow(slide.bytes, repeat.left_out(), &end) || slide.bytes < 0 ||
        __builtin_add_overflow(end, tensor.byte_offset + tensor.bytes(), &end) ||
        end > program.buffers[tensor.buffer].bytes)
      return "tensors";
  }
  for (const Repeat::Growth& growth : repeat.growths)
    if (!body.streams.has(growth.stream) || !within(growth.index, body.streams[growth.stream].ops.size()))
      return "attributes";
  return "";
}

}  // namespace prun
