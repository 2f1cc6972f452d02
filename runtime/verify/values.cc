// The walk: every class in turn as far as messages allow, one op after another, bytes of operands cut into segments.
#include "verify/values.h"

#include <fmt/format.h>

#include <algorithm>

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

// A receive takes what the matching send of the other class holds.
bool Values::exchange(int id, Moment& moment, bool force) {
  const Mesh& mesh = moment.body.program->mesh;
  const int size = mesh.size(moment.op.axis), offset = peer_offset(mesh, moment.op);
  const Lane lane = lane_of(*moment.body.program, moment.op);
  if (moment.op.sends()) {
    messages_[{id, offset, lane}].push_back(moment.reads[0]);
    return true;
  }
  const int sender = view_.job->class_of_rank[peer_rank(mesh, moment.op, moment.body.rank)];
  const Channel channel{sender, (size - offset) % size, lane};
  size_t& next = received_[channel];
  const std::vector<Segments>& sent = messages_[channel];
  const Tensor& to = *moment.write_tensors[0];
  if (next >= sent.size()) {
    if (!force) return false;
    moment.writes[0] = {{to.byte_offset, to.byte_offset + to.bytes(), {}}};
    return true;
  }
  const Segments& message = sent[next++];
  const int64_t shift = message.empty() ? 0 : to.byte_offset - message.front().begin;
  for (const Segment& segment : message) {
    Held held;
    held.spread = spreads_.arrived(segment.held.spread, moment.op.axis, (size - offset) % size);
    moment.writes[0].push_back({segment.begin + shift, segment.end + shift, held});
  }
  return true;
}

// A reduction across programs adds up what all of them bring.
bool Values::meet(int id, Moment& moment, bool force) {
  std::set<int> classes;
  for (const int rank : moment.body.program->mesh.group(moment.op.axis, moment.body.rank))
    classes.insert(view_.job->class_of_rank[rank]);
  if (classes.size() < 2 || moment.reads[0].size() != 1) return true;
  const Meeting meeting{classes, lane_of(*moment.body.program, moment.op)};
  size_t& call = met_[{id, meeting}];
  std::map<int, std::vector<Spread>>& brought = brought_[meeting];
  if (brought[id].size() == call) brought[id].push_back(moment.reads[0].front().held.spread);
  std::vector<const Spread*> all;
  for (const int other : classes)
    if (brought[other].size() > call) all.push_back(&brought[other][call]);
  if (all.size() < classes.size() && !force) return false;
  call++;
  if (all.size() == classes.size()) {
    moment.reads[0].front().held.spread = spreads_.together(all);
    moment.met = true;
  }
  return true;
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
      state.buffers[tensor.buffer].over(
          segment.begin, segment.end, [&](int64_t, int64_t, Held& held) {
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
  if (!moment.op.is("norm2") || init_) return;
  for (const Tensor* tensor : moment.read_tensors)
    state.buffers[tensor->buffer].over(tensor->byte_offset, tensor->byte_offset + tensor->bytes(),
                                                            [](int64_t, int64_t, Held& held) { held.norms++; });
}

bool Values::execute(int id, OpRef ref, bool force) {
  const BodyView& view = body(id);
  Moment moment{view, ref, view.op(ref), {}, {}, {}, {}, findings_};
  const auto tensor = [&](int t) { return &view.program->tensors[t]; };
  for (const int t : moment.op.reads) {
    moment.read_tensors.push_back(tensor(t));
    moment.reads.push_back(segments_of(id, *tensor(t)));
  }
  for (const int t : moment.op.writes) moment.write_tensors.push_back(tensor(t));
  moment.writes.resize(moment.op.writes.size());
  if (moment.op.point_to_point()) {
    if (!exchange(id, moment, force)) return false;
  } else {
    if (moment.op.is("all_reduce") && !meet(id, moment, force)) return false;
    spreads_.follow(moment);
  }
  if (!init_) {
    check_repeated(id, moment);
    check_reads(moment);
    follow_updates(moment);
  }
  apply(id, moment);
  return true;
}

void Values::run_body(bool init) {
  init_ = init;
  messages_.clear();
  received_.clear();
  brought_.clear();
  met_.clear();
  std::vector<std::vector<int>> done;
  for (size_t id = 0; id < classes_.size(); id++) done.emplace_back(body(static_cast<int>(id)).body->streams.size(), 0);
  const auto advance = [&](bool force) {
    bool moved = false;
    for (int id = 0; id < std::ssize(classes_); id++) {
      const std::vector<Stream>& streams = body(id).body->streams;
      std::vector<int>& mine = done[id];
      for (bool again = true; again;) {
        again = false;
        for (size_t s = 0; s < streams.size(); s++) {
          while (mine[s] < std::ssize(streams[s].ops) &&
                 !unsatisfied(streams[s].ops[mine[s]], mine) &&
                 execute(id, {static_cast<int>(s), mine[s]}, force)) {
            mine[s]++;
            again = moved = true;
            force = false;
          }
        }
      }
    }
    return moved;
  };
  while (advance(false) || advance(true)) {
  }
}

// What does not persist is gone; parameters are what they are before their update.
void Values::begin_step() {
  begin_.resize(classes_.size());
  for (size_t id = 0; id < classes_.size(); id++) {
    const Program& program = view_.job->classes[id];
    begin_[id].resize(program.buffers.size());
    for (size_t b = 0; b < program.buffers.size(); b++) {
      const Buffer& buffer = program.buffers[b];
      ByteMap<Held>& bytes = classes_[id].buffers[b];
      if (!buffer.persistent) {
        bytes = {};
        continue;
      }
      bytes.each([&](int64_t begin, int64_t end, Held& held) {
        held.live_in = false;
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
    const int loss = step.program->loss_tensor;
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
      if (!view_.evaluates) check_update_at_end(step, static_cast<int>(b), now, findings_);
    }
  }
}

void Values::run() {
  run_body(true);
  begin_step();
  run_body(false);
  end_step();
}

void values_are_right(const JobView& view, Findings& findings) {
  if (trains(*view.job)) Values(view, findings).run();
}

}  // namespace prun::verify
