// Shares of targets (compile/step_builder.cc): a loss whose targets may be ignored is a mean over what counts only if
// it and its gradient read the shares of the same targets, of the same microbatch.
//
// Surprising fact: without this rule such a program would pass, because shares are an optional operand of any value.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/text.h"
#include "verify/view.h"

namespace prun::verify {
namespace {

constexpr const char* kWrongShares = "wrong shares";

std::vector<std::string> output_entries(const Attrs& attrs, const char* name) {
  return split(attrs.text(name) + ",", ',');
}

// A part of the batch: an output of next_batch, from which element on.
struct BatchPart {
  std::string input, of;  // names; `of`: the targets whose shares they are, "" = none
  bool shared = false;    // targets that have shares
  int64_t first = 0;
};

// Where targets and shares are operands; nullopt: the op has none.
struct ShareOperands {
  size_t targets, shares;
};
std::optional<ShareOperands> operands_of(const Op& op) {
  if (op.is(ops::cross_entropy) || op.is(ops::cross_entropy_and_grad)) return ShareOperands{1, 2};
  if (op.is(ops::cross_entropy_grad)) return ShareOperands{1, 3};
  if (op.is(ops::cross_entropy_finish)) return ShareOperands{3, 4};
  return std::nullopt;
}

class ShareReader {
 public:
  explicit ShareReader(const Program& program) : program_(program) {}

  // Notes an op's outputs; returns its error, "" = none.
  std::string read(const Op& op) {
    if (op.is(ops::next_batch)) return note_batch(op);
    if ((op.def->moves || op.def->op_class == OpClass::transfer) && op.reads.size() == 1 && op.writes.size() == 1)
      if (const std::optional<BatchPart> part = part_of(op.reads[0])) {
        const Tensor& to = program_.tensors[op.writes[0]];
        parts_[to.buffer] = *part;
        parts_[to.buffer].first = part->first - first_of(to);
      }
    return operands_of(op) ? problem_of(op, *operands_of(op)) : std::string();
  }

 private:
  static int64_t first_of(const Tensor& tensor) { return tensor.byte_offset / dtype_bytes(tensor.dtype); }

  std::string note_batch(const Op& op) {
    const std::vector<std::string> names = output_entries(op.attrs, "names"), of = output_entries(op.attrs, "share_of");
    const bool any = op.attrs.has("share_of");
    if (any && of.size() != names.size()) return fmt::format("has {} names and {} shares", names.size(), of.size());
    for (size_t i = 0; i < op.writes.size() && i < names.size(); i++) {
      BatchPart part{names[i], any ? of[i] : "", false, 0};
      part.shared = any && std::find(of.begin(), of.end(), names[i]) != of.end();
      const auto targets = std::find(names.begin(), names.end(), part.of);
      if (!part.of.empty() && targets == names.end()) return fmt::format("writes shares of no target '{}'", part.of);
      parts_[program_.tensors[op.writes[i]].buffer] = std::move(part);
    }
    return "";
  }

  // Returns the part of the batch that a tensor is; nullopt: it is none.
  std::optional<BatchPart> part_of(TensorId id) const {
    const Tensor& tensor = program_.tensors[id];
    const auto found = parts_.find(tensor.buffer);
    if (found == parts_.end()) return std::nullopt;
    BatchPart part = found->second;
    part.first += first_of(tensor);
    return part;
  }

  std::string problem_of(const Op& op, const ShareOperands& at) const {
    const std::optional<BatchPart> targets = part_of(op.reads[at.targets]);
    if (!targets) return "";
    if (op.reads.size() <= at.shares)
      return targets->shared ? fmt::format("counts all of '{}', some of which are ignored", targets->input) : "";
    const std::optional<BatchPart> shares = part_of(op.reads[at.shares]);
    if (!shares || shares->of != targets->input)
      return fmt::format("takes '{}' for the shares of '{}'", program_.tensors[op.reads[at.shares]].name,
                         targets->input);
    return shares->first == targets->first ? "" : fmt::format("takes the shares of other rows of '{}'", targets->input);
  }

  const Program& program_;
  std::map<BufferId, BatchPart> parts_;
};

}  // namespace

void shares_fit(const JobView& view, Findings& findings) {
  if (!trains(*view.job)) return;
  for (const BodyView& body : view.bodies) {
    ShareReader reader(*body.program);
    for (const OpRef ref : body.order.sequence()) {
      const Op& op = body.op(ref);
      const std::string problem = reader.read(op);
      if (!problem.empty())
        findings.add(kWrongShares, fmt::format("{}{} {}", body.where(), body.describe(ref), problem), op.site);
    }
  }
}

}  // namespace prun::verify
