// One loop over (rank, stream) pairs: whatever is ready may run; a collective runs when its last member arrives.
#include "exec/virtual_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <tuple>
#include <utility>

#include "exec/host_ops.h"
#include "exec/plain_collectives.h"
#include "exec/transfer.h"

namespace prun {
namespace {

struct FreeAligned {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t(4096)); }
};
using Arena = std::unique_ptr<std::byte[], FreeAligned>;

// A NaN in every float dtype, and no plausible index.
constexpr int kPoison = 0xff;

struct VirtualRank {
  int rank = 0;
  const Program* program = nullptr;
  Arena arena, host_arena;
  RankMemory memory;
  HostServices host;
  std::vector<std::vector<std::unique_ptr<Kernel>>> kernels;  // of the body under way; null for communication
  std::vector<int> done;                                      // by stream
  std::vector<bool> arrived;                                  // by stream: in a collective that is not complete
};

using Meeting = std::pair<std::vector<int>, int>;  // members of the group, lane

struct At {
  int rank, stream;
};

// A message that its sender has left behind, before its receiver asked for it.
struct Letter {
  int64_t tag = 0;
  std::vector<std::byte> bytes;
};

// One direction of one pair on one lane: what the receiver has offered, and what has been put since it last waited.
struct Mailbox {
  int offers = 0, filled = 0;
  std::optional<At> putter, waiter;  // blocked
};

class Interpreter {
 public:
  Interpreter(const Job& job, const Device& device, const VirtualOptions& options);
  VirtualRun run();

 private:
  const Body& body(const VirtualRank& rank) const { return rank.program->*body_; }
  const Op& op_at(At at) const;
  void enter(Body Program::*body);
  void run_body();
  void evaluate();
  std::vector<double> losses(TensorId Program::*tensor) const;
  std::vector<At> ready() const;
  size_t choose(const std::vector<At>& candidates);
  void advance(At at);
  bool send_at_once(const Op& op, At at);
  bool take_letter(const Op& op, At at);
  void one_sided(const Op& op, At at);
  void put(const Op& op, At from, int to);
  void complete(At at);
  void meet(const Op& op, const std::vector<At>& members);
  void poison();
  [[noreturn]] void report_stuck() const;

  const Device& device_;
  VirtualOptions options_;
  std::mt19937_64 random_;
  StepTable table_;
  Body Program::*body_ = &Program::init;  // under way
  std::vector<VirtualRank> ranks_;
  std::map<Meeting, std::vector<At>> meetings_;
  std::map<Meeting, std::deque<Letter>> letters_;
  std::map<Meeting, Mailbox> mailboxes_;
  VirtualRun result_;
};

Interpreter::Interpreter(const Job& job, const Device& device, const VirtualOptions& options)
    : device_(device), options_(options), random_(options.seed) {
  table_.set(job.classes.front().schedule, 0);
  for (int r = 0; r < std::ssize(job.class_of_rank); r++) {
    VirtualRank rank;
    rank.rank = r;
    rank.program = &job.program(r);
    const auto make = [&](Arena& arena, int64_t wanted) {
      const size_t bytes = static_cast<size_t>(std::max<int64_t>(wanted, kAlignBytes));
      arena.reset(static_cast<std::byte*>(::operator new[](bytes, std::align_val_t(4096))));
      std::memset(arena.get(), options.poison ? kPoison : 0, bytes);
    };
    make(rank.arena, rank.program->arena_bytes);
    make(rank.host_arena, rank.program->host_arena_bytes);
    rank.memory = {rank.arena.get(), r, rank.program, &table_};
    rank.memory.host_arena = rank.host_arena.get();
    rank.host = open_host_services(*rank.program,
                                   [this, r](const std::string& line) { result_.printed.emplace_back(r, line); });
    ranks_.push_back(std::move(rank));
  }
}

const Op& Interpreter::op_at(At at) const {
  const VirtualRank& rank = ranks_[at.rank];
  const Stream& stream = body(rank).streams[at.stream];
  return stream.ops[rank.done[at.stream]];
}

