// All ranks run in one loop: any ready op may run next, and completes at once.
#include "exec/virtual_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "device/element.h"
#include "exec/host_ops.h"
#include "exec/plain_collectives.h"
#include "exec/row_exchange.h"
#include "ir/calendar.h"
#include "ir/data_source.h"
#include "ir/ops.h"
#include "ir/walk.h"

namespace prun {
namespace {

struct FreeAligned {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t(4096)); }
};
using Arena = std::unique_ptr<std::byte[], FreeAligned>;

// A NaN in every float dtype, and not a valid index.
constexpr int kPoison = 0xff;

struct VirtualRank {
  int rank = 0;
  const Program* program = nullptr;
  Arena arena, host_arena;
  RankMemory memory;
  HostServices host;
  Table<StreamId, std::vector<std::unique_ptr<Kernel>>> kernels;  // kernels of the current body; null for communication
};

// A message between its sender, which has continued, and its receiver.
struct Message {
  int64_t tag = 0;
  std::vector<std::byte> bytes;
};

class Interpreter : private WalkPolicy {
 public:
  Interpreter(const Job& job, const Device& device, const VirtualOptions& options);
  VirtualRun run();

 private:
  void run(StreamCursor at) override;
  void meet(const std::vector<StreamCursor>& members) override;
  void send(StreamCursor at) override;
  void receive(StreamCursor at) override;
  bool buffers(int under_way) const override;

  const Body& body(const VirtualRank& rank) const { return rank.program->bodies[body_]; }
  void enter(BodyId next);
  void run_body();
  std::vector<double> losses() const;
  size_t choose(const std::vector<StreamCursor>& candidates);
  void put(const Op& op, int from, int to);
  void poison();
  void look(StreamCursor at) const {
    if (options_.after) options_.after(ranks_[at.actor].memory, walk_->op(at));
  }
  [[noreturn]] void report_stuck() const;

  const Job& job_;
  const Device& device_;
  VirtualOptions options_;
  mutable std::mt19937_64 random_;
  StepTable table_;
  BodyId body_;           // the current one
  Walk* walk_ = nullptr;  // walk of the current body
  std::vector<VirtualRank> ranks_;
  std::map<int, std::deque<Message>> messages_;  // by channel
  VirtualRun result_;
};

Interpreter::Interpreter(const Job& job, const Device& device, const VirtualOptions& options)
    : job_(job), device_(device), options_(options), random_(options.seed) {
  table_.set(job.classes.front().schedule, 0);
  for (int r = 0; r < std::ssize(job.class_of_rank); r++) {
    VirtualRank rank;
    rank.rank = r;
    rank.program = &job.program(r);
    const auto make = [&](Arena& arena, int64_t wanted) {
      const size_t bytes = std::max<int64_t>(wanted, kAlignBytes);
      arena.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(4096))));
      std::memset(arena.get(), options.poison ? kPoison : 0, bytes);
    };
    make(rank.arena, rank.program->arena_bytes);
    make(rank.host_arena, rank.program->host_arena_bytes);
    rank.memory = {rank.arena.get(), r, rank.program, &table_};
    rank.memory.host_arena = rank.host_arena.get();
    rank.host.print = [this, r](const std::string& line) { result_.printed.emplace_back(r, line); };
    ranks_.push_back(std::move(rank));
  }
}

// Makes the kernels of the next body.
void Interpreter::enter(BodyId next) {
  body_ = next;
  for (VirtualRank& rank : ranks_) {
    rank.kernels.clear();
    rank.memory.body = next;
    for (const Stream& stream : body(rank).streams) {
      auto& list = rank.kernels.emplace_back();
      for (const Op& op : stream.ops)
        list.push_back(op.communicates() ? nullptr
                                         : make_local_kernel(device_, rank.memory, op, rank.host, options_.threads));
    }
  }
}

size_t Interpreter::choose(const std::vector<StreamCursor>& candidates) {
  if (options_.order == VirtualOrder::random) return random_() % candidates.size();
  const bool early = options_.order == VirtualOrder::early;
  for (size_t i = 0; i < candidates.size(); i++) {
    if ((candidates[i].stream != 0) == early) return i;
  }
  return 0;
}

void Interpreter::run(StreamCursor at) {
  const OpRef ref = walk_->ref(at);
  if (Kernel* kernel = ranks_[at.actor].kernels[ref.stream][ref.index].get()) {
    kernel->run();
    look(at);
  } else if (!walk_->op(at).offers()) {
    meet({at});  // a group of one
  }
}

