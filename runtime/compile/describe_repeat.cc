// Describes how a repeat depends on the microbatch: buffers that a single microbatch accesses, views of the batch, and
// attributes that count microbatches. The step builder has already recorded which ops repeat.
//
// Buffers of different microbatches form one ring buffer if their names differ only in the microbatch. If a strategy
// treats each microbatch differently, nothing repeats: the pass throws DoesNotRecur, and the schedule is compiled in
// full.
#include <fmt/format.h>

#include <charconv>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "compile/compile_state.h"
#include "ir/recurs.h"

namespace prun {
namespace {

constexpr int kNone = -1, kSeveral = -2;

// Strips the label of the microbatch: "block0.h#3" becomes "block0.h".
std::string_view without_microbatch(std::string_view name, int microbatch) {
  const size_t label = name.rfind('#');
  int value = 0;
  if (label == std::string_view::npos) return name;
  const char *begin = name.data() + label + 1, *end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(begin, end, value);
  const bool is_label =
      error == std::errc() && stop == end && value == microbatch && (*begin != '0' || stop == begin + 1);
  return is_label ? name.substr(0, label) : name;
}

// Buffers with equal keys differ only in the microbatch.
struct RingKey {
  std::string_view name;
  Role role;
  int64_t bytes;
  int pool;
  bool operator==(const RingKey&) const = default;
};
struct RingKeyHash {
  size_t operator()(const RingKey& key) const {
    return std::hash<std::string_view>()(key.name) ^ static_cast<size_t>(key.bytes + key.pool) * 0x9e3779b97f4a7c15U ^
           static_cast<size_t>(key.role);
  }
};

class Description {
 public:
  Description(Program& program, Body& body) : program_(program), body_(body), repeat_(body.repeat) {}

  void make() {
    label();
    find_rings();
    find_pools();
    find_slides();
    find_growths();
  }

 private:
  static void note(int& label, int microbatch) {
    label = label == kNone || label == microbatch ? microbatch : kSeveral;
  }

  void label() {
    of_buffer_.assign(program_.buffers.size(), kNone);
    of_tensor_.assign(program_.tensors.size(), kNone);
    for (const BufferId id : program_.buffers.ids())
      if (program_.buffers[id].persistent || program_.buffers[id].space != Space::device) of_buffer_[id] = kSeveral;
    for (const Body& body : program_.bodies)
      for (const Stream& stream : body.streams)
        for (const Op& op : stream.ops)
          for (const std::vector<TensorId>* ids : {&op.reads, &op.writes})
            for (const TensorId id : *ids) {
              const int microbatch = &body != &body_ ? kSeveral : op.microbatch;
              if (microbatch == kNone) continue;
              note(of_tensor_[id], microbatch);
              note(of_buffer_[program_.tensors[id].buffer], microbatch);
            }
  }

  void find_rings() {
    std::unordered_map<RingKey, int, RingKeyHash> groups;
    std::vector<std::vector<int>> alike;  // by group and microbatch: buffers so far
    std::vector<std::vector<int>> rings;  // by group and number among the alike buffers of a microbatch
    ring_.assign(program_.buffers.size(), -1);
    for (const BufferId id : program_.buffers.ids()) {
      const int microbatch = of_buffer_[id];
      if (microbatch < 0) continue;
      const Buffer& buffer = program_.buffers[id];
      const RingKey key{without_microbatch(buffer.name, microbatch), buffer.role, buffer.bytes, buffer.pool};
      const auto group = static_cast<size_t>(groups.try_emplace(key, static_cast<int>(groups.size())).first->second);
      if (group == alike.size()) alike.emplace_back(), rings.emplace_back();
      std::vector<int>&of_microbatch = alike[group], &of_number = rings[group];
      of_microbatch.resize(std::max(of_microbatch.size(), static_cast<size_t>(microbatch) + 1), 0);
      const int number = of_microbatch[microbatch]++;
      if (number == std::ssize(of_number)) {
        of_number.push_back(static_cast<int>(repeat_.rings.size()));
        repeat_.rings.emplace_back();
        repeat_.rings.back().bytes = buffer.bytes;
        repeat_.rings.back().pool = buffer.pool;
      }
      ring_[id] = of_number[number];
      repeat_.members.push_back({id, of_number[number], microbatch});
    }
  }