// Makes the kernels of the body that runs from now on.
void Interpreter::enter(Body Program::*next) {
  body_ = next;
  for (VirtualRank& rank : ranks_) {
    rank.kernels.clear();
    for (const Stream& stream : body(rank).streams) {
      auto& list = rank.kernels.emplace_back();
      for (const Op& op : stream.ops) {
        switch (op.def->op_class) {
          case OpClass::communication:
            list.push_back(nullptr);
            break;
          case OpClass::host:
            list.push_back(make_host_kernel(rank.memory, op, rank.host));
            break;
          case OpClass::transfer:
            list.push_back(make_transfer_kernel(rank.memory, op));
            break;
          case OpClass::lowered:  // no device has a kernel: aborts
          case OpClass::compute:
            list.push_back(device_.make_kernel(rank.memory, op, options_.threads));
            break;
        }
      }
    }
  }
}

std::vector<At> Interpreter::ready() const {
  std::vector<At> candidates;
  for (const VirtualRank& rank : ranks_) {
    const std::vector<Stream>& streams = body(rank).streams;
    for (size_t s = 0; s < streams.size(); s++) {
      if (rank.arrived[s] || rank.done[s] == std::ssize(streams[s].ops)) continue;
      const Op& op = streams[s].ops[rank.done[s]];
      const bool waits = std::any_of(op.waits.begin(), op.waits.end(), [&](const Edge& edge) {
        return edge.back == 0 && rank.done[edge.stream] <= edge.index;
      });
      if (!waits) candidates.push_back({rank.rank, static_cast<int>(s)});
    }
  }
  return candidates;
}

size_t Interpreter::choose(const std::vector<At>& candidates) {
  if (options_.order == VirtualOrder::random) return random_() % candidates.size();
  const bool early = options_.order == VirtualOrder::early;
  for (size_t i = 0; i < candidates.size(); i++) {
    if ((candidates[i].stream != 0) == early) return i;
  }
  return 0;
}

void Interpreter::advance(At at) {
  VirtualRank& rank = ranks_[at.rank];
  const size_t s = static_cast<size_t>(at.stream);
  const Op& op = op_at(at);
  if (!op.communicates()) {
    rank.kernels[s][rank.done[s]]->run();
    rank.done[s]++;
    return;
  }
  if (op.one_sided()) return one_sided(op, at);
  if (send_at_once(op, at) || take_letter(op, at)) {
    rank.done[s]++;
    return;
  }
  const std::vector<int> group = members_of(rank.program->mesh, op, at.rank);
  std::vector<At>& here = meetings_[{group, op.lane}];
  here.push_back(at);
  rank.arrived[s] = true;
  if (here.size() < group.size()) return;
  std::vector<At> members = std::move(here);
  here.clear();
  const auto place = [&](At member) { return std::find(group.begin(), group.end(), member.rank); };
  std::sort(members.begin(), members.end(), [&](At a, At b) { return place(a) < place(b); });
  meet(op_at(members.front()), members);
  for (const At member : members) complete(member);
}

void Interpreter::complete(At at) {
  VirtualRank& rank = ranks_[at.rank];
  rank.arrived[at.stream] = false;
  rank.done[at.stream]++;
}

// As a transport does it: a put writes where it is told, whatever its receiver has offered.
void Interpreter::one_sided(const Op& op, At at) {
  VirtualRank& rank = ranks_[at.rank];
  const std::vector<int> pair = members_of(rank.program->mesh, op, at.rank);
  Mailbox& box = mailboxes_[{pair, op.lane}];
  rank.arrived[at.stream] = true;
  if (op.offers()) {
    box.offers++;
    complete(at);
  } else if (op.sends()) {
    box.putter = at;
  } else {
    box.waiter = at;
  }
  if (box.putter && box.offers > 0) {
    put(op_at(*box.putter), *box.putter, pair[1]);
    complete(*std::exchange(box.putter, std::nullopt));
    box.offers--;
    box.filled++;
  }
  if (box.waiter && box.filled > 0) {
    complete(*std::exchange(box.waiter, std::nullopt));
    box.filled--;
  }
}

