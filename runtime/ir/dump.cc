// The text form of a job, which `prun dump` prints and golden tests compare.
//
// Designed for reading and diffing: nothing in it depends on the machine (paths are as typed, files by name), numbers
// that shift when something is added are in columns, and equal units are written out, one op per line.
#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "ir/program.h"

namespace prun {
namespace {

constexpr size_t kListShown = 8;  // longer attribute lists are cut

std::string type_text(const Tensor& tensor) {
  return fmt::format("{}[{}]", dtype_name(tensor.dtype), fmt::join(tensor.shape, ","));
}

template <class T>
std::string list_text(const std::vector<T>& list) {
  if (list.size() <= kListShown) return fmt::format("[{}]", fmt::join(list, ", "));
  auto end = list.begin() + static_cast<std::ptrdiff_t>(kListShown / 2);
  return fmt::format("[{}, ... {} in all]", fmt::join(list.begin(), end, ", "), list.size());
}

std::string short_attr_text(const Attr& attr) {
  if (const auto* list = std::get_if<std::vector<int64_t>>(&attr)) return list_text(*list);
  if (const auto* list = std::get_if<std::vector<double>>(&attr)) return list_text(*list);
  return attr_text(attr);
}

// Formats ranks as "0-3, 6".
std::string ranges_text(const std::vector<int>& sorted) {
  std::string out;
  for (size_t i = 0; i < sorted.size();) {
    size_t j = i;
    while (j + 1 < sorted.size() && sorted[j + 1] == sorted[j] + 1) ++j;
    if (!out.empty()) out += ", ";
    out += i == j ? fmt::format("{}", sorted[i]) : fmt::format("{}-{}", sorted[i], sorted[j]);
    i = j + 1;
  }
  return out;
}

// Prints the type at a tensor's first mention in the line.
std::string tensors_text(const Program& program, const std::vector<TensorId>& ids, std::vector<TensorId>& mentioned) {
  std::string out;
  for (TensorId id : ids) {
    const Tensor& tensor = program.tensors[id];
    bool again = std::find(mentioned.begin(), mentioned.end(), id) != mentioned.end();
    if (!out.empty()) out += ", ";
    out += again ? tensor.name : tensor.name + ":" + type_text(tensor);
    if (!again) mentioned.push_back(id);
  }
  return out;
}

std::string op_text(const Program& program, const Op& op, size_t kind_width) {
  std::vector<TensorId> mentioned;
  std::string reads = tensors_text(program, op.reads, mentioned);
  std::string writes = tensors_text(program, op.writes, mentioned);
  std::string out = fmt::format("{:<{}}", op.def->name, kind_width);
  if (!reads.empty()) out += "  " + reads;
  if (!writes.empty()) out += (reads.empty() ? "  -> " : " -> ") + writes;
  std::string attrs;
  for (const auto& [name, value] : op.attrs.values())
    attrs += fmt::format("{}{}={}", attrs.empty() ? "" : " ", name, short_attr_text(value));
  if (!attrs.empty()) out += "  {" + attrs + "}";
  if (!op.axis.empty()) out += "  over " + op.axis;
  if (op.lane != 0) out += fmt::format(" lane {}", op.lane);
  return out;
}

std::string waits_text(const Body& body, const std::vector<Edge>& waits) {
  std::string out;
  for (const Edge& edge : waits)
    out += fmt::format("{}{}@{}{}", out.empty() ? "  after " : ", ", body.streams[edge.stream].name, edge.index,
                       edge.back ? " of the step before" : "");
  return out;
}

void add_stream(std::string& out, const Program& program, const Body& body, const Stream& stream) {
  out += fmt::format("\n  stream {}\n", stream.name);
  size_t width = 0;
  for (const Op& op : stream.ops) width = std::max(width, op.def->name.size());
  std::string heading;
  for (size_t i = 0; i < stream.ops.size(); ++i) {
    const Op& op = stream.ops[i];
    std::string label = fmt::format("{}{}{}", phase_name(op.phase), op.unit.empty() ? "" : " ", op.unit);
    if (op.microbatch >= 0) label += fmt::format(" of microbatch {}", op.microbatch);
    if (label != heading) out += "    " + label + "\n";
    heading = label;
    out += fmt::format("{:7}  {}{}{}\n", i, op_text(program, op, width), waits_text(body, op.waits),
                       op.site.known() ? "  [" + op.site.text() + "]" : "");
  }
}

void add_body(std::string& out, const Program& program, const Body& body) {
  if (body.op_count() == 0) return;
  out += fmt::format("\n{}\n", body.name);
  for (const Stream& stream : body.streams) add_stream(out, program, body, stream);
}

void add_memory(std::string& out, const Program& program) {
  const auto add_roles = [&](const int64_t(&bytes)[kRoles]) {
    for (int role = 0; role < kRoles; ++role)
      if (bytes[role] != 0)
        out += fmt::format("  {:<10}  {:>15}\n", role_name(static_cast<Role>(role)), grouped(bytes[role]));
  };
  out += fmt::format("\narena    {} bytes\n", grouped(program.arena_bytes));
  add_roles(program.role_bytes);
  if (program.host_arena_bytes != 0) out += fmt::format("on host  {} bytes\n", grouped(program.host_arena_bytes));
  add_roles(program.host_role_bytes);
  if (!program.pools.empty()) out += "\npools\n";
  for (const Pool& pool : program.pools)
    out += fmt::format("  {:<10}  {:>2} x {:>13} bytes  {}\n", role_name(pool.role), pool.slots,
                       grouped(pool.slot_bytes), pool.name);
  if (!program.buffers.empty()) out += fmt::format("\nbuffers{:>8}{:>15}  role\n", "offset", "bytes");
  for (const Buffer& buffer : program.buffers) {
    out += fmt::format("{:>15}{:>15}  {:<10}  {}", buffer.offset < 0 ? "unplaced" : grouped(buffer.offset),
                       grouped(buffer.bytes), role_name(buffer.role), buffer.name);
    if (buffer.pool >= 0) {
      const std::string& pool = program.pools[buffer.pool].name;
      out += fmt::format("  in {} slot {}", pool, buffer.slot);
    }
    out += buffer.space == Space::host ? "  on host" : "";
    out += buffer.persistent ? "  persistent\n" : "\n";
  }
}

// Returns for example "tokens data.bin", "tokens a.bin to c.bin" or "bytes data.txt, 50 from 950 on".
std::string source_text(const DataSource& data) {
  std::string text = data.kind;
  const auto name = [](const DataFile& file) { return file.path.substr(file.path.find_last_of('/') + 1); };
  if (!data.files.empty()) text += " " + name(data.files.front());
  if (data.files.size() > 1) text += (data.kind == "arrays" ? " and " : " to ") + name(data.files.back());
  if (!data.feed.empty()) text += " " + data.feed;
  if (data.order != "random") text += ", " + data.order;
  if (!data.last.empty()) text += ", last " + data.last;
  if (data.document_end >= 0) text += fmt::format(", documents end with {}", data.document_end);
  if (data.capacity > 0) text += fmt::format(" and fill streams of {} tokens", grouped(data.capacity));
  if (data.part) text += fmt::format(", {} from {} on", data.count, data.first);
  if (data.whole > 0) text += fmt::format(", each of {} samples once", grouped(data.whole));
  return text;
}

std::string repeat_text(const Program& program, const Body& body) {
  const Repeat& repeat = body.repeat;
  std::string spans;
  for (const StreamId stream : body.streams.ids()) {
    const auto [first, count] = repeat.ops[stream];
    if (count > 0)
      spans +=
          fmt::format("{}{}#{} to {}", spans.empty() ? "" : ", ", body.streams[stream].name, first, first + count - 1);
  }
  return fmt::format("repeat   {}{}: {} more times, each {} microbatch{} further\n",
                     &body == &program.step() ? "" : body.name + ": ", spans, repeat.times, repeat.microbatches,
                     repeat.microbatches == 1 ? "" : "es");
}

void add_header(std::string& out, const Program& program, const std::vector<int>& ranks, size_t all) {
  out += fmt::format("program  {}\n", program.name);
  out += fmt::format("mesh     {}\n", program.mesh.text());
  out += fmt::format("ranks    {}{}\n", ranges_text(ranks), ranks.size() == all ? "" : fmt::format(" of {}", all));
  out += fmt::format("device   {}\n", program.device);
  if (program.rank_order) out += "reduce   in rank order\n";
  const Schedule& schedule = program.schedule;
  out += fmt::format("steps    {}, seed {}", schedule.steps, schedule.seed);
  const LearningRate& rate = schedule.learning_rate;
  if (rate.peak() != 0) out += ", learning rate " + (rate.curve.empty() ? fmt::format("{}", rate.last) : rate.curve);
  out += "\n";
  const DataSource& data = program.step().data;
  if (!data.kind.empty()) {
    out += fmt::format("data     {}, {} samples a step", source_text(data), data.global_batch);
    if (program.tokens_per_step != 0 && program.tokens_per_step != data.global_batch)
      out += fmt::format(" ({} {})", grouped(program.tokens_per_step), program.sample_word);
    out += "\n";
  }
  for (BodyId id = kStepBody + 1; id < program.bodies.next(); ++id) {
    const auto& [name, when, streams, source, loss, norm, repeat, results, named] = program.bodies[id];
    const std::string times = when.times == 1 ? "" : fmt::format("{} times ", when.times);
    if (when.every == 0) {
      out += fmt::format("{:<8} {}before step 0\n", name, times);
      continue;
    }
    out += fmt::format("{:<8} {}after every {} step{}{}{}\n", name, times, when.every, when.every == 1 ? "" : "s",
                       source.kind.empty() ? "" : ", ", source_text(source));
  }
  if (program.step().loss >= 0) out += fmt::format("loss     {}\n", program.tensors[program.step().loss].name);
  for (const Body& body : program.bodies)
    if (body.repeat.any()) out += repeat_text(program, body);
}

}  // namespace

std::string dump_op(const Program& program, const Op& op) { return op_text(program, op, 0); }

std::string dump_job(const Job& job) {
  std::string out;
  for (size_t c = 0; c < job.classes.size(); ++c) {
    const Program& program = job.classes[c];
    std::vector<int> ranks;
    for (size_t rank = 0; rank < job.class_of_rank.size(); ++rank)
      if (job.class_of_rank[rank] == static_cast<int>(c)) ranks.push_back(rank);
    if (c > 0) out += "\n\n";
    add_header(out, program, ranks, job.class_of_rank.size());
    add_memory(out, program);
    for (const Body& body : program.bodies) add_body(out, program, body);
  }
  return out;
}

}  // namespace prun
