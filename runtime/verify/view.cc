// Computes orders and accesses once for all rules.
#include "verify/view.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/ops.h"

namespace prun::verify {

BodyView::BodyView(const Job& job, int id, BodyId body_id)
    : program(&job.classes[id]),
      body(&program->bodies[body_id]),
      class_id(id),
      many_classes(job.classes.size() > 1),
      is_init(body_id == kInitBody),
      is_step(body_id == kStepBody),
      order(*body) {
  const auto first_rank = std::find(job.class_of_rank.begin(), job.class_of_rank.end(), id);
  rank = first_rank - job.class_of_rank.begin();
  int total = 0;
  for (const Stream& stream : body->streams) {
    first_.push_back(total);
    total += std::ssize(stream.ops);
  }
  position.assign(total, -1);
  for (size_t i = 0; i < order.sequence().size(); i++) {
    const OpRef ref = order.sequence()[i];
    position[first_[ref.stream] + ref.index] = i;
    if (op(ref).communicates()) talks.push_back(ref);
  }
  if (ordered()) collect_accesses();
}

void BodyView::find_kinds(OpKinds& of_job) {
  kinds_.reserve(position.size());
  for (const Stream& stream : body->streams)
    for (const Op& op : stream.ops) kinds_.push_back(of_job.of(*program, op));
}

void BodyView::collect_accesses() {
  accesses.resize(program->buffers.size());
  Table<BufferId, int> count(program->buffers.size(), 0);
  for (const Stream& stream : body->streams)
    for (const Op& op : stream.ops)
      for (const std::vector<TensorId>* ids : {&op.reads, &op.writes})
        for (const TensorId id : *ids) count[program->tensors[id].buffer]++;
  for (const BufferId buffer : count.ids()) accesses[buffer].reserve(count[buffer]);
  const auto touch = [&](OpRef ref, TensorId id, bool write) {
    const Tensor& tensor = program->tensors[id];
    if (tensor.bytes() == 0) return;
    accesses[tensor.buffer].push_back({ref, id, tensor.byte_offset, tensor.byte_offset + tensor.bytes(), write});
  };
  for (const OpRef ref : order.sequence()) {
    const Op& one = op(ref);
    // scatter reads on its root only, so a class without the root need not have a valid input.
    const bool reads = !(one.is(ops::scatter) && one.communicates() && many_classes &&
                         program->mesh.index(one.axis, rank) != one.attrs.integer("root"));
    if (reads)
      for (const TensorId id : one.reads) touch(ref, id, false);
    for (const TensorId id : one.writes) touch(ref, id, true);
  }
}

std::string BodyView::describe(OpRef ref) const {
  const Op& one = op(ref);
  std::string label = one.unit.empty() ? "" : one.unit + " ";
  label += phase_name(one.phase);
  std::string text =
      fmt::format("{} ({}, {}#{}", one.communicates() ? signature_of(*program, one).text() : one.def->name, label,
                  body->streams[ref.stream].name, ref.index);
  if (one.site.known()) text += ", " + one.site.text();
  return text + ")";
}

std::string BodyView::where() const { return many_classes ? fmt::format("rank {}: ", rank) : ""; }

void Findings::add(const std::string& rule, std::string message, Site site) {
  if (full(rule)) return;
  // A finding in code shared by init and step occurs twice.
  for (const Finding& known : all_) {
    if (known.rule == rule && known.message == message) return;
  }
  counts_[rule]++;
  all_.push_back({rule, std::move(message), std::move(site)});
}

bool Findings::full(const std::string& rule) const {
  const auto found = counts_.find(rule);
  return found != counts_.end() && found->second >= kMost;
}

std::vector<Finding> Findings::take() {
  std::map<std::string, bool> seen;
  std::vector<Finding> firsts, rest;
  for (Finding& finding : all_) {
    const bool first = !seen[finding.rule];
    seen[finding.rule] = true;
    (first ? firsts : rest).push_back(std::move(finding));
  }
  all_.clear();
  for (Finding& finding : rest) firsts.push_back(std::move(finding));
  return firsts;
}

}  // namespace prun::verify
