// Every read follows a write, and two accesses to the same bytes are ordered if one of them is a write.
//
// Surprising fact: walking one legal sequence finds every race. A segment of bytes records its last write and, per
// stream, the last read since then; older accesses are ordered before those, or were reported (the argument of
// FastTrack, Flanagan and Freund 2009).
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"
#include "ir/ops.h"
#include "verify/byte_map.h"
#include "verify/view.h"

namespace prun::verify {
namespace {

struct History {
  OpRef write{-1, 0};
  std::vector<OpRef> reads;  // since that write, the last one per stream
};

void report_conflict(const BodyView& body, BufferId buffer, const Access& now, OpRef before, bool before_writes,
                     int64_t begin, int64_t end, Findings& findings) {
  findings.add("unordered conflicting accesses",
               fmt::format("{}{} {} and {} {} bytes {}..{} of buffer '{}', and neither waits for the other",
                           body.where(), body.describe(before), before_writes ? "writes" : "reads",
                           body.describe(now.op), now.write ? "writes" : "reads", begin, end, body.buffer_name(buffer)),
               body.op(now.op).site);
}

void check_buffer_order(const BodyView& body, BufferId buffer, Findings& findings) {
  const std::vector<Access>& accesses = body.accesses[buffer];
  const bool one_stream = std::all_of(accesses.begin(), accesses.end(), [&](const Access& access) {
    return access.op.stream == accesses.front().op.stream;
  });
  if (one_stream) return;
  ByteMap<History> bytes;
  std::set<std::pair<int, int>> reported;  // positions of the two ops; each pair is reported once
  for (const Access& now : accesses) {
    const auto follows = [&](OpRef before, bool writes, int64_t begin, int64_t end) {
      if (before == now.op || body.order.before(before, now.op)) return;
      if (!reported.insert({body.position_of(before), body.position_of(now.op)}).second) return;
      report_conflict(body, buffer, now, before, writes, begin, end, findings);
    };
    bytes.over(now.begin, now.end, [&](int64_t begin, int64_t end, History& history) {
      if (history.write.stream >= 0) follows(history.write, true, begin, end);
      if (now.write) {
        for (const OpRef read : history.reads) follows(read, false, begin, end);
        history.write = now.op;
        history.reads.clear();
        return;
      }
      for (OpRef& read : history.reads) {
        if (read.stream != now.op.stream) continue;
        read = now.op;
        return;
      }
      history.reads.push_back(now.op);
    });
  }
}

using Coverage = Table<BufferId, ByteMap<bool>>;  // true = written

void report_unwritten(const BodyView& body, BufferId buffer, const Access& read, int64_t begin, int64_t end,
                      bool left_behind, Findings& findings) {
  std::string later = "; nothing writes them";
  for (const Access& other : body.accesses[buffer]) {
    if (!other.write || other.begin >= end || other.end <= begin) continue;
    later = fmt::format("; the first write is by {}", body.describe(other.op));
    break;
  }
  const bool persistent = body.program->buffers[buffer].persistent;
  const char* where = !persistent || body.is_init ? ""
                      : left_behind               ? "in the step "
                                                  : "in init or before it in the step ";
  findings.add("read before any write",
               fmt::format("{}{} reads bytes {}..{} of buffer '{}' before anything {}writes them{}", body.where(),
                           body.describe(read.op), begin, end, body.buffer_name(buffer), where, later),
               body.op(read.op).site);
}

void check_coverage(const BodyView& body, Coverage& written, bool training, Findings& findings) {
  for (const BufferId buffer : body.accesses.ids()) {
    for (const Access& access : body.accesses[buffer]) {
      bool reported = false;
      written[buffer].over(access.begin, access.end, [&](int64_t begin, int64_t end, bool& covered) {
        if (!access.write && !covered && !reported) {
          report_unwritten(body, buffer, access, begin, end, training, findings);
          reported = true;
        }
        covered = covered || access.write;
      });
    }
  }
}

// Transfers between the arenas propagate which bytes are parameter pieces.
void move_pieces(const Program& program, const Op& op, Coverage& pieces) {
  const Tensor& from = program.tensors[op.reads[0]];
  const Tensor& to = program.tensors[op.writes[0]];
  const int64_t shift = to.byte_offset - from.byte_offset;
  std::vector<std::pair<int64_t, int64_t>> moved;
  pieces[from.buffer].over(from.byte_offset, from.byte_offset + from.bytes(),
                           [&](int64_t begin, int64_t end, bool& piece) {
                             if (piece) moved.emplace_back(begin + shift, end + shift);
                           });
  for (const auto& [begin, end] : moved)
    pieces[to.buffer].over(begin, end, [](int64_t, int64_t, bool& piece) { piece = true; });
}

// Marks the padding between the parameters of a flat gradient as written, because it retains the zero that init wrote
// there.
void allow_padding(const BodyView& init, const BodyView& step, Coverage& written) {
  const Program& program = *init.program;
  Coverage pieces(program.buffers.size());
  for (const OpRef ref : init.order.sequence()) {
    const Op& op = init.op(ref);
    if (op.def->op_class == OpClass::transfer) move_pieces(program, op, pieces);
    if (!makes_state(op)) continue;
    const Tensor& flat = program.tensors[op.writes[0]];
    const int64_t size = dtype_bytes(flat.dtype);
    const std::vector<int64_t> starts = op.attrs.integers("starts"), counts = op.attrs.integers("counts");
    const std::vector<std::string> axes = split(op.attrs.text("axis"), ',');
    const bool shard = std::ranges::any_of(axes, [&](const std::string& axis) {  // the pieces differ from rank to rank
      return program.mesh.has(axis) && program.mesh.size(axis) > 1;
    });
    const auto is_piece = [](int64_t, int64_t, bool& piece) { piece = true; };
    ByteMap<bool>& bytes = pieces[flat.buffer];
    if (shard) bytes.over(flat.byte_offset, flat.byte_offset + flat.bytes(), is_piece);
    for (size_t i = 0; !shard && i < starts.size(); i++) {
      const int64_t begin = flat.byte_offset + starts[i] * size;
      bytes.over(begin, begin + counts[i] * size, is_piece);
    }
  }
  for (const OpRef ref : step.order.sequence()) {
    const Op& op = step.op(ref);
    if (op.def->op_class == OpClass::transfer) move_pieces(program, op, pieces);
    if (!is_optimizer(op)) continue;
    const Tensor& grad = program.tensors[op.reads[0]];
    const Tensor& param = program.tensors[op.reads[1]];
    if (grad.bytes() != param.bytes()) continue;
    const int64_t shift = grad.byte_offset - param.byte_offset;
    pieces[param.buffer].over(param.byte_offset, param.byte_offset + param.bytes(),
                              [&](int64_t begin, int64_t end, bool& piece) {
                                if (piece) return;
                                written[grad.buffer].over(begin + shift, end + shift,
                                                          [](int64_t, int64_t, bool& covered) { covered = true; });
                              });
  }
}

}  // namespace

void conflicting_accesses_are_ordered(const JobView& view, Findings& findings) {
  for (const BodyView& body : view.bodies) {
    for (const BufferId buffer : body.accesses.ids()) {
      if (body.accesses[buffer].size() > 1) check_buffer_order(body, buffer, findings);
    }
  }
}

void reads_follow_writes(const JobView& view, Findings& findings) {
  for (size_t i = 0; i < view.bodies.size(); i += 2) {
    const Program& program = *view.bodies[i].program;
    Coverage written(program.buffers.size());
    const bool training = trains(*view.job);
    check_coverage(view.bodies[i], written, training, findings);
    // A buffer that does not persist loses its init contents when the step begins. A training step may build on
    // parameters and optimizer state only, because gradients of the previous step belong to that step.
    for (const BufferId buffer : written.ids()) {
      const Buffer& b = program.buffers[buffer];
      if (!b.persistent || (training && !is_state(b))) written[buffer] = {};
    }
    const BodyView& step = view.steps.empty() ? view.bodies[i + 1] : view.steps[i / 2];
    if (training) allow_padding(view.bodies[i], step, written);
    check_coverage(step, written, training, findings);
    if (view.steps.empty()) continue;
    for (const BufferId buffer : written.ids())
      if (!program.buffers[buffer].persistent) written[buffer] = {};
    check_coverage(view.bodies[i + 1], written, training, findings);
  }
}

}  // namespace prun::verify
