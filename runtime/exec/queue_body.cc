#include "exec/queue_body.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "base/error.h"
#include "device/abi_op.h"
#include "exec/comm_ops.h"
#include "exec/recorder.h"
#include "ir/ops.h"

namespace prun {
namespace {

// Returns the tensors to copy to the host before an op: its reads, except for a receive, whose message overwrites them,
// and outputs that it writes only in part.
std::vector<TensorId> seen_by(const Op& op) {
  std::vector<TensorId> ids = op.receives() ? std::vector<TensorId>{} : op.reads;
  if (op.is(ops::all_gather_v)) ids.insert(ids.end(), op.writes.begin(), op.writes.end());
  return ids;
}

// Returns whether the op writes on this rank: reduce and gather write only at their root.
bool lands_here(const Program& program, const Op& op, int rank) {
  if (!op.is(ops::reduce) && !op.is(ops::gather)) return true;
  return members_of(program.mesh, op, rank)[op.attrs.integer("root")] == rank;
}

// Merges copies of a batch's tensors, which are mostly adjacent on the device as on the host; merged copies include
// padding.
std::vector<Copy> joined(const std::vector<Copy>& copies) {
  std::vector<Copy> out;
  for (const Copy& copy : copies) {
    const int64_t size = out.empty() ? 0 : round_up(out.back().bytes, kAlignBytes);
    const auto follows = [&](const void* next, const void* last) {
      return next == static_cast<const std::byte*>(last) + size;
    };
    if (!out.empty() && follows(copy.to, out.back().to) && follows(copy.from, out.back().from))
      out.back().bytes = size + copy.bytes;
    else
      out.push_back(copy);
  }
  return out;
}

// Returns whether the transport enqueues messages. A region's graph waits for whole other graphs. So it may wait for a
// receive that none of its ops needs, while the peer's send is in a region that waits likewise: a deadlock. Ops that
// are issued one by one wait for their sources only. A collective is in the same region of each member, so that this
// does not happen.
bool waits_for_peers(const Body& body, const Regions& regions) {
  return std::any_of(regions.items.begin(), regions.items.end(), [&](const Item& item) {
    return item.kind == Item::Kind::op && body.streams[item.op.stream].ops[item.op.index].point_to_point();
  });
}

}  // namespace

QueueBody::QueueBody(const QueueContext& context, BodyId id)
    : context_(context),
      body_(program().bodies[id]),
      regions_(body_, how_of(program(), body_, context.memory.enqueues())),
      enqueued_(regions_.items.size()),
      kernels_(regions_.items.size()),
      transfers_(regions_.items.size()),
      reached_(regions_.items.size()),
      states_(regions_.regions.size()),
      whole_(states_.size() == 1 && regions_.regions.front().origin == StreamId(0)),
      captures_(states_.size() == 1 || !waits_for_peers(body_, regions_)),
      batch_uploaded_(context.memory.device()),
      step_start_(context.memory.device()),
      capture_fork_(context.memory.device()),
      host_threads_(body_.streams.size()) {
  context_.rank.body = id;
  QueueDevice& device = context_.memory.device();
  for (RegionState& state : states_) state.ended.emplace(device);
  for (size_t s = 0; s < body_.streams.size(); ++s) join_.emplace_back(device);
  make_first();
  make_hosts();
  make_items();
  for (size_t r = 0; r < states_.size(); ++r) states_[r].has_work = has_work(regions_.regions[r]);
}

// Returns host addresses of the op's tensors, laid out from `base`, by tensor id.
std::unique_ptr<Table<TensorId, void*>> QueueBody::places(const Op& op, std::byte* base) const {
  auto places = std::make_unique<Table<TensorId, void*>>(program().tensors.size());
  for (const TensorId id : staged_tensors(program(), op)) {
    (*places)[id] = base;
    base += round_up(program().tensors[id].bytes(), kAlignBytes);
  }
  return places;
}

Copy QueueBody::copy_of(TensorId tensor, const Table<TensorId, void*>& places, bool to_host) const {
  void *host = places[tensor], *device = context_.rank.data(tensor);
  const int64_t bytes = program().tensors[tensor].bytes();
  return to_host ? Copy{host, device, bytes} : Copy{device, host, bytes};
}

void QueueBody::make_first() {
  RankMemory memory = context_.rank;
  memory.table = &first_table_;
  for (const OpRef ref : regions_.first) {
    const Op& of = op(ref);
    FirstPart& part = first_.emplace_back();
    for (int slot = 0; slot < kStepSlots; ++slot) {
      part.places[slot] = places(of, context_.memory.first(slot) + first_bytes_);
      memory.tensors = part.places[slot].get();
      part.kernel[slot] = make_host_kernel(memory, of, context_.host);
    }
    for (int slot = 0; slot < kStepSlots; ++slot) {
      const auto ahead = places(of, context_.memory.ahead(slot) + first_bytes_);
      for (const TensorId id : of.writes) first_in_[slot].push_back(copy_of(id, *ahead, false));
    }
    first_bytes_ += staged_bytes(program(), of);
  }
  for (std::vector<Copy>& in : first_in_) in = joined(in);
}

void QueueBody::make_hosts() {
  for (const HostOp& host : regions_.hosts) {
    HostPart& part = *hosts_.emplace_back(std::make_unique<HostPart>());
    if (host.counts >= 0)
      make_count_read(part, host.counts);
    else
      make_host_op(part, host.op);
    part.job.op = &op(host.op);
    part.job.kernel = part.kernel.get();
    part.job.thread = &host_thread(host.op.stream);
    part.job.waits = true;
  }
}

void QueueBody::make_host_op(HostPart& part, OpRef ref) {
  const Op& of = op(ref);
  part.places = places(of, context_.memory.staging(ref.stream));
  RankMemory memory = context_.rank;
  memory.tensors = part.places.get();
  part.chunks = chunks_of(memory, context_.rank, of, context_.world);
  if (part.chunks.empty()) {
    part.kernel =
        of.communicates() ? make_comm_kernel(memory, of, context_.world) : make_host_kernel(memory, of, context_.host);
    StagedChunk& whole = part.chunks.emplace_back();
    for (const TensorId id : of.is(ops::save_state) ? std::vector<TensorId>{} : seen_by(of))
      whole.out.push_back(copy_of(id, *part.places, true));
    for (const TensorId id : of.writes) whole.in.push_back(copy_of(id, *part.places, false));
  } else {
    part.kernel = make_chunks_kernel(memory, of, context_.world, part.chunks);
    part.job.chunks = part.chunks.size();
    part.back.emplace(context_.memory.device());
    in_chunks_.push_back(&part);
  }
  if (!lands_here(program(), of, context_.rank.rank))
    for (StagedChunk& chunk : part.chunks) chunk.in.clear();
}

void QueueBody::make_count_read(HostPart& part, TensorId counts) {
  part.kernel = kernel_of([] {});
  part.chunks.emplace_back().out.push_back(
      {context_.memory.counts(counts), context_.rank.data(counts), program().tensors[counts].bytes()});
}

HostThread& QueueBody::host_thread(StreamId s) {
  std::unique_ptr<HostThread>& thread = host_threads_[s];
  if (thread != nullptr) return *thread;
  const auto on_done = [this] {
    std::lock_guard lock(mutex_);
    host_done_ = true;
    host_done_cv_.notify_one();
  };
  thread = std::make_unique<HostThread>(body_.streams[s].name, context_.cancelled, on_done, context_.on_failure);
  return *thread;
}

void QueueBody::make_items() {
  QueueDevice& device = context_.memory.device();
  std::set<Communicator*> connected;  // between all members
  for (size_t i = 0; i < regions_.items.size(); ++i) {
    const Item& item = regions_.items[i];
    if (item.awaited) reached_[i].emplace(device);
    if (context_.timed)
      for (std::vector<Span>& spans : spans_) {
        Span& span = spans.emplace_back();
        span.begin.emplace(device, true);
        span.end.emplace(device, true);
      }
    if (item.kind == Item::Kind::land && hosts_[item.host]->back)
      states_[regions_.region_of[i]].backs.emplace_back(item.op.stream, &*hosts_[item.host]->back);
    if (item.kind != Item::Kind::op) continue;
    const Op& of = op(item.op);
    if (of.def->op_class == OpClass::transfer)
      transfers_[i] = {context_.rank.data(of.writes[0]), context_.rank.data(of.reads[0]),
                       program().tensors[of.reads[0]].bytes()};
    else if (regions_.regions[regions_.region_of[i]].counted) {
      Communicator& communicator = communicator_of(context_.rank, of, context_.world);
      if (connected.insert(&communicator).second) connect_pairs(communicator);
      enqueued_[i] = make_counted_kernel(context_.rank, of, context_.world, context_.memory.counts(counts_of(of)),
                                         stream(item.op.stream).queue());
    } else if (of.communicates())
      enqueued_[i] = make_enqueued_kernel(context_.rank, of, context_.world, stream(item.op.stream).queue());
    else
      kernels_[i].emplace(device, AbiOp(context_.rank, of, context_.threads, context_.values).get());
  }
}

void QueueBody::run_first(int slot, const StepTable& table) {
  first_table_ = table;
  for (FirstPart& part : first_) part.kernel[slot]->run();
}

void QueueBody::issue(int64_t step, int slot, StreamState* states, const std::function<void()>& check_alive) {
  issuing_ns_ = 0;
  uint64_t begin = now_ns();
  ++runs_;
  for (size_t s = 0; s < body_.streams.size(); ++s)
    for (std::atomic<uint32_t>* number : {&states[s].step, &states[s].run})
      number->store(static_cast<uint32_t>(step), std::memory_order_relaxed);
  if (has_first()) upload_first(slot);
  const bool in_parts = !whole_ || !replays();
  if (in_parts) begin_step(slot);
  for (RegionState& state : states_) state.launched = false;
  for (HostPart* part : in_chunks_) part->landed = 0;
  for (;;) {
    const bool back = bring_back(), moved = issue_ready(slot, states) || back;
    if (all_ended()) break;
    if (moved) continue;
    issuing_ns_ += now_ns() - begin;
    wait_for_hosts(check_alive);
    begin = now_ns();
  }
  for (const std::unique_ptr<HostPart>& host : hosts_) host->end_ns[slot] = host->job.end_ns;
  if (in_parts) {
    for (size_t s = 1; s < body_.streams.size(); ++s) {
      join_[s].record(stream(s));
      join_[s].hold(stream(0));
    }
    end_step(slot);
  }
  issuing_ns_ += now_ns() - begin;
}

// Uploads the batch on its own stream, overlapped with the previous step, so that no step waits for host memory. The
// previous step of this slot has ended (QueueExecutor::run_steps).
void QueueBody::upload_first(int slot) {
  context_.copies.copy(context_.memory.ahead(slot), context_.memory.first(slot), first_bytes_);
  batch_uploaded_.record(context_.copies);
  batch_uploaded_.hold(stream(0));
}

// Copies the step values, and the batch to the ops' tensors, after the previous step. The other streams start
// afterwards.
void QueueBody::begin_step(int slot) {
  const StepMemory& step = context_.steps[slot];
  stream(0).copy(context_.values, step.values, sizeof *step.values);
  for (const Copy& copy : first_in_[slot]) stream(0).copy(copy.to, copy.from, copy.bytes);
  if (states_.empty()) step.begin->record(stream(0));
  if (body_.streams.size() == 1 || (whole_ && replays())) return;  // a capture forks on its own
  step_start_.record(stream(0));
  for (size_t s = 1; s < body_.streams.size(); ++s) step_start_.hold(stream(s));
}

void QueueBody::end_step(int slot) {
  const StepMemory& step = context_.steps[slot];
  for (const auto& [result, to] :
       {std::pair(body_.loss, step.loss), {body_.norm, step.norm}, {body_.results, step.results}})
    if (result >= 0) stream(0).copy(to, context_.rank.data(result), program().tensors[result].bytes());
}

bool QueueBody::replays() const {
  return captures_ && runs_ > 1 && !context_.timed && context_.graphs && context_.memory.device().captures();
}

bool QueueBody::host_ended(int host) const {
  const HostPart& part = *hosts_[host];
  return part.back ? part.landed == part.chunks.size() : part.job.ended.load(std::memory_order_acquire) >= runs_;
}

// Uploads chunks as soon as their calls have ended. The overwritten data have been read, because the call began only
// after the op's stream had reached it.
bool QueueBody::bring_back() {
  bool moved = false;
  for (HostPart* part : in_chunks_) {
    const size_t chunks = part->chunks.size();
    const uint64_t ended = part->job.ended.load(std::memory_order_acquire) - (runs_ - 1) * chunks;
    for (; part->landed < ended; moved = true) {
      for (const Copy& copy : part->chunks[part->landed].in) context_.copies.copy(copy.to, copy.from, copy.bytes);
      if (++part->landed == chunks) part->back->record(context_.copies);
    }
  }
  return moved;
}

bool QueueBody::all_ended() const {
  for (const RegionState& state : states_)
    if (!state.launched) return false;
  for (size_t h = 0; h < hosts_.size(); ++h)
    if (!host_ended(static_cast<int>(h))) return false;
  return true;
}

bool QueueBody::ready(const Region& region) const {
  return std::all_of(region.after.begin(), region.after.end(), [&](int other) { return states_[other].launched; }) &&
         std::all_of(region.hosts.begin(), region.hosts.end(), [&](int host) { return host_ended(host); });
}

bool QueueBody::issue_ready(int slot, StreamState* states) {
  bool moved = false;
  for (size_t r = 0; r < states_.size(); ++r) {
    if (states_[r].launched || !ready(regions_.regions[r])) continue;
    issue_region(r, slot, states);
    states_[r].launched = moved = true;
    for (const int id : regions_.regions[r].items) {
      const Item& item = regions_.items[id];
      if (item.kind == Item::Kind::arm) host_threads_[item.op.stream]->push(hosts_[item.host]->job);
    }
  }
  return moved;
}

void QueueBody::issue_region(int id, int slot, StreamState* states) {
  const Region& region = regions_.regions[id];
  RegionState& state = states_[id];
  DeviceStream& origin = stream(region.origin);
  if (!replays()) {
    for (const auto& [s, back] : state.backs) back->hold(stream(s));
    if (id == 0) context_.steps[slot].begin->record(origin);
    for (const int item : region.items) issue_item(item, slot, nullptr, states);
    return;
  }
  DeviceGraph& graph = state.graph[slot];
  if (state.has_work && !region.counted && graph.get() == nullptr) capture(id, slot, states);
  for (const int other : region.after) states_[other].ended->hold(origin);
  for (const auto& [s, back] : state.backs) back->hold(origin);
  if (region.counted)
    issue_item(region.items.front(), slot, nullptr, states);
  else if (state.has_work)
    graph.launch(origin);
  if (!whole_) state.ended->record(origin);
  if (region.counted) return;
  StreamState& replayed = states[region.origin.index()];
  replayed.since_ns.store(now_ns(), std::memory_order_relaxed);
  replayed.running.store(3, std::memory_order_relaxed);
}

// Returns whether the device has work in the region. bring_back() uploads the chunks of a divided host op.
bool QueueBody::has_work(const Region& region) const {
  return std::any_of(region.items.begin(), region.items.end(), [&](int id) {
    const Item& item = regions_.items[id];
    if (item.kind != Item::Kind::land) return true;
    const HostPart& part = *hosts_[item.host];
    return !part.back && !part.chunks.front().in.empty();
  });
}

// A capture forks from its origin to the region's other streams and ends after all have joined it. The launch of the
// graph waits for other regions.
void QueueBody::capture(int id, int slot, StreamState* states) {
  const Region& region = regions_.regions[id];
  const DeviceStream& origin = stream(region.origin);
  DeviceCapture capture(context_.memory.device(), origin);
  if (whole_) begin_step(slot);
  if (id == 0) context_.steps[slot].begin->record(origin, true);
  capture_fork_.record(origin);
  std::set<StreamId> spread = {region.origin};
  for (const int item : region.items) {
    const StreamId s = regions_.items[item].op.stream;
    if (spread.insert(s).second) capture_fork_.hold(stream(s));
    issue_item(item, slot, &capture, states);
  }
  for (const StreamId s : spread) {
    if (s == region.origin) continue;
    join_[s].record(stream(s));
    join_[s].hold(origin);
  }
  if (whole_) end_step(slot);
  states_[id].graph[slot] = capture.finish();
}

void QueueBody::issue_item(int id, int slot, DeviceCapture* capture, StreamState* states) {
  const size_t i = id;
  const Item& item = regions_.items[i];
  StreamState& state = states[item.op.stream.index()];
  state.op.store(static_cast<uint32_t>(item.op.index), std::memory_order_relaxed);
  state.since_ns.store(now_ns(), std::memory_order_relaxed);
  state.running.store(1, std::memory_order_relaxed);
  try {
    const DeviceStream& on = stream(item.op.stream);
    for (const int source : item.waits) {
      const bool here = regions_.region_of[source] == regions_.region_of[i];
      if (here || !replays()) reached_[source]->hold(on);  // a replayed region waits for others as a whole
    }
    if (context_.timed) spans_[slot][i].begin->record(on);
    run_item(id);
    if (context_.timed) spans_[slot][i].end->record(on);
    if (item.awaited) reached_[i]->record(on);
  } catch (...) {
    // Abandon the capture before transports abort: they wait for work on streams, and captured work never runs.
    if (capture != nullptr) capture->abandon();
    context_.on_failure(op(item.op));
    throw Cancelled{};
  }
}

void QueueBody::run_item(int id) {
  const size_t i = id;
  const Item& item = regions_.items[i];
  DeviceStream& on = stream(item.op.stream);
  if (item.kind == Item::Kind::op) {
    if (kernels_[i])
      kernels_[i]->run(on);
    else if (transfers_[i])
      on.copy(transfers_[i]->to, transfers_[i]->from, transfers_[i]->bytes);
    else
      enqueued_[i]->run();
    return;
  }
  HostPart& part = *hosts_[item.host];
  const bool arm = item.kind == Item::Kind::arm;
  if (!arm && part.back) return;  // bring_back() uploads its chunks
  for (const StagedChunk& chunk : part.chunks) {
    for (const Copy& copy : arm ? chunk.out : chunk.in) on.copy(copy.to, copy.from, copy.bytes);
    if (arm) on.host_call(HostThread::arm, &part.job);
  }
}

void QueueBody::wait_for_hosts(const std::function<void()>& check_alive) {
  std::unique_lock lock(mutex_);
  while (!host_done_cv_.wait_for(lock, std::chrono::milliseconds(50), [&] { return host_done_; })) {
    if (context_.cancelled.load(std::memory_order_relaxed)) break;
    check_alive();
  }
  host_done_ = false;
  if (context_.cancelled.load(std::memory_order_relaxed)) throw Cancelled{};
}

void QueueBody::read_times(int slot, const std::function<uint64_t(const DeviceEvent&)>& ns,
                           const std::function<void(int stream, const OpEvent&)>& record, StepRecord& totals) const {
  struct Times {
    uint64_t begin = 0, end = 0;
  };
  Table<StreamId, std::vector<Times>> times;
  for (const Stream& stream : body_.streams) times.emplace_back(stream.ops.size());
  for (size_t i = 0; i < regions_.items.size(); ++i) {
    const Item& item = regions_.items[i];
    if (item.host >= 0 && regions_.hosts[item.host].counts >= 0) continue;
    Times& of = times[item.op.stream][item.op.index];
    if (item.kind != Item::Kind::land) of.begin = ns(*spans_[slot][i].begin);
    of.end = ns(*spans_[slot][i].end);
    if (item.kind == Item::Kind::arm && !regions_.hosts[item.host].lands)
      of.end = std::max(of.end, hosts_[item.host]->end_ns[slot]);
  }
  for (int s = 0; s < std::ssize(times); ++s) {
    uint64_t ready = 0;
    for (uint32_t i = 0; i < times[s].size(); ++i) {
      const Times& of = times[s][i];
      if (of.end == 0) continue;  // a first op: the host ran it during the previous step
      const Op& which = op({s, static_cast<int>(i)});
      if (ready == 0 || which.waits.empty()) ready = of.begin;
      uint64_t covered = 0;  // of the gap before the op, time in which the streams of awaited communication transfer
      for (const Edge& edge : which.waits) {
        if (s != 0 || edge.back != 0 || !op({edge.stream, edge.index}).communicates()) continue;
        for (int k = edge.index; k >= 0; --k) {
          const Times& source = times[edge.stream][static_cast<size_t>(k)];
          if (source.end == 0 || !op({edge.stream, k}).communicates()) continue;
          if (source.end <= ready) break;
          const uint64_t from = std::max(ready, source.begin), until = std::min(of.begin, source.end);
          covered += until > from ? until - from : 0;
        }
      }
      if (which.communicates()) totals.comm_ns += of.end - of.begin;
      if (s == 0 && which.communicates()) totals.exposed_ns += of.end - of.begin;
      if (of.begin > ready) totals.exposed_ns += std::min(covered, of.begin - ready);
      record(s, {static_cast<uint32_t>(totals.step), i, std::min(ready, of.begin), of.begin, of.end});
      ready = of.end;
    }
  }
}

}  // namespace prun