void Interpreter::put(const Op& op, At from, int to) {
  const VirtualRank &sender = ranks_[from.rank], &receiver = ranks_[to];
  const int64_t offset = op.attrs.integer("offset"), bytes = sender.program->tensors[op.reads.at(0)].bytes();
  if (offset < 0 || offset + bytes > receiver.program->arena_bytes)
    throw plan_error(fmt::format("rank {} puts {} bytes at {} of the arena of rank {}, which has {}", from.rank, bytes,
                                 offset, to, receiver.program->arena_bytes),
                     op.site);
  std::memcpy(receiver.arena.get() + offset, sender.memory.data(op.reads[0]), static_cast<size_t>(bytes));
}

// A send may end before its receive begins (a transport that buffers) or with it; each order of ops tries its own.
bool Interpreter::send_at_once(const Op& op, At at) {
  if (!op.is("send") || options_.order == VirtualOrder::late) return false;
  const VirtualRank& rank = ranks_[at.rank];
  const Meeting pair = {members_of(rank.program->mesh, op, at.rank), op.lane};
  if (!meetings_[pair].empty()) return false;  // its receive waits
  if (options_.order == VirtualOrder::random && letters_[pair].empty() && random_() % 2 == 0) return false;
  const Tensor& tensor = rank.program->tensors[op.reads.at(0)];
  const auto* data = static_cast<const std::byte*>(rank.memory.data(op.reads[0]));
  letters_[pair].push_back({op.attrs.integer("tag"), {data, data + tensor.bytes()}});
  return true;
}

bool Interpreter::take_letter(const Op& op, At at) {
  if (!op.is("recv")) return false;
  const VirtualRank& rank = ranks_[at.rank];
  std::deque<Letter>& letters = letters_[{members_of(rank.program->mesh, op, at.rank), op.lane}];
  if (letters.empty()) return false;
  const int64_t bytes = rank.program->tensors[op.writes.at(0)].bytes();
  const Letter& letter = letters.front();
  if (letter.tag != op.attrs.integer("tag") || static_cast<int64_t>(letter.bytes.size()) != bytes) {
    throw plan_error(fmt::format("rank {} expects {} bytes with tag {}, and {} with tag {} arrive", at.rank, bytes,
                                 op.attrs.integer("tag"), letter.bytes.size(), letter.tag),
                     op.site);
  }
  std::memcpy(rank.memory.data(op.writes[0]), letter.bytes.data(), letter.bytes.size());
  letters.pop_front();
  return true;
}

void Interpreter::meet(const Op& op, const std::vector<At>& members) {
  std::vector<PlainMember> operands;
  Dtype dtype = Dtype::f32;
  for (const At at : members) {
    const VirtualRank& rank = ranks_[at.rank];
    const Op& mine = op_at(at);
    if (mine.def != op.def &&
        !(op.is("send") && mine.is("recv") && op.attrs.integer("tag") == mine.attrs.integer("tag"))) {
      throw plan_error(fmt::format("rank {} meets {} with {}", at.rank, op.def->name, mine.def->name), mine.site);
    }
    PlainMember operand;
    const auto tensor = [&](int id) -> const Tensor& { return rank.program->tensors[id]; };
    if (!mine.reads.empty()) {
      operand.in = rank.memory.data(mine.reads[0]);
      operand.in_count = tensor(mine.reads[0]).count();
      dtype = tensor(mine.reads[0]).dtype;
    }
    if (!mine.writes.empty()) {
      operand.out = rank.memory.data(mine.writes[0]);
      operand.out_count = tensor(mine.writes[0]).count();
    }
    if (mine.is("all_gather_v")) {
      operand.share = static_cast<const int64_t*>(rank.memory.data(mine.reads[1]));
      operand.shares = static_cast<int64_t*>(rank.memory.data(mine.writes[1]));
    }
    operands.push_back(operand);
  }
  // A send and its recv are a broadcast in their pair.
  run_plain_collective(op.is("send") ? "broadcast" : op.def->name, dtype,
                       parse_redop(op.attrs.text("op", "sum")).value_or(RedOp::sum),
                       static_cast<int>(op.attrs.integer("root")), operands);
}

