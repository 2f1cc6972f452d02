// The binary form of a job: magic, version, SHA-256 of the rest, then the structs field by field. The launcher sends it
// to every rank, and ranks compare its hash before step 0.
//
// A damaged job never reaches an executor: the digest detects damage; the bounds in archive.h and check_indices detect
// wrong numbers under a right digest (a bug, an attack).
#include <fmt/format.h>

#include "base/sha256.h"
#include "ir/archive.h"
#include "ir/program.h"
#include "ir/recurs.h"

namespace prun {
namespace {

using archive::bad;
using archive::Like;

constexpr std::string_view kMagic = "PRUNJOB";
constexpr char kVersion = 17;  // increment it whenever a visit function below changes
constexpr size_t kHeaderBytes = kMagic.size() + 1 + kSha256Bytes;

}  // namespace

// The last enumerators, the bounds of Reader.
constexpr Dtype last_of(Dtype) { return Dtype::u8; }
constexpr Role last_of(Role) { return Role::buffer; }
constexpr Space last_of(Space) { return Space::host; }
constexpr Phase last_of(Phase) { return Phase::program; }
constexpr RateShape last_of(RateShape) { return RateShape::inverse_root; }
static_assert(static_cast<int>(Role::buffer) + 1 == kRoles);

// One visit function per struct; their order is the format. Structs with each_field share this one.
template <class A, class T>
requires HasFields<std::remove_const_t<T>>
void visit(A& a, T& v) { each_field_of(v, a); }

// clang-format off
template <class A> void visit(A& a, Like<Site> auto& v) { a(v.file, v.line); }
template <class A> void visit(A& a, Like<Axis> auto& v) { a(v.name, v.size); }
template <class A> void visit(A& a, Like<Edge> auto& v) { a(v.stream, v.index, v.back); }
template <class A> void visit(A& a, Like<Stream> auto& v) { a(v.name, v.ops); }
template <class A> void visit(A& a, Like<When> auto& v) { a(v.every, v.times, v.last, v.first); }
template <class A> void visit(A& a, Like<Repeat::Span> auto& v) { a(v.first, v.count); }
template <class A> void visit(A& a, Like<Repeat::Ring> auto& v) { a(v.offset, v.bytes, v.slots, v.start, v.step, v.pool); }
template <class A> void visit(A& a, Like<Repeat::Member> auto& v) { a(v.buffer, v.ring, v.microbatch); }
template <class A> void visit(A& a, Like<Repeat::Slide> auto& v) { a(v.tensor, v.bytes); }
template <class A> void visit(A& a, Like<Repeat::Growth> auto& v) { a(v.stream, v.index, v.attr, v.by); }
template <class A> void visit(A& a, Like<Repeat> auto& v) {
  a(v.times, v.microbatches, v.ops, v.rings, v.members, v.slides, v.growths);
}
template <class A> void visit(A& a, Like<Body> auto& v) { a(v.name, v.when, v.streams, v.data, v.loss, v.norm, v.repeat, v.results, v.named); }
template <class A> void visit(A& a, Like<NamedResult::Part> auto& v) { a(v.slot, v.factor); }
template <class A> void visit(A& a, Like<NamedResult> auto& v) { a(v.name, v.terms, v.over); }
template <class A> void visit(A& a, Like<RatePiece> auto& v) { a(v.shape, v.end, v.from, v.to); }
template <class A> void visit(A& a, Like<LearningRate> auto& v) { a(v.curve, v.pieces, v.values, v.last); }
template <class A> void visit(A& a, Like<Watched> auto& v) { a(v.metric, v.largest, v.patience, v.keeps); }
template <class A> void visit(A& a, Like<Schedule> auto& v) {
  a(v.steps, v.begin, v.seed, v.learning_rate, v.most_skips, v.watched);
}
template <class A> void visit(A& a, Like<Pool> auto& v) { a(v.name, v.role, v.slots, v.slot_bytes); }
template <class A> void visit(A& a, Like<Job> auto& v) { a(v.classes, v.class_of_rank, v.numerics); }
template <class A> void visit(A& a, Like<Tensor> auto& v) { a(v.name, v.buffer, v.byte_offset, v.dtype, v.shape); }
template <class A> void visit(A& a, Like<Buffer> auto& v) {
  a(v.name, v.role, v.bytes, v.offset, v.persistent, v.pool, v.slot, v.site, v.space);
}
template <class A> void visit(A& a, Like<DataFile> auto& v) { a(v.path, v.bytes, v.skip_bytes, v.element, v.name); }
template <class A> void visit(A& a, Like<FeedInput> auto& v) { a(v.name, v.element, v.dims); }
template <class A> void visit(A& a, Like<DataSource> auto& v) {
  a(v.kind, v.files, v.vocab, v.global_batch, v.order, v.first, v.count, v.part, v.scale, v.document_end, v.whole);
  a(v.last, v.feed, v.inputs, v.slots, v.capacity, v.long_documents);
}
template <class A> void visit(A& a, Like<StateTensor> auto& v) {
  a(v.name, v.tensor, v.staged, v.begin, v.shape, v.split_axis, v.split_dim, v.blocks, v.grain, v.shard_axis,
    v.replicated, v.drift, v.copy, v.frozen, v.updated, v.lr_factor, v.weight_decay);
}
// clang-format on

template <class A>
void visit(A& a, Like<Mesh> auto& v) {
  if constexpr (A::kReading) {
    std::vector<Axis> axes;
    a(axes);
    v = Mesh(std::move(axes));
  } else {
    a(v.axes());
  }
}

// An attribute is the index of its variant, then its value.
template <class A>
void visit(A& a, Like<Attrs> auto& v) {
  if constexpr (A::kReading) {
    for (uint64_t n = a.number(); n > 0; --n) {
      std::string name;
      a(name);
      uint64_t index = a.number();
      Attr value;
      if (index == 0)
        value.emplace<0>();
      else if (index == 1)
        value.emplace<1>();
      else if (index == 2)
        value.emplace<2>();
      else if (index == 3)
        value.emplace<3>();
      else if (index == 4)
        value.emplace<4>();
      else
        bad(fmt::format("attribute {} has variant {}", name, index));
      std::visit([&](auto& held) { a(held); }, value);
      v.set(name, std::move(value));
    }
  } else {
    a.number(v.values().size());
    for (const auto& [name, value] : v.values()) {
      a(name);
      a.number(value.index());
      std::visit([&](const auto& held) { a(held); }, value);
    }
  }
}

template <class A>
void visit(A& a, Like<Op> auto& v) {
  std::string kind;
  if constexpr (!A::kReading) kind = v.def->name;
  a(kind);
  if constexpr (A::kReading) {
    v.def = find_op(kind);
    if (!v.def) bad("no op '" + kind + "'");
  }
  a(v.reads, v.writes, v.attrs, v.waits, v.axis, v.lane, v.phase, v.unit, v.microbatch, v.site);
}

template <class A>
void visit(A& a, Like<Program> auto& v) {
  a(v.name, v.model, v.initial_weights, v.adapters, v.mesh, v.device, v.rank_order, v.buffers, v.tensors, v.pools,
    v.state, v.bodies, v.schedule, v.tokens_per_step, v.sample_word, v.arena_bytes, v.host_arena_bytes);
  for (auto& bytes : v.role_bytes) a(bytes);
  for (auto& bytes : v.host_role_bytes) a(bytes);
}

namespace {

void in_range(int64_t value, int64_t least, size_t size, std::string_view what) {
  if (value < least || value >= static_cast<int64_t>(size)) bad(fmt::format("{} {} of {}", what, value, size));
}

template <class IdType, class T>
void in_table(IdType id, const Table<IdType, T>& table, std::string_view what) {
  in_range(id.index(), 0, table.size(), what);
}

// Code that follows ir/calendar.h counts runs by these numbers.
void check_bodies(const Program& program) {
  in_table(kStepBody, program.bodies, "body");
  const RunPosition& begin = program.schedule.begin;
  if (!begin.left_out.valid()) bad("samples that are left out");
  if (begin.samples < 0 || begin.tokens < 0) bad("samples of the steps before");
  for (BodyId id : program.bodies.ids()) {
    if (const DataSource& data = program.bodies[id].data; data.whole < 0 || (data.whole > 0 && data.global_batch < 1))
      bad(fmt::format("a set of {} samples in batches of {}", data.whole, data.global_batch));
    const When& when = program.bodies[id].when;
    if (when.times < 1 || (id > kStepBody ? when.every < 0 : !(when == When{id.index()})))
      bad(fmt::format("{} {} times after every {} steps", program.bodies[id].name, when.times, when.every));
  }
}

void check_body(const Program& program, const Body& body) {
  for (const TensorId result : {body.loss, body.norm})
    if (result != -1) in_table(result, program.tensors, "tensor");
  if (body.results != -1) in_table(body.results, program.tensors, "tensor");
  if (body.named.size() > static_cast<size_t>(kMostNamed)) bad(fmt::format("{} named numbers", body.named.size()));
  const int64_t slots = body.results == -1 ? 0 : program.tensors[body.results].count();
  for (const NamedResult& named : body.named)
    for (const std::vector<NamedResult::Part>* parts : {&named.terms, &named.over})
      for (const NamedResult::Part& part : *parts) in_range(part.slot, 0, slots, "result");
  for (const Stream& stream : body.streams)
    for (const Op& op : stream.ops) {
      for (const std::vector<TensorId>* list : {&op.reads, &op.writes})
        for (TensorId tensor : *list) in_table(tensor, program.tensors, "tensor");
      for (const Edge& edge : op.waits) {
        in_table(edge.stream, body.streams, "stream");
        in_range(edge.index, 0, body.streams[edge.stream].ops.size(), "op");
      }
      if (!op.axis.empty() && op.axis != kWorld && !program.mesh.has(op.axis)) bad("no axis '" + op.axis + "'");
    }
}

void check_repeat(const Program& program, const Body& body) {
  if (const std::string what = repeat_out_of_range(program, body); !what.empty()) bad("a repeat of wrong " + what);
}

void check_placed(const Program& program, const Buffer& buffer) {
  in_range(buffer.pool, -1, program.pools.size(), "pool");
  int64_t end = 0;
  if (buffer.bytes < 0 || buffer.offset < -1 || __builtin_add_overflow(buffer.offset, buffer.bytes, &end))
    bad("buffer " + buffer.name);
  if (buffer.offset >= 0 && end > arena_bytes(program, buffer.space))
    bad(fmt::format("buffer {} ends at {}", buffer.name, end));
}

void check_tensor(const Program& program, const Tensor& tensor) {
  in_table(tensor.buffer, program.buffers, "buffer");
  const Buffer& buffer = program.buffers[tensor.buffer];
  int64_t bytes = dtype_bytes(tensor.dtype), end = 0;
  for (int64_t dim : tensor.shape)
    if (dim < 0 || __builtin_mul_overflow(bytes, dim, &bytes)) bad("tensor " + tensor.name);
  if (tensor.byte_offset < 0 || __builtin_add_overflow(tensor.byte_offset, bytes, &end) || end > buffer.bytes)
    bad(fmt::format("tensor {} ends at {} of buffer {}", tensor.name, end, buffer.name));
}

// Checks every index and range that readers use without another check.
void check_indices(const Job& job) {
  for (int c : job.class_of_rank) in_range(c, 0, job.classes.size(), "class");
  for (const Program& program : job.classes) {
    int64_t ranks = 1;
    for (const Axis& axis : program.mesh.axes())
      if (axis.size < 1 || __builtin_mul_overflow(ranks, axis.size, &ranks)) bad("axis " + axis.name);
    if (ranks != std::ssize(job.class_of_rank)) bad(fmt::format("mesh of {} ranks", ranks));
    check_bodies(program);
    for (const Buffer& buffer : program.buffers) check_placed(program, buffer);
    for (const Tensor& tensor : program.tensors) check_tensor(program, tensor);
    for (const Body& body : program.bodies) check_body(program, body);
    for (const Body& body : program.bodies) check_repeat(program, body);
  }
}

}  // namespace

std::string serialize_job(const Job& job) {
  archive::Writer writer;
  visit(writer, job);
  std::string payload = writer.take();
  std::string out(kMagic);
  out.push_back(kVersion);
  return out + sha256(payload) + payload;
}

Job parse_job(std::string_view bytes) {
  if (bytes.substr(0, kMagic.size()) != kMagic) bad("it does not begin with " + std::string(kMagic));
  if (bytes.size() < kHeaderBytes) bad("it ends early");
  if (bytes[kMagic.size()] != kVersion)
    bad(fmt::format("format {}, this prun reads {}", static_cast<int>(bytes[kMagic.size()]), +kVersion));
  std::string_view payload = bytes.substr(kHeaderBytes);
  if (bytes.substr(kMagic.size() + 1, kSha256Bytes) != sha256(payload)) bad("its digest is wrong");
  Job job;
  archive::Reader reader(payload);
  visit(reader, job);
  reader.end();
  check_indices(job);
  return job;
}

std::string job_hash(std::string_view bytes) { return hex(sha256(bytes)); }

}  // namespace prun