// A send may end before its receive begins (a transport that buffers) or with it; each order of ops tries one of them.
bool Interpreter::buffers(int under_way) const {
  return options_.order == VirtualOrder::early ||
         (options_.order == VirtualOrder::random && (under_way > 0 || random_() % 2 == 0));
}

void Interpreter::send(StreamCursor at) {
  const Op& op = walk_->op(at);
  const VirtualRank& rank = ranks_[at.actor];
  if (op.one_sided()) return put(op, rank.rank, peer_rank(rank.program->mesh, op, rank.rank));
  const auto* data = static_cast<const std::byte*>(rank.memory.data(op.reads.at(0)));
  messages_[walk_->channel(at)].push_back(
      {op.attrs.integer("tag"), {data, data + rank.program->tensors[op.reads[0]].bytes()}});
}

// Writes at the put's offset, whatever its receiver has offered, as a transport does.
void Interpreter::put(const Op& op, int from, int to) {
  const VirtualRank &sender = ranks_[from], &receiver = ranks_[to];
  const int64_t offset = op.attrs.integer("offset"), bytes = sender.program->tensors[op.reads.at(0)].bytes();
  if (offset < 0 || offset + bytes > receiver.program->arena_bytes)
    throw plan_error(fmt::format("rank {} puts {} bytes at {} of the arena of rank {}, which has {}", from, bytes,
                                 offset, to, receiver.program->arena_bytes),
                     op.site);
  std::memcpy(receiver.arena.get() + offset, sender.memory.data(op.reads[0]), bytes);
}

void Interpreter::receive(StreamCursor at) {
  const Op& op = walk_->op(at);
  if (op.one_sided()) return;  // the put has written it
  const VirtualRank& rank = ranks_[at.actor];
  std::deque<Message>& messages = messages_[walk_->channel(at)];
  const Message message = std::move(messages.front());
  messages.pop_front();
  const int64_t bytes = rank.program->tensors[op.writes.at(0)].bytes();
  if (message.tag != op.attrs.integer("tag") || std::ssize(message.bytes) != bytes)
    throw plan_error(fmt::format("rank {} expects {} bytes with tag {}, and {} with tag {} arrive", rank.rank, bytes,
                                 op.attrs.integer("tag"), message.bytes.size(), message.tag),
                     op.site);
  std::memcpy(rank.memory.data(op.writes[0]), message.bytes.data(), message.bytes.size());
  look(at);
}

void Interpreter::meet(const std::vector<StreamCursor>& members) {
  const Op& op = walk_->op(members.front());
  std::vector<PlainMember> operands;
  Dtype dtype = Dtype::f32;
  for (const StreamCursor at : members) {
    const VirtualRank& rank = ranks_[at.actor];
    const Op& mine = walk_->op(at);
    if (mine.def != op.def)
      throw plan_error(fmt::format("rank {} meets {} with {}", rank.rank, op.def->name, mine.def->name), mine.site);
    PlainMember operand;
    const auto tensor = [&](TensorId id) -> const Tensor& { return rank.program->tensors[id]; };
    if (!mine.reads.empty()) {
      operand.in = rank.memory.data(mine.reads[0]);
      operand.in_count = tensor(mine.reads[0]).count();
      dtype = tensor(mine.reads[0]).dtype;
    }
    if (!mine.writes.empty()) {
      operand.out = rank.memory.data(mine.writes[0]);
      operand.out_count = tensor(mine.writes[0]).count();
    }
    if (mine.is(ops::all_gather_v)) {
      operand.share = static_cast<const int64_t*>(rank.memory.data(mine.reads[1]));
      operand.shares = static_cast<int64_t*>(rank.memory.data(mine.writes[1]));
    }
    operands.push_back(operand);
  }
  if (op.is(ops::exchange_rows)) {
    std::vector<RowCounts> counts;
    for (size_t m = 0; m < members.size(); ++m) {
      const VirtualRank& rank = ranks_[members[m].actor];
      const Op& mine = walk_->op(members[m]);
      counts.emplace_back(rank.program->tensors[mine.reads[0]].shape, mine.attrs, members.size(), m);
      counts.back().update(static_cast<const int32_t*>(rank.memory.data(mine.reads[1])));
    }
    exchange_plainly(counts, dtype_bytes(dtype), operands);
    for (const StreamCursor at : members) look(at);
    return;
  }
  PRUN_CHECK(op.def->coll.has_value(), std::string(op.def->name) + " is no collective");
  run_plain_collective(*op.def->coll, dtype, parse_redop(op.attrs.text("op", "sum")).value_or(RedOp::sum),
                       static_cast<int>(op.attrs.integer("root")), operands);
  for (const StreamCursor at : members) look(at);
}

