// Every value that a training step computes is used. A value that is overwritten, or outlives the step, unread means
// that its reader is missing or misplaced.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "ir/carried.h"
#include "ir/ops.h"
#include "verify/byte_map.h"
#include "verify/view.h"

namespace prun::verify {
namespace {

// Returns whether a correct program may leave this output unread.
bool may_go_unread(const Op& op, size_t output) {
  // Backward recomputes a unit's loss op for its other outputs, the statistics or the gradient.
  const bool loss = op.def->loss == Loss::loss || op.def->loss == Loss::inner;
  if (loss && op.writes.size() > 1 && output == 0 && op.phase == Phase::backward) return true;
  return output >= op.def->side_first && output < op.def->side_end;
}

struct Written {
  int fate = -1;  // index of the writing output's fate; -1 = no write in this step
  bool read = false;
};

// The fate of one output of an op.
struct Fate {
  OpRef op;
  size_t output = 0;
  BufferId buffer = -1;
  bool used = false;           // part of it was read
  int64_t begin = 0, end = 0;  // first unread piece
  OpRef overwritten{-1, 0};
};

class Flow {
 public:
  explicit Flow(const BodyView& body) : body_(body) {}

  void run(Findings& findings) {
    for (const BufferId buffer : body_.accesses.ids()) walk(buffer);
    for (const Fate& fate : fates_)
      if (is_lost(fate)) report(fate, findings);
  }

 private:
  // Moved or cast values may leave padding unread; every byte of a computed value must be read.
  bool is_lost(const Fate& fate) const {
    const Op& op = body_.op(fate.op);
    if (fate.end == 0 || is_meant(op) || may_go_unread(op, fate.output) || (is_owed(op) && !trains_here()))
      return false;
    return !fate.used || (op.def->op_class == OpClass::compute && !op.is(ops::cast));
  }

  // A pipeline rank without trained parameters contributes zero to the gradient norm and ignores the result.
  static bool is_owed(const Op& op) { return op.is(ops::all_reduce) && op.phase == Phase::step; }
  bool trains_here() const {
    const auto updates = [](const Op& op) { return op.def->role == OpRole::optimizer; };
    return !body_.is_step || std::any_of(body_.body->streams.begin(), body_.body->streams.end(), [&](const Stream& s) {
      return std::any_of(s.ops.begin(), s.ops.end(), updates);
    });
  }

  // Returns whether the plan requests the recomputation without a use for it: prun.recompute with whole = true.
  static bool is_meant(const Op& op) { return op.phase == Phase::backward && op.attrs.has("unused"); }

  void close(int64_t begin, int64_t end, const Written& written, OpRef by) {
    if (written.fate < 0) return;
    Fate& fate = fates_[written.fate];
    if (written.read) {
      fate.used = true;
    } else if (fate.end == 0) {
      fate.begin = begin;
      fate.end = end;
      fate.overwritten = by;
    }
  }

  void walk(BufferId id) {
    const Buffer& buffer = body_.program->buffers[id];
    if (buffer.role == Role::workspace && !is_read(id)) return;  // scratch of a kernel
    ByteMap<Written> bytes;
    for (const Access& access : body_.accesses[id]) {
      const int writer = access.write ? static_cast<int>(fates_.size()) : -1;
      if (access.write) fates_.push_back({access.op, output_of(access), id});
      bytes.over(access.begin, access.end, [&](int64_t begin, int64_t end, Written& written) {
        if (!access.write) {
          written.read = written.read || !is_check(body_.op(access.op));
          return;
        }
        close(begin, end, written, access.op);
        written = {writer, false};
      });
    }
    const bool lives_on = is_state(buffer) || id == loss_buffer();
    bytes.over(0, buffer.bytes, [&](int64_t begin, int64_t end, Written& written) {
      written.read = written.read || lives_on;
      close(begin, end, written, {-1, 0});
    });
  }

