// Muon applies to each matrix the update that its owner has computed from this matrix's direction. The ops name
// matrices by elements of vectors, so this follows the vectors from op to op and compares the elements.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/text.h"
#include "ir/ops.h"
#include "verify/values.h"

namespace prun::verify {
namespace {

constexpr const char* kMatrices = "matrices";

// Returns the op of the body that writes the whole tensor and reads another; null = none.
const Op* maker_of(const BodyView& body, TensorId tensor) {
  for (const Stream& stream : body.body->streams)
    for (const Op& op : stream.ops)
      if (std::find(op.writes.begin(), op.writes.end(), tensor) != op.writes.end() &&
          std::find(op.reads.begin(), op.reads.end(), tensor) == op.reads.end() && !op.reads.empty())
        return &op;
  return nullptr;
}

// Follows gathers back from a tensor; `over` receives their axes, the first gather's last.
const Op* before_gathers(const BodyView& body, TensorId tensor, std::vector<std::string>& over) {
  const Op* op = maker_of(body, tensor);
  for (int most = 16; op != nullptr && op->is(ops::all_gather) && most > 0; most--) {
    over.push_back(op->axis);
    op = maker_of(body, op->reads[0]);
  }
  return op;
}

struct Orthogonal {
  std::vector<int64_t> of, starts, rows, columns, joined, owners, offsets;

  explicit Orthogonal(const Attrs& attrs)
      : of(attrs.integers("of")),
        starts(attrs.integers("starts")),
        rows(attrs.integers("rows")),
        columns(attrs.integers("columns")),
        joined(attrs.integers("joined")),
        owners(attrs.integers("owners")),
        offsets(attrs.integers("offsets")) {}
  bool complete() const {
    for (const auto* list : {&starts, &rows, &columns, &joined, &owners, &offsets})
      if (list->size() != of.size()) return false;
    return true;
  }
};

// Requires that each matrix has one owner and a place of its own in the owner's chunk.
std::string owners_problem(const Program& program, const Op& op, const Orthogonal& made) {
  int64_t ranks = 1;
  for (const std::string& axis : split(op.attrs.text("axes"), ','))
    if (!axis.empty()) ranks *= program.mesh.has(axis) ? program.mesh.size(axis) : 1;
  const int64_t chunk = program.tensors[op.writes[0]].count();
  std::vector<std::vector<int64_t>> places;  // owner, first element, end
  for (size_t i = 0; i < made.of.size(); i++) {
    if (made.of[i] < 0 || made.of[i] >= std::ssize(op.reads)) return "reads a vector that it does not have";
    const Tensor& vector = program.tensors[op.reads[made.of[i]]];
    const int64_t parts = vector.shape.size() > 1 ? vector.shape.front() : 1, count = made.rows[i] * made.columns[i],
                  end = made.offsets[i] + count * parts;
    if (made.owners[i] < 0 || made.owners[i] >= ranks)
      return fmt::format("leaves a matrix to owner {} of {}", made.owners[i], ranks);
    if ((parts > 1) != (made.joined[i] > 0)) return "joins a matrix that has no parts, or leaves parts apart";
    if (made.starts[i] < 0 || made.starts[i] + count > vector.count() / parts || made.offsets[i] < 0 || end > chunk)
      return "reads or writes beyond a vector";
    places.push_back({made.owners[i], made.offsets[i], end});
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); i++)
    if (places[i][0] == places[i - 1][0] && places[i][1] < places[i - 1][2]) return "writes two matrices to one place";
  return "";
}

}  // namespace

int dims_before_matrix(const BodyView& body, const Op& orthogonal, size_t read, int64_t start) {
  std::vector<std::string> over;
  const Op* const momentum = before_gathers(body, orthogonal.reads[read], over);
  if (momentum == nullptr || momentum->reads.size() < 2) return 0;
  const Program& program = *body.program;
  const Tensor& parameters = program.tensors[momentum->reads[1]];
  for (const StateTensor& state : program.state) {
    if (is_in(program, state, parameters) && state.begin <= start && start < state.begin + local_count(program, state))
      return static_cast<int>(state.shape.size()) - 2;
  }
  return 0;
}

void check_matrices(const OpContext& context) {
  const BodyView& body = context.body;
  const Program& program = *body.program;
  const Attrs& attrs = context.op.attrs;
  const auto bad = [&](const std::string& what) { context.report(kMatrices, what, ValueState()); };
  std::vector<std::string> over;
  const Op* const orthogonal = before_gathers(body, context.op.reads[0], over);
  if (orthogonal == nullptr || !orthogonal->is(ops::orthogonalize))
    return bad("updates parameters with something else than orthogonalized matrices");
  std::string gathered;
  for (const std::string& axis : over) gathered += (gathered.empty() ? "" : ",") + axis;
  if (gathered != orthogonal->attrs.text("axes"))
    return bad(fmt::format("reads chunks gathered over '{}', and the owners are ranks of '{}'", gathered,
                           orthogonal->attrs.text("axes")));
  const Orthogonal made(orthogonal->attrs);
  if (!made.complete()) return bad("lists matrices without all of their sizes");
  if (const std::string problem = owners_problem(program, *orthogonal, made); !problem.empty()) return bad(problem);
  const int64_t chunk = program.tensors[orthogonal->writes[0]].count();
  const std::vector<int64_t> starts = attrs.integers("matrix_starts"), counts = attrs.integers("matrix_counts"),
                             places = attrs.integers("matrix_places");
  if (counts.size() != starts.size() || places.size() != starts.size() ||
      attrs.numbers("matrix_scales").size() != starts.size())
    return bad("lists matrices without all of their settings");
  // The vectors that hold directions of these parameters.
  std::vector<bool> own(orthogonal->reads.size(), false);
  for (size_t r = 0; r < own.size(); r++) {
    std::vector<std::string> parts;
    const Op* const momentum = before_gathers(body, orthogonal->reads[r], parts);
    own[r] = momentum != nullptr && momentum->is(*context.op.def->optimizer->direction) &&
             momentum->reads[1] == context.op.reads[1];
    const bool joins = program.tensors[orthogonal->reads[r]].shape.size() > 1;
    if (own[r] && joins && (parts.empty() || parts.front() != attrs.text("joined_axis")))
      return bad("takes its part of matrices over another axis than they are joined over");
  }
  std::vector<std::pair<int64_t, int64_t>> updated;  // first element and end
  for (size_t k = 0; k < starts.size(); k++) {
    bool found = false;
    for (size_t i = 0; i < made.of.size() && !found; i++)
      found = own[made.of[i]] && made.starts[i] == starts[k] && made.rows[i] * made.columns[i] == counts[k] &&
              made.owners[i] * chunk + made.offsets[i] == places[k];
    if (!found)
      return bad(fmt::format("updates elements {}..{} with values that are not computed from their directions",
                             starts[k], starts[k] + counts[k]));
    updated.emplace_back(starts[k], starts[k] + counts[k]);
  }
  std::sort(updated.begin(), updated.end());
  const Tensor& parameters = program.tensors[context.op.reads[1]];
  for (const StateTensor& state : program.state) {
    if (!is_in(program, state, parameters) || state.frozen) continue;
    int64_t at = state.begin;
    const int64_t last = at + local_count(program, state);
    for (const auto& [begin, end] : updated)
      if (begin == at && at < last) at = end;
    if (at != last) return bad(fmt::format("does not update all of '{}'", state.name));
    if (const std::string problem = shard_problem(program, attrs, state); !problem.empty()) return bad(problem);
  }
}

}  // namespace prun::verify