void Interpreter::report_stuck() const {
  std::string text = "the virtual ranks wait for each other:";
  Site site;
  for (const VirtualRank& rank : ranks_) {
    for (StreamId s = 0; s < std::ssize(body(rank).streams); ++s) {
      const StreamCursor at{rank.rank, s};
      const Stream& stream = walk_->stream(at);
      if (walk_->ref(at).index == std::ssize(stream.ops)) continue;
      const Op& op = walk_->op(at);
      if (!site.known()) site = op.site;
      text += fmt::format("\n  rank {}, stream {}: {} {}", rank.rank, stream.name, op.def->name, op.site.text());
    }
  }
  throw plan_error(text, site);
}

void Interpreter::run_body() {
  std::vector<const Body*> bodies;
  for (const Program& program : job_.classes) bodies.push_back(&program.bodies[body_]);
  Walk walk(job_, bodies, Walk::By::rank, *this);
  walk_ = &walk;
  messages_.clear();
  for (std::vector<StreamCursor> ready = walk.ready(); !ready.empty(); ready = walk.ready())
    walk.step(ready[choose(ready)]);
  if (!walk.ended()) report_stuck();
}

// Memory outside persistent buffers is undefined when a step begins; fills it with NaNs.
void Interpreter::poison() {
  for (VirtualRank& rank : ranks_) {
    std::vector<std::pair<const Buffer*, std::vector<std::byte>>> in_slots;  // persistent buffers in pools
    for (const Buffer& buffer : rank.program->buffers) {
      const std::byte* begin = rank.memory.data(buffer);
      if (buffer.persistent && buffer.pool >= 0)
        in_slots.emplace_back(&buffer, std::vector<std::byte>(begin, begin + buffer.bytes));
    }
    for (const Buffer& buffer : rank.program->buffers)
      if (!buffer.persistent && buffer.offset >= 0) std::memset(rank.memory.data(buffer), kPoison, buffer.bytes);
    for (const auto& [buffer, bytes] : in_slots) std::memcpy(rank.memory.data(*buffer), bytes.data(), bytes.size());
  }
}

// Returns the losses of the current body, of the ranks that have one.
std::vector<double> Interpreter::losses() const {
  std::vector<double> values;
  for (const VirtualRank& rank : ranks_) {
    const TensorId loss = body(rank).loss;
    if (loss < 0) continue;
    values.push_back(load_element(rank.program->tensors[loss].dtype, rank.memory.data(loss), 0));
  }
  return values;
}

VirtualRun Interpreter::run() {
  const Program& calendar = *ranks_.front().program;
  follow_calendar(calendar, [&](BodyId id, int64_t first, int64_t end) {
    enter(id);
    std::vector<std::vector<double>> of_ranks;  // losses of consecutive runs, for each rank that has one
    for (int64_t run = first; run < end; run++) {
      if (id == kStepBody) table_.set(calendar.schedule, run);
      table_.eval_batch = run - first;
      if (options_.poison && id != kInitBody) poison();
      run_body();
      const std::vector<double> values = losses();
      if (id == kStepBody && !values.empty()) result_.losses.push_back(values);
      of_ranks.resize(values.size());
      for (size_t i = 0; i < values.size(); i++) of_ranks[i].push_back(values[i]);
    }
    if (id == kStepBody) table_.set(calendar.schedule, end);
    if (id == kStepBody || of_ranks.empty()) return;
    std::vector<double>& means = result_.eval_losses.emplace_back();
    for (const std::vector<double>& losses : of_ranks)
      means.push_back(evaluation_loss(calendar.bodies[id].data, losses));
  });
  for (const VirtualRank& rank : ranks_) {
    std::vector<VirtualBuffer>& buffers = result_.persistent.emplace_back();
    for (const Buffer& buffer : rank.program->buffers) {
      if (!buffer.persistent) continue;
      const std::byte* begin = rank.memory.data(buffer);
      buffers.push_back({buffer.name, {begin, begin + buffer.bytes}});
    }
  }
  return std::move(result_);
}

}  // namespace

VirtualRun run_virtual_ranks(const Job& job, const Device& device, const VirtualOptions& options) {
  PRUN_CHECK(!job.classes.empty() && !job.class_of_rank.empty(), "a job without ranks");
  const Job all = written_out(job);
  return Interpreter(all, device, options).run();
}

}  // namespace prun
