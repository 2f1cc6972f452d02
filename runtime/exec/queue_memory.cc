#include "exec/queue_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace prun {
namespace {

// A collective that no transport enqueues: counts that the host must see, sums in rank order, groups of one.
bool needs_host(const Program& program, const Op& op) {
  if (op.is("all_gather_v")) return true;
  const bool sums = op.is("all_reduce") || op.is("reduce_scatter") || op.is("reduce");
  return (sums && program.rank_order) || members_of(program.mesh, op, 0).size() < 2;
}

// Where a stream's host ops see their tensors, one op after the other; and where first ops do, by step.
struct Pinned {
  int64_t first = 0;  // of one step
  std::vector<int64_t> by_stream;
};

Pinned pinned_of(const Program& program, const Body& body, bool enqueues) {
  Pinned pinned;
  const std::vector<std::vector<How>> how = how_of(program, body, enqueues);
  for (size_t s = 0; s < body.streams.size(); ++s) {
    int64_t most = 0;
    for (size_t i = 0; i < body.streams[s].ops.size(); ++i) {
      const int64_t bytes = staged_bytes(program, body.streams[s].ops[i]);
      if (how[s][i] == How::first) pinned.first += bytes;
      if (how[s][i] == How::host) most = std::max(most, bytes);
    }
    pinned.by_stream.push_back(most);
  }
  return pinned;
}

}  // namespace

std::vector<int> staged_tensors(const Op& op) {
  std::vector<int> ids = op.reads;
  for (const int id : op.writes)
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  return ids;
}

int64_t staged_bytes(const Program& program, const Op& op) {
  int64_t bytes = 0;
  for (const int id : staged_tensors(op))
    bytes += round_up(program.tensors[static_cast<size_t>(id)].bytes(), kAlignBytes);
  return bytes;
}

std::vector<std::vector<How>> how_of(const Program& program, const Body& body, bool enqueues) {
  std::vector<std::vector<How>> how;
  for (const Stream& stream : body.streams) {
    std::vector<How>& row = how.emplace_back();
    bool at_start = true;  // of the step, and of its stream
    for (const Op& op : stream.ops) {
      at_start = at_start && can_come_first(op);
      const bool on_host = op.def->op_class == OpClass::host ||
                           (op.communicates() && !op.offers() && (!enqueues || needs_host(program, op)));
      row.push_back(at_start ? How::first : on_host ? How::host : How::device);
    }
  }
  return how;
}

int64_t pinned_bytes(const Program& program, bool enqueues) {
  int64_t bytes = kStepSlots * 2 * kAlignBytes;  // step values and the loss
  for (const Body* body : program.bodies()) {
    const Pinned pinned = pinned_of(program, *body, enqueues);
    bytes += kStepSlots * pinned.first;
    for (const int64_t of_stream : pinned.by_stream) bytes += of_stream;
  }
  return bytes;
}

QueueMemory::QueueMemory(const Program& program, const prun_device& table, const QueueOptions& options, World& world)
    : device_(std::make_unique<QueueDevice>(table, options.index, options.options)) {
  const prun_mem_kind kind = static_cast<prun_mem_kind>(table.mem_kind);
  enqueues_ = world.enqueues(kind);
  if (enqueues_) arena_ = static_cast<std::byte*>(world.allocate_device(program.arena_bytes, kind));
  if (arena_ == nullptr) {
    own_arena_ = DeviceMemory(*device_, program.arena_bytes, PRUN_PLACE_DEVICE);
    arena_ = own_arena_.get();
    if (enqueues_) world.adopt_device(arena_, program.arena_bytes, kind);
  }
  // The transport's own memory where it has some, so that peers read it without a copy more.
  pinned_bytes_ = pinned_bytes(program, enqueues_);
  pinned_ = static_cast<std::byte*>(world.allocate(pinned_bytes_));
  if (table.pin != nullptr) {
    const std::string doing = fmt::format("pinning {} of the host's memory", human_bytes(pinned_bytes_));
    device_->call(doing.c_str(), [&](prun_result* result) {
      return table.pin(device_->get(), pinned_, static_cast<size_t>(pinned_bytes_), result);
    });
  }
}

QueueMemory::~QueueMemory() {
  if (device_->table().unpin != nullptr && pinned_ != nullptr) device_->table().unpin(device_->get(), pinned_);
}

std::byte* QueueMemory::take_pinned(int64_t bytes) {
  std::byte* at = pinned_ + taken_;
  taken_ += round_up(bytes, kAlignBytes);
  PRUN_CHECK(taken_ <= pinned_bytes_, fmt::format("{} of {} pinned bytes", taken_, pinned_bytes_));
  return at;
}

}  // namespace prun
