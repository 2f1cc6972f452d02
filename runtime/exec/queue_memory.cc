#include "exec/queue_memory.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/text.h"
#include "exec/queue_executor.h"
#include "ir/ops.h"

namespace prun {
namespace {

// Returns the row maxima of split logits. Their all-reduce may drop a NaN, because the sums of the same logits keep it.
std::set<TensorId> maxima_of_logits(const Body& body) {
  std::set<TensorId> maxima;
  for (const Stream& stream : body.streams)
    for (const Op& op : stream.ops)
      if (op.is(ops::cross_entropy_max)) maxima.insert(op.writes[0]);
  return maxima;
}

// Returns whether the host must run the collective, because no transport enqueues it: counts that it exchanges first,
// sums in rank order, averages of integers, and float minima and maxima, from which NCCL drops NaNs. A program has no
// collectives over one rank (compile/edge_builder.cc).
bool needs_host(const Program& program, const Op& op, const std::set<TensorId>& maxima) {
  if (op.is(ops::all_gather_v)) return true;
  if (!op.is(ops::all_reduce) && !op.is(ops::reduce_scatter) && !op.is(ops::reduce)) return false;
  if (program.rank_order) return true;
  const bool floats = static_cast<int>(program.tensors[op.reads[0]].dtype) <= static_cast<int>(Dtype::f16);
  const std::string how = op.attrs.text("op", "sum");
  if (how == "avg") return !floats;
  return floats && (how == "min" || how == "max") && maxima.count(op.reads[0]) == 0;
}

}  // namespace

std::vector<TensorId> staged_tensors(const Program& program, const Op& op) {
  std::vector<TensorId> ids = op.reads;
  for (const TensorId id : op.writes)
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  std::erase_if(ids, [&](TensorId id) { return program.buffers[program.tensors[id].buffer].space == Space::host; });
  return ids;
}

int64_t staged_bytes(const Program& program, const Op& op) {
  int64_t bytes = 0;
  for (const TensorId id : staged_tensors(program, op)) bytes += round_up(program.tensors[id].bytes(), kAlignBytes);
  return bytes;
}

Table<StreamId, std::vector<How>> how_of(const Program& program, const Body& body, bool enqueues) {
  const std::set<TensorId> maxima = maxima_of_logits(body);
  Table<StreamId, std::vector<How>> how;
  for (const Stream& stream : body.streams) {
    std::vector<How>& row = how.emplace_back();
    bool at_start = true;  // at the start of the step and of its stream
    for (const Op& op : stream.ops) {
      at_start = at_start && can_come_first(op);
      const bool on_host = op.def->op_class == OpClass::host ||
                           (op.communicates() && !op.offers() && (!enqueues || needs_host(program, op, maxima)));
      row.push_back(at_start                    ? How::first
                    : on_host                   ? How::host
                    : op.is(ops::exchange_rows) ? How::counted
                                                : How::device);
    }
  }
  return how;
}

PinnedLayout::PinnedLayout(const Program& program, bool enqueues) {
  for (const Body& body : program.bodies) {
    const Table<StreamId, std::vector<How>> how = how_of(program, body, enqueues);
    int64_t of_first = 0;
    by_stream.resize(std::max(by_stream.size(), body.streams.size()));
    for (size_t s = 0; s < body.streams.size(); ++s) {
      for (size_t i = 0; i < body.streams[s].ops.size(); ++i) {
        const int64_t bytes = staged_bytes(program, body.streams[s].ops[i]);
        if (how[s][i] == How::first) of_first += bytes;
        if (how[s][i] == How::host) by_stream[s] = std::max(by_stream[s], bytes);
      }
    }
    first = std::max(first, of_first);
    for (size_t s = 0; s < body.streams.size(); ++s)
      for (size_t i = 0; i < body.streams[s].ops.size(); ++i)
        if (how[s][i] == How::counted) counts.try_emplace(counts_of(body.streams[s].ops[i]), 0);
  }
  total = kStepSlots * (first + kValueBytes) + std::accumulate(by_stream.begin(), by_stream.end(), int64_t{0});
  for (auto& [id, at] : counts) {
    at = total;
    total += round_up(program.tensors[id].bytes(), kAlignBytes);
  }
}

QueueMemory::QueueMemory(const Program& program, const prun_device& table, const DeviceOptions& options, World& world)
    : program_(program),
      device_(std::make_unique<QueueDevice>(table, options.index, options.options)),
      enqueues_(world.enqueues(static_cast<prun_mem_kind>(table.mem_kind))),
      layout_(program, enqueues_) {
  const prun_mem_kind kind = static_cast<prun_mem_kind>(table.mem_kind);
  use_.free = free_bytes();
  use_.before = use_.total - use_.free;
  if (use_.total > 0 && program.arena_bytes > use_.free)
    throw Error(
        Exit::out_of_memory,
        fmt::format("the arena needs {}, {} of the device's {} are free once it is open: others have taken it since "
                    "this job was started",
                    human_bytes(program.arena_bytes), human_bytes(use_.free), human_bytes(use_.total)));
  if (enqueues_) arena_ = static_cast<std::byte*>(world.allocate_device(program.arena_bytes, kind));
  if (arena_ == nullptr) {
    own_arena_ = DeviceMemory(*device_, program.arena_bytes, PRUN_PLACE_DEVICE);
    arena_ = own_arena_.get();
    if (enqueues_) world.adopt_device(arena_, program.arena_bytes, kind);
  }
  if (program.host_arena_bytes > 0) host_arena_ = DeviceMemory(*device_, program.host_arena_bytes, PRUN_PLACE_PINNED);
  ahead_ = DeviceMemory(*device_, kStepSlots * layout_.first, PRUN_PLACE_DEVICE);
  account(&DeviceUse::arena);
  // Uses the transport's own memory if it provides some, so that peers read it without another copy.
  pinned_ = static_cast<std::byte*>(world.allocate(layout_.total));
  if (table.pin == nullptr) return;
  prun_result result{.size = sizeof(prun_result), .culprit = -1, .message = {}};
  const prun_status status = table.pin(device_->get(), pinned_, layout_.total, &result);
  if (status == PRUN_ENOTSUP) {
    spdlog::warn("device: {}: {}; copies to and from the host will be slow", table.name, result.message);
    return;
  }
  const std::string doing = fmt::format("pinning {} of the host's memory", human_bytes(layout_.total));
  device_->check(status, result, doing.c_str());
}

QueueMemory::~QueueMemory() {
  if (device_->table().unpin != nullptr && pinned_ != nullptr) device_->table().unpin(device_->get(), pinned_);
}

int64_t QueueMemory::free_bytes() {
  uint64_t free = 0, total = 0;
  const prun_device& table = device_->table();
  if (table.mem_kind == PRUN_MEM_HOST || table.memory_info(device_->get(), &free, &total) != PRUN_OK) return 0;
  use_.total = static_cast<int64_t>(total);
  return static_cast<int64_t>(free);
}

std::unique_ptr<JobRun> QueueMemory::make_executor(World& world, const ExecutorOptions& options) {
  return std::make_unique<QueueExecutor>(program_, *this, world, options);
}

Error QueueMemory::explained(const Error& error) const {
  if (error.code() != Exit::out_of_memory || use_.total == 0) return error;
  return Error(
      Exit::out_of_memory,
      fmt::format("{}; of the device's {}, {} were taken before the arena and {} by it: transports and libraries "
                  "need room beside it. Half the batch, twice the `micro`, prun.recompute and prun.zero3 make it "
                  "smaller, --transport-options max_ctas=4 and NCCL_BUFFSIZE=1048576 NCCL's buffers",
                  error.message(), human_bytes(use_.total), human_bytes(use_.before), human_bytes(use_.arena)),
      error.site());
}

std::byte* QueueMemory::staging(StreamId stream) const {
  const auto end = layout_.by_stream.begin() + stream.index();
  return values(kStepSlots) + std::accumulate(layout_.by_stream.begin(), end, int64_t{0});
}

}  // namespace prun