void Interpreter::report_stuck() const {
  std::string text = "the virtual ranks wait for each other:";
  Site site;
  for (const VirtualRank& rank : ranks_) {
    const std::vector<Stream>& streams = body(rank).streams;
    for (size_t s = 0; s < streams.size(); s++) {
      if (rank.done[s] == std::ssize(streams[s].ops)) continue;
      const Op& op = op_at({rank.rank, static_cast<int>(s)});
      if (!site.known()) site = op.site;
      text += fmt::format("\n  rank {}, stream {}: {} {}", rank.rank, streams[s].name, op.def->name, op.site.text());
    }
  }
  throw plan_error(text, site);
}

void Interpreter::run_body() {
  for (VirtualRank& rank : ranks_) {
    const size_t streams = body(rank).streams.size();
    rank.done.assign(streams, 0);
    rank.arrived.assign(streams, false);
  }
  for (std::vector<At> candidates = ready(); !candidates.empty(); candidates = ready()) {
    advance(candidates[choose(candidates)]);
  }
  for (const VirtualRank& rank : ranks_) {
    for (size_t s = 0; s < rank.done.size(); s++) {
      if (rank.done[s] < static_cast<int>(body(rank).streams[s].ops.size())) report_stuck();
    }
  }
}

// What no persistent buffer holds is unknown when a step begins; make it look so.
void Interpreter::poison() {
  for (VirtualRank& rank : ranks_) {
    for (const Buffer& buffer : rank.program->buffers) {
      if (!buffer.persistent && buffer.offset >= 0) {
        std::memset(rank.memory.data(buffer), kPoison, static_cast<size_t>(buffer.bytes));
      }
    }
  }
}

// Of the ranks that have that tensor.
std::vector<double> Interpreter::losses(TensorId Program::*tensor) const {
  std::vector<double> values;
  for (const VirtualRank& rank : ranks_) {
    const int loss = rank.program->*tensor;
    if (loss < 0) continue;
    const void* value = rank.memory.data(loss);
    const bool wide = rank.program->tensors[loss].dtype == Dtype::f64;
    values.push_back(wide ? *static_cast<const double*>(value) : *static_cast<const float*>(value));
  }
  return values;
}

void Interpreter::evaluate() {
  const int64_t batches = ranks_.front().program->schedule.eval_batches;
  std::vector<double> sums;
  enter(&Program::eval);
  for (table_.eval_batch = 0; table_.eval_batch < batches; table_.eval_batch++) {
    if (options_.poison) poison();
    run_body();
    const std::vector<double> batch = losses(&Program::eval_loss_tensor);
    sums.resize(batch.size());
    for (size_t i = 0; i < batch.size(); i++) sums[i] += batch[i];
  }
  for (double& sum : sums) sum /= static_cast<double>(batches);
  result_.eval_losses.push_back(std::move(sums));
  enter(&Program::step);
}

VirtualRun Interpreter::run() {
  enter(&Program::init);
  run_body();
  enter(&Program::step);
  const Schedule& schedule = ranks_.front().program->schedule;
  for (int64_t step = 0; step < schedule.steps; step++) {
    table_.set(schedule, step);
    if (options_.poison) poison();
    run_body();
    if (std::vector<double> values = losses(&Program::loss_tensor); !values.empty())
      result_.losses.push_back(std::move(values));
    if (schedule.syncs_after(step)) {
      enter(&Program::sync);
      run_body();
      enter(&Program::step);
    }
    if (schedule.evaluates_after(step)) evaluate();
  }
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
  return Interpreter(job, device, options).run();
}

}  // namespace prun
