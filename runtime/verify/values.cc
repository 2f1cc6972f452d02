// The walk: round-robin over the classes as far as messages allow, op by op, with operands split into segments.
#include "verify/values.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/ops.h"
#include "verify/parts.h"

namespace prun::verify {

void OpContext::report(const std::string& rule, const std::string& what, const ValueState& state) const {
  const std::string who =
      state.writer.stream < 0 ? "it is from before the step" : fmt::format("{} wrote it", body.describe(state.writer));
  findings.add(rule, fmt::format("{}{} {}; {}", body.where(), body.describe(ref), what, who), op.site);
}

Values::Values(const JobView& view, Findings& findings) : view_(view), findings_(findings), flow_(view) {
  for (const Program& program : view.job->classes)
    classes_.push_back({Table<BufferId, ByteMap<ValueState>>(program.buffers.size())});
}

Segments Values::segments_of(int id, const Tensor& tensor) {
  Segments list;
  if (tensor.bytes() == 0) return list;
  classes_[id].buffers[tensor.buffer].over(
      tensor.byte_offset, tensor.byte_offset + tensor.bytes(), [&](int64_t begin, int64_t end, ValueState& state) {
        if (state.version == 0) state.live_in = true;
        if (!list.empty() && list.back().state.version == state.version &&
            list.back().state.placement == state.placement && list.back().state.writer == state.writer &&
            list.back().state.base == state.base && list.back().state.norms == state.norms) {
          list.back().end = end;  // one write, split by a partial access
        } else {
          list.push_back({begin, end, state});
        }
      });
  return list;
}

void Values::send(StreamCursor at) {
  OpContext context = context_of(at);
  follow_parts(context);
  messages_[walk_->channel(at)].push_back(context.reads[0]);
  finish(at.actor, context);
}

// Dequeues the segments that the matching send of the other class enqueued.
void Values::receive(StreamCursor at) {
  OpContext context = context_of(at);
  const Mesh& mesh = context.body.program->mesh;
  const int size = mesh.size(context.op.axis), offset = (size - peer_offset(mesh, context.op)) % size;
  const Tensor& to = *context.write_tensors[0];
  std::deque<Segments>& sent = messages_[walk_->channel(at)];
  if (sent.empty()) {
    context.writes[0] = {{to.byte_offset, to.byte_offset + to.bytes(), {}}};
  } else {
    const Segments message = std::move(sent.front());
    sent.pop_front();
    const int64_t shift = message.empty() ? 0 : to.byte_offset - message.front().begin;
    for (const Segment& segment : message) {
      ValueState state;
      state.placement = flow_.arrived(segment.state.placement, context.op.axis, offset);
      if (state.placement.layout >= 0) state.placement.origin += shift;
      context.writes[0].push_back({segment.begin + shift, segment.end + shift, state});
    }
  }
  finish(at.actor, context);
}

void Values::run(StreamCursor at) {
  OpContext context = context_of(at);
  flow_.follow(context);
  follow_parts(context);
  finish(at.actor, context);
}

// A reduction across programs combines the operands of all members.
void Values::meet(const std::vector<StreamCursor>& members) {
  std::vector<OpContext> moments;
  for (const StreamCursor at : members) moments.push_back(context_of(at));
  const auto brings_one = [](const OpContext& context) {
    return context.op.is(ops::all_reduce) && context.reads[0].size() == 1;
  };
  flow_.check_same(moments);
  if (members.size() > 1 && std::all_of(moments.begin(), moments.end(), brings_one)) {
    std::vector<const TensorPlacement*> all;
    for (const OpContext& context : moments) all.push_back(&context.reads[0].front().state.placement);
    const TensorPlacement together = flow_.together(all);
    for (OpContext& context : moments) {
      context.reads[0].front().state.placement = together;
      context.met = true;
    }
  }
  for (size_t i = 0; i < members.size(); ++i) {
    flow_.follow(moments[i]);
    follow_parts(moments[i]);
    finish(members[i].actor, moments[i]);
  }
}

// Detects an in-place op that is applied a second time to the same bytes with the same operands.
void Values::check_repeated(int id, const OpContext& context) {
  const Op& op = context.op;
  const auto is_updated = [&](TensorId read) {
    return std::find(op.writes.begin(), op.writes.end(), read) != op.writes.end();
  };
  if (op.is(ops::reshape)) return;  // in place it changes nothing
  if (is_optimizer(op) || std::none_of(op.reads.begin(), op.reads.end(), is_updated)) return;
  std::vector<int64_t> key = {reinterpret_cast<int64_t>(op.def)};
  // The average over each of several axes is a scale of its own.
  const std::string axis = op.is(ops::scale) && op.attrs.has("axis") ? op.attrs.text("axis") : op.axis;
  for (const char letter : axis) key.push_back(letter);
  for (size_t i = 0; i < op.reads.size(); i++) {
    const bool updated = is_updated(op.reads[i]);
    key.push_back(context.read_tensors[i]->buffer.index());
    int last = -1;
    for (const Segment& segment : context.reads[i]) {
      const int version = updated ? segment.state.base : segment.state.version;
      if (version != last) key.insert(key.end(), {segment.begin, version});
      last = version;
    }
    key.push_back(-1);
  }
  const auto [known, fresh] = classes_[id].in_place.try_emplace(std::move(key), context.ref);
  if (fresh) return;
  findings_.add(
      "applied twice",
      fmt::format("{}{} does to '{}' what {} has done to it already", context.body.where(),
                  context.body.describe(context.ref), context.body.buffer_name(context.write_tensors[0]->buffer),
                  context.body.describe(known->second)),
      op.site);
}

void Values::apply(int id, OpContext& context) {
  Class& state = classes_[id];
  for (size_t w = 0; w < context.op.writes.size(); w++) {
    const Tensor& tensor = *context.write_tensors[w];
    if (tensor.bytes() == 0) continue;
    const auto read = std::find(context.op.reads.begin(), context.op.reads.end(), context.op.writes[w]);
    const int version = ++state.version;
    for (Segment& segment : context.writes[w]) {
      state.buffers[tensor.buffer].over(segment.begin, segment.end, [&](int64_t, int64_t, ValueState& value) {
        ValueState next = segment.state;
        next.writer = init_ ? OpRef{-1, 0} : context.ref;
        next.version = init_ ? 0 : version;
        next.base = read == context.op.reads.end() ? next.version : value.base;
        next.live_in = !init_ && value.live_in;
        next.norms = 0;
        value = next;
      });
    }
  }
  if (!context.op.is(ops::norm2) || init_) return;
  for (const Tensor* tensor : context.read_tensors)
    state.buffers[tensor->buffer].over(tensor->byte_offset, tensor->byte_offset + tensor->bytes(),
                                       [](int64_t, int64_t, ValueState& value) { value.norms++; });
}

OpContext Values::context_of(StreamCursor at) {
  const BodyView& view = body(at.actor);
  OpContext context{view, walk_->ref(at), walk_->op(at), {}, {}, {}, {}, findings_};
  context.read_tensors.reserve(context.op.reads.size());
  context.write_tensors.reserve(context.op.writes.size());
  context.reads.reserve(context.op.reads.size());
  for (const TensorId id : context.op.reads) {
    context.read_tensors.push_back(&view.program->tensors[id]);
    context.reads.push_back(segments_of(at.actor, *context.read_tensors.back()));
  }
  for (const TensorId id : context.op.writes) context.write_tensors.push_back(&view.program->tensors[id]);
  context.writes.resize(context.op.writes.size());
  return context;
}

void Values::finish(int id, OpContext& context) {
  if (!init_) {
    check_repeated(id, context);
    check_reads(context);
    follow_updates(context);
  }
  apply(id, context);
}

void Values::run_body(bool init) {
  init_ = init;
  messages_.clear();
  std::vector<const Body*> bodies;
  for (int id = 0; id < std::ssize(classes_); ++id) bodies.push_back(body(id).body);
  Walk walk(*view_.job, bodies, Walk::By::class_, *this);
  walk_ = &walk;
  while (!walk.run() && walk.release()) {
  }
}

// Discards buffers that do not persist and marks parameters as not yet updated.
void Values::begin_step() {
  begin_.resize(classes_.size());
  for (size_t id = 0; id < classes_.size(); id++) {
    const Program& program = view_.job->classes[id];
    begin_[id].assign(program.buffers.size(), {});
    classes_[id].in_place.clear();
    for (const BufferId b : program.buffers.ids()) {
      const Buffer& buffer = program.buffers[b];
      ByteMap<ValueState>& bytes = classes_[id].buffers[b];
      if (!buffer.persistent) {
        bytes = {};
        continue;
      }
      bytes.each([&](int64_t begin, int64_t end, ValueState& state) {
        ValueState before;  // no writer in this step
        before.params = state.params;
        before.placement = state.placement;
        state = before;
        if (buffer.role == Role::frozen) state.params = ParamVersion::frozen;
        if (buffer.role == Role::param || (buffer.role == Role::gathered && state.params != ParamVersion::frozen))
          state.params = ParamVersion::before_update;
        begin_[id][b].push_back({begin, end, state});
      });
    }
  }
}

// Checks that parameters and optimizer state are updated and placed over the ranks as at the beginning.
void Values::end_step() {
  for (int id = 0; id < std::ssize(classes_); id++) {
    const BodyView& step = body(id);
    const TensorId loss = step.body->results < 0 ? step.body->loss : step.body->results;
    const Segments results = loss < 0 ? Segments() : segments_of(id, step.program->tensors[loss]);
    for (const Segment& segment : results) {
      const bool is_made = segment.state.writer.stream >= 0;
      if (!is_made)
        findings_.add("lost value", step.where() + "a step ends without a loss: nothing in it writes one", {});
      const std::string missing = flow_.not_whole(segment.state.placement);
      if (!missing.empty() && is_made)
        findings_.add("placement",
                      fmt::format("{}the loss ends a step {}; {} wrote it", step.where(), missing,
                                  step.describe(segment.state.writer)),
                      step.op(segment.state.writer).site);
    }
    for (const BufferId b : begin_[id].ids()) {
      if (!is_state(step.program->buffers[b])) continue;
      ByteMap<ValueState>& bytes = classes_[id].buffers[b];
      Segments now;
      for (const Segment& before : begin_[id][b]) {
        bytes.over(before.begin, before.end, [&](int64_t begin, int64_t end, ValueState& state) {
          now.push_back({begin, end, state});
          const std::string changed = flow_.difference(before.state.placement, state.placement);
          if (changed.empty()) return;
          findings_.add(
              "placement",
              fmt::format("{}bytes {}..{} of buffer '{}' {}; {} wrote them", step.where(), begin, end,
                          step.buffer_name(b), changed, state.writer.stream < 0 ? "init" : step.describe(state.writer)),
              state.writer.stream < 0 ? step.program->buffers[b].site : step.op(state.writer).site);
        });
      }
      if (trains(*view_.job)) check_update_at_end(step, b, now, findings_);
    }
  }
}

void Values::run() {
  run_body(true);
  if (!view_.steps.empty()) {
    begin_step();
    in_step_ = true;
    run_body(false);
    in_step_ = false;
  }
  begin_step();
  run_body(false);
  end_step();
}

void values_are_right(const JobView& view, Findings& findings) {
  if (has_model(*view.job)) Values(view, findings).run();
}

}  // namespace prun::verify
