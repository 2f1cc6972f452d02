// The walk: every class in turn as far as messages allow, one op after another, bytes of operands cut into segments.
#include "verify/values.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/ops.h"

namespace prun::verify {

void Moment::report(const std::string& rule, const std::string& what, const Held& held) const {
  const std::string who =
      held.writer.stream < 0 ? "it is from before the step" : fmt::format("{} wrote it", body.describe(held.writer));
  findings.add(rule, fmt::format("{}{} {}; {}", body.where(), body.describe(ref), what, who), op.site);
}

Values::Values(const JobView& view, Findings& findings) : view_(view), findings_(findings), spreads_(view) {
  for (const Program& program : view.job->classes)
    classes_.push_back({std::vector<ByteMap<Held>>(program.buffers.size())});
}

Segments Values::segments_of(int id, const Tensor& tensor) {
  Segments list;
  if (tensor.bytes() == 0) return list;
  classes_[id].buffers[tensor.buffer].over(
      tensor.byte_offset, tensor.byte_offset + tensor.bytes(), [&](int64_t begin, int64_t end, Held& held) {
        if (held.version == 0) held.live_in = true;
        if (!list.empty() && list.back().held.version == held.version && list.back().held.spread == held.spread &&
            list.back().held.writer == held.writer && list.back().held.base == held.base &&
            list.back().held.norms == held.norms) {
          list.back().end = end;  // one write, split by an earlier look at a part of it
        } else {
          list.push_back({begin, end, held});
        }
      });
  return list;
}

void Values::send(StreamCursor at) {
  Moment moment = moment_of(at);
  messages_[walk_->channel(at)].push_back(moment.reads[0]);
  finish(at.actor, moment);
}

// A receive takes what the matching send of the other class holds.
void Values::receive(StreamCursor at) {
  Moment moment = moment_of(at);
  const Mesh& mesh = moment.body.program->mesh;
  const int size = mesh.size(moment.op.axis), offset = (size - peer_offset(mesh, moment.op)) % size;
  const Tensor& to = *moment.write_tensors[0];
  std::deque<Segments>& sent = messages_[walk_->channel(at)];
  if (sent.empty()) {
    moment.writes[0] = {{to.byte_offset, to.byte_offset + to.bytes(), {}}};
  } else {
    const Segments message = std::move(sent.front());
    sent.pop_front();
    const int64_t shift = message.empty() ? 0 : to.byte_offset - message.front().begin;
    for (const Segment& segment : message) {
      Held held;
      held.spread = spreads_.arrived(segment.held.spread, moment.op.axis, offset);
      moment.writes[0].push_back({segment.begin + shift, segment.end + shift, held});
    }
  }
  finish(at.actor, moment);
}

void Values::run(StreamCursor at) {
  Moment moment = moment_of(at);
  spreads_.follow(moment);
  finish(at.actor, moment);
}

// A reduction across programs adds up what all of them bring.
void Values::meet(const std::vector<StreamCursor>& members) {
  std::vector<Moment> moments;
  for (const StreamCursor at : members) moments.push_back(moment_of(at));
  const auto brings_one = [](const Moment& moment) {
    return moment.op.is(ops::all_reduce) && moment.reads[0].size() == 1;
  };
  if (members.size() > 1 && std::all_of(moments.begin(), moments.end(), brings_one)) {
    std::vector<const Spread*> all;
    for (const Moment& moment : moments) all.push_back(&moment.reads[0].front().held.spread);
    const Spread together = spreads_.together(all);
    for (Moment& moment : moments) {
      moment.reads[0].front().held.spread = together;
      moment.met = true;
    }
  }
  for (size_t i = 0; i < members.size(); ++i) {
    spreads_.follow(moments[i]);
    finish(members[i].actor, moments[i]);
  }
}

// The same op on the same bytes with the same operands, in place: the second makes something else of what the first
// made.
void Values::check_repeated(int id, const Moment& moment) {
  const Op& op = moment.op;
  if (is_optimizer(op)) return;
  std::vector<int64_t> key = {reinterpret_cast<int64_t>(op.def)};
  for (const char letter : op.axis) key.push_back(letter);
  bool in_place = false;
  for (size_t i = 0; i < op.reads.size(); i++) {
    const bool updated = std::find(op.writes.begin(), op.writes.end(), op.reads[i]) != op.writes.end();
    in_place = in_place || updated;
    key.push_back(moment.read_tensors[i]->buffer);
    int last = -1;
    for (const Segment& segment : moment.reads[i]) {
      const int version = updated ? segment.held.base : segment.held.version;
      if (version != last) key.insert(key.end(), {segment.begin, version});
      last = version;
    }
    key.push_back(-1);
  }
  if (!in_place) return;
  const auto [known, fresh] = classes_[id].in_place.try_emplace(std::move(key), moment.ref);
  if (fresh) return;
  findings_.add("applied twice",
                fmt::format("{}{} does to '{}' what {} has done to it already", moment.body.where(),
                            moment.body.describe(moment.ref), moment.body.buffer_name(moment.write_tensors[0]->buffer),
                            moment.body.describe(known->second)),
                op.site);
}

void Values::apply(int id, Moment& moment) {
  Class& state = classes_[id];
  for (size_t w = 0; w < moment.op.writes.size(); w++) {
    const Tensor& tensor = *moment.write_tensors[w];
    if (tensor.bytes() == 0) continue;
    const auto read = std::find(moment.op.reads.begin(), moment.op.reads.end(), moment.op.writes[w]);
    const int version = ++state.version;
    for (Segment& segment : moment.writes[w]) {
      state.buffers[tensor.buffer].over(segment.begin, segment.end, [&](int64_t, int64_t, Held& held) {
        Held next = segment.held;
        next.writer = init_ ? OpRef{-1, 0} : moment.ref;
        next.version = init_ ? 0 : version;
        next.base = read == moment.op.reads.end() ? next.version : held.base;
        next.live_in = !init_ && held.live_in;
        next.norms = 0;
        held = next;
      });
    }
  }
  if (!moment.op.is(ops::norm2) || init_) return;
  for (const Tensor* tensor : moment.read_tensors)
    state.buffers[tensor->buffer].over(tensor->byte_offset, tensor->byte_offset + tensor->bytes(),
                                       [](int64_t, int64_t, Held& held) { held.norms++; });
}

Moment Values::moment_of(StreamCursor at) {
  const BodyView& view = body(at.actor);
  Moment moment{view, walk_->ref(at), walk_->op(at), {}, {}, {}, {}, findings_};
  for (const TensorId id : moment.op.reads) {
    moment.read_tensors.push_back(&view.program->tensors[id]);
    moment.reads.push_back(segments_of(at.actor, *moment.read_tensors.back()));
  }
  for (const TensorId id : moment.op.writes) moment.write_tensors.push_back(&view.program->tensors[id]);
  moment.writes.resize(moment.op.writes.size());
  return moment;
}

void Values::finish(int id, Moment& moment) {
  if (!init_) {
    check_repeated(id, moment);
    check_reads(moment);
    follow_updates(moment);
  }
  apply(id, moment);
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

// What does not persist is gone; parameters are what they are before their update.
void Values::begin_step() {
  begin_.resize(classes_.size());
  for (size_t id = 0; id < classes_.size(); id++) {
    const Program& program = view_.job->classes[id];
    begin_[id].assign(program.buffers.size(), {});
    classes_[id].in_place.clear();
    for (size_t b = 0; b < program.buffers.size(); b++) {
      const Buffer& buffer = program.buffers[b];
      ByteMap<Held>& bytes = classes_[id].buffers[b];
      if (!buffer.persistent) {
        bytes = {};
        continue;
      }
      bytes.each([&](int64_t begin, int64_t end, Held& held) {
        Held before;  // this step: by nothing in it
        before.age = held.age;
        before.spread = held.spread;
        held = before;
        if (buffer.role == Role::param) held.age = Age::before_update;
        begin_[id][b].push_back({begin, end, held});
      });
    }
  }
}

// Parameters and optimizer state are updated, and spread over the ranks as they were.
void Values::end_step() {
  for (size_t id = 0; id < classes_.size(); id++) {
    const BodyView& step = body(static_cast<int>(id));
    const int loss = step.body->loss;
    if (loss >= 0) {
      const Segments held = segments_of(static_cast<int>(id), step.program->tensors[loss]);
      const bool is_made = held.front().held.writer.stream >= 0;
      if (!is_made)
        findings_.add("lost value", step.where() + "a step ends without a loss: nothing in it writes one", {});
      const std::string missing = spreads_.not_whole(held.front().held.spread);
      if (!missing.empty() && is_made)
        findings_.add("placement",
                      fmt::format("{}the loss ends a step {}; {} wrote it", step.where(), missing,
                                  step.describe(held.front().held.writer)),
                      step.op(held.front().held.writer).site);
    }
    for (size_t b = 0; b < begin_[id].size(); b++) {
      if (!is_state(step.program->buffers[b])) continue;
      ByteMap<Held>& bytes = classes_[id].buffers[b];
      Segments now;
      for (const Segment& before : begin_[id][b]) {
        bytes.over(before.begin, before.end, [&](int64_t begin, int64_t end, Held& held) {
          now.push_back({begin, end, held});
          const std::string changed = spreads_.difference(before.held.spread, held.spread);
          if (changed.empty()) return;
          findings_.add("placement",
                        fmt::format("{}bytes {}..{} of buffer '{}' {}; {} wrote them", step.where(), begin, end,
                                    step.buffer_name(static_cast<int>(b)), changed,
                                    held.writer.stream < 0 ? "init" : step.describe(held.writer)),
                        held.writer.stream < 0 ? step.program->buffers[b].site : step.op(held.writer).site);
        });
      }
      if (step.is_step) check_update_at_end(step, static_cast<int>(b), now, findings_);
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
  if (trains(*view.job)) Values(view, findings).run();
}

}  // namespace prun::verify