  // Pool slots are assigned round-robin, the same number to each microbatch.
  void find_pools() {
    std::vector<int> slots(program_.pools.size(), 1), step(program_.pools.size(), -1);
    for (const Buffer& buffer : program_.buffers)
      if (buffer.pool >= 0) slots[buffer.pool] = std::max(slots[buffer.pool], buffer.slot + 1);
    std::map<std::pair<int, int>, int> slot_of;  // ring in a pool, and microbatch
    for (const Repeat::Member& member : repeat_.members)
      if (repeat_.rings[member.ring].pool >= 0)
        slot_of[{member.ring, member.microbatch}] = program_.buffers[member.buffer].slot;
    for (const auto& [at, slot] : slot_of) {
      const Repeat::Ring& ring = repeat_.rings[at.first];
      const auto next = slot_of.find({at.first, at.second + 1});
      if (next == slot_of.end()) continue;
      const int all = slots[ring.pool], by = (next->second - slot + all) % all;
      if (step[ring.pool] >= 0 && step[ring.pool] != by)
        throw DoesNotRecur{"slots of " + program_.pools[ring.pool].name};
      step[ring.pool] = by;
    }
    for (const auto& [at, slot] : slot_of) {
      Repeat::Ring& ring = repeat_.rings[at.first];
      const int all = slots[ring.pool], by = std::max(step[ring.pool], 0);
      const int start = (slot + all - by * at.second % all) % all;
      if (ring.slots > 1 && ring.start != start) throw DoesNotRecur{"slots of " + program_.pools[ring.pool].name};
      ring.slots = all;
      ring.start = start;
      ring.step = by;
    }
    for (const BufferId id : program_.buffers.ids())
      if (const int pool = program_.buffers[id].pool;
          pool >= 0 && std::max(step[pool], 0) * repeat_.left_out() % slots[pool] != 0 && ring_[id] < 0)
        throw DoesNotRecur{"slots of " + program_.pools[pool].name};
  }

  void find_slides() {
    std::map<std::pair<BufferId, std::string_view>, std::map<int, TensorId>> views;
    for (const TensorId id : program_.tensors.ids())
      if (const BufferId buffer = program_.tensors[id].buffer; of_tensor_[id] >= 0 && ring_[buffer] < 0)
        views[{buffer, without_microbatch(program_.tensors[id].name, of_tensor_[id])}][of_tensor_[id]] = id;
    for (const auto& [name, of_microbatch] : views) {
      const auto first = of_microbatch.begin(), second = std::next(first);
      if (second == of_microbatch.end()) continue;
      const int64_t further =
          program_.tensors[second->second].byte_offset - program_.tensors[first->second].byte_offset;
      if (further <= 0) continue;
      for (const auto& [microbatch, id] : of_microbatch)
        repeat_.slides.push_back({id, further / (second->first - first->first)});
    }
  }

  // Key of ops that differ only in their microbatch.
  using Same = std::tuple<const OpDef*, StreamId, std::string, Phase, int>;
  Same same(StreamId stream, const Op& op) const {
    int ring = -1;
    for (const std::vector<TensorId>* ids : {&op.reads, &op.writes})
      for (const TensorId id : *ids)
        if (ring < 0) ring = ring_[program_.tensors[id].buffer];
    return {op.def, stream, op.unit, op.phase, ring};
  }

  void find_growths() {
    std::map<std::pair<Same, std::string>, int64_t> grows;
    std::set<const OpDef*> growing;
    for (const StreamId stream : body_.streams.ids()) {
      const auto [first, count] = repeat_.ops[stream];
      const std::vector<Op>& ops = body_.streams[stream].ops;
      for (int i = first; i < first + count; ++i) {
        if (ops[i].attrs == ops[i - count].attrs) continue;
        for (const auto& [name, value] : ops[i].attrs.values()) {
          const auto* now = std::get_if<int64_t>(&value);
          const int64_t before = now ? ops[i - count].attrs.integer(name, *now) : 0;
          if (now == nullptr || *now == before) continue;
          grows[{same(stream, ops[i]), name}] = (*now - before) / repeat_.microbatches;
          growing.insert(ops[i].def);
        }
      }
    }
    for (const StreamId stream : body_.streams.ids()) {
      const std::vector<Op>& ops = body_.streams[stream].ops;
      for (int i = repeat_.ops[stream].first; i < std::ssize(ops); ++i) {
        if (ops[i].microbatch < 0 || !growing.contains(ops[i].def)) continue;
        for (const auto& [name, value] : ops[i].attrs.values())
          if (const auto found = grows.find({same(stream, ops[i]), name}); found != grows.end())
            repeat_.growths.push_back({stream, i, name, found->second});
      }
    }
  }

  Program& program_;
  Body& body_;
  Repeat& repeat_;
  Table<BufferId, int> of_buffer_;  // a microbatch, kNone or kSeveral
  Table<TensorId, int> of_tensor_;
  Table<BufferId, int> ring_;
};

}  // namespace

void describe_repeat(CompileState& state) {
  for (Body& body : state.program.bodies) {
    if (!body.repeat.any()) continue;
    Description(state.program, body).make();
    if (const auto problem = not_recurring(state.program, body)) {
      const Stream& stream = body.streams[problem->op.stream];
      throw DoesNotRecur{fmt::format("{} of the {} ({}#{}) {}", stream.ops[problem->op.index].def->name, body.name,
                                     stream.name, problem->op.index, problem->what)};
    }
  }
}

}  // namespace prun