  size_t output_of(const Access& access) const {
    const std::vector<TensorId>& writes = body_.op(access.op).writes;
    return std::find(writes.begin(), writes.end(), access.tensor) - writes.begin();
  }
  bool is_read(BufferId id) const {
    const std::vector<Access>& accesses = body_.accesses[id];
    return std::any_of(accesses.begin(), accesses.end(),
                       [&](const Access& access) { return !access.write && !is_check(body_.op(access.op)); });
  }
  BufferId loss_buffer() const {
    const TensorId loss = body_.body->loss;
    return loss < 0 ? BufferId() : body_.program->tensors[loss].buffer;
  }

  void report(const Fate& fate, Findings& findings) const {
    const std::string end = fate.overwritten.stream < 0 ? "nothing reads them in the step"
                                                        : fmt::format("{} overwrites them before anything reads them",
                                                                      body_.describe(fate.overwritten));
    findings.add("lost value",
                 fmt::format("{}{} writes bytes {}..{} of buffer '{}', and {}", body_.where(), body_.describe(fate.op),
                             fate.begin, fate.end, body_.buffer_name(fate.buffer), end),
                 body_.op(fate.op).site);
  }

  const BodyView& body_;
  std::vector<Fate> fates_;
};

}  // namespace

bool trains(const Job& job) {
  return std::any_of(job.classes.begin(), job.classes.end(), [](const Program& p) { return p.step().loss >= 0; });
}

bool has_model(const Job& job) {
  const auto generates = [](const Program& program) {
    return std::ranges::any_of(program.bodies, [&](const Body& body) {
      const bool evaluates = body.loss >= 0 && program.step().op_count() == 0;
      return evaluates || std::ranges::any_of(body.streams, [](const Stream& stream) {
               return std::ranges::any_of(
                   stream.ops, [](const Op& op) { return op.is(ops::sample_token) || op.is(ops::write_rows); });
             });
    });
  };
  return trains(job) || std::ranges::any_of(job.classes, generates);
}

bool is_state(const Buffer& buffer) {
  return buffer.persistent &&
         (buffer.role == Role::param || buffer.role == Role::optimizer || buffer.role == Role::gathered ||
          buffer.role == Role::cache || buffer.role == Role::frozen || buffer.role == Role::buffer);
}

namespace {

// A byte of a gradient. `padding`: an addition reads it before a microbatch writes it.
struct SummedByte {
  std::set<int> microbatches;
  bool padding = false;
  OpRef last;
};

// Each microbatch writes each byte of a gradient. Flow cannot see that an op is missing that adds a gradient in place,
// because other ops read all of its operands. Bodies with a repeat are not checked: they list fewer microbatches.
void each_microbatch_is_added(const BodyView& body, Findings& findings) {
  if (!body.is_step || body.body->repeat.times > 0) return;
  for (const BufferId id : body.accesses.ids()) {
    const Buffer& buffer = body.program->buffers[id];
    if (buffer.role != Role::grad || !buffer.persistent) continue;
    ByteMap<SummedByte> bytes;
    std::set<int> all;
    for (const Access& access : body.accesses[id]) {
      const Op& op = body.op(access.op);
      if (op.microbatch < 0 || op.phase != Phase::backward) continue;
      if (access.write) all.insert(op.microbatch);
      bytes.over(access.begin, access.end, [&](int64_t, int64_t, SummedByte& byte) {
        if (access.write) {
          byte.microbatches.insert(op.microbatch);
          byte.last = access.op;
        } else if (byte.microbatches.empty()) {
          byte.padding = true;
        }
      });
    }
    bytes.each([&](int64_t begin, int64_t end, const SummedByte& byte) {
      if (byte.padding || byte.microbatches.empty() || byte.microbatches == all) return;
      const auto missing =
          std::ranges::find_if(all, [&](int microbatch) { return !byte.microbatches.contains(microbatch); });
      findings.add("lost gradient",
                   fmt::format("{}no op adds the gradient of microbatch {} to bytes {}..{} of buffer '{}', which {} "
                               "writes last",
                               body.where(), *missing, begin, end, body.buffer_name(id), body.describe(byte.last)),
                   body.op(byte.last).site);
    });
  }
}

}  // namespace

void nothing_is_lost(const JobView& view, Findings& findings) {
  if (!has_model(*view.job)) return;
  for (const BodyView& body : view.bodies) {
    if (body.is_init) continue;
    Flow(body).run(findings);
    each_microbatch_is_added(body, findings);
  }
}

namespace {

constexpr const char* kOverlap = "steps overlap";

// A collective, or a cast for one, depends only on its operands, and only ops read its output, so it may be carried
// over the end of a step. The loss and the norm are read at the end, so their ops may not.
bool may_go_on(const BodyView& body, const Op& op) {
  const auto is_read_there = [&](TensorId id) { return id == body.body->loss || id == body.body->norm; };
  const bool is_collective = op.communicates() && !op.point_to_point() && !op.offers();
  return body.is_step && (is_collective || op.is(ops::cast)) &&
         std::none_of(op.writes.begin(), op.writes.end(), is_read_there);
}

void report_overtaking(const BodyView& body, OpRef carried, const Overtaking& by, Findings& findings) {
  std::string what = "may begin";
  if (!by.tensor.none()) {
    const BufferId buffer = body.program->tensors[by.tensor].buffer;
    what = fmt::format(
        "may {} buffer '{}'",
        std::ranges::find(body.op(by.op).writes, by.tensor) != body.op(by.op).writes.end() ? "write" : "read",
        body.buffer_name(buffer));
  } else if (by.op == OpRef{0, static_cast<int>(body.body->streams[0].ops.size()) - 1}) {
    what = "may end a step";
  }
  findings.add(kOverlap,
               fmt::format("{}{} {} before {} has ended, which goes on since the step before", body.where(),
                           body.describe(by.op), what, body.describe(carried)),
               body.op(by.op).site);
}

// Ops that the last op of stream 0 does not wait for are carried over: every op of the next step that conflicts with
// one must wait for it.
void check_end(const BodyView& body, Findings& findings) {
  const std::vector<Stream>& streams = body.body->streams;
  const OpRef last{0, static_cast<int>(streams[0].ops.size()) - 1};
  const Table<StreamId, int> ended = ended_with(*body.body);
  std::optional<TwoSteps> steps;
  for (const StreamId s : ended.ids())
    for (int i = ended[s]; i < std::ssize(body.body->streams[s].ops); i++) {
      const OpRef carried{s, i};
      if (!may_go_on(body, body.op(carried))) {
        findings.add(kOverlap,
                     fmt::format("{}{} ends the step without waiting for {}", body.where(), body.describe(last),
                                 body.describe(carried)),
                     body.op(carried).site);
        break;
      }
      if (!steps) steps.emplace(*body.body);
      if (const std::optional<Overtaking> by = overtaking(*body.program, *body.body, *steps, carried))
        report_overtaking(body, carried, *by, findings);
    }
}

// Every op of the next step follows the end of the previous step.
void check_begin(const BodyView& body, Findings& findings) {
  const std::vector<Stream>& streams = body.body->streams;
  const OpRef first{0, 0}, last{0, static_cast<int>(streams[0].ops.size()) - 1};
  for (int s = 1; s < std::ssize(streams); s++) {
    if (streams[s].ops.empty()) continue;
    const OpRef begin{s, 0};
    const std::vector<Edge>& waits = body.op(begin).waits;
    const bool follows =
        body.order.before(first, begin) || std::any_of(waits.begin(), waits.end(), [&](const Edge& edge) {
          return edge.back == 1 && edge.stream == 0 && edge.index == last.index;
        });
    if (follows) continue;
    findings.add(kOverlap,
                 fmt::format("{}{} may begin before {} has ended the step before", body.where(), body.describe(begin),
                             body.describe(last)),
                 body.op(begin).site);
  }
}

}  // namespace

// The end of a step is a synchronization point: the last op of stream 0 follows all ops except carried-over
// collectives, and every op of the next step follows it.
void streams_meet_at_the_end(const JobView& view, Findings& findings) {
  for (const BodyView& body : view.bodies) {
    const std::vector<Stream>& streams = body.body->streams;
    if (body.is_init || (body.is_step && body.program->schedule.steps < 2) || streams.empty() || streams[0].ops.empty())
      continue;
    check_end(body, findings);
    check_begin(body, findings);
  }
}

}  // namespace prun::verify
