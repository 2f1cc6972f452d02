// Notation of the case tables: an op is a line of text over a list of named tensors.
#pragma once
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/agreement/agreement_cases.h"
#include "tests/unit/op_list.h"

namespace prun {

using Counts = std::vector<int64_t>;
using Numbers = std::vector<double>;
inline constexpr std::optional<Dtype> T = std::nullopt, F64 = Dtype::f64, F32 = Dtype::f32, BF16 = Dtype::bf16,
                                      I32 = Dtype::i32, I64 = Dtype::i64;

// "linear x w > y": an op with the names of the tensors that it reads and writes.
struct Line {
  Line(const char* op, Attrs its_attrs = {}) : text(op), attrs(std::move(its_attrs)) {}
  std::string text;
  Attrs attrs;
};

// Cases over one list of tensors, {"x y", slot} for each kind. A case has the tensors that its ops name, in the list's
// order.
class Family {
 public:
  Family(std::vector<Case>& out, const std::vector<std::pair<const char*, Slot>>& tensors) : out_(out) {
    for (const auto& [names, slot] : tensors) {
      std::istringstream words(names);
      for (std::string name; words >> name;) tensors_.emplace_back(name, slot);
    }
  }

  Case& add(std::string name, const Line& op, double tolerance = 1e-6, const std::vector<Line>& before = {},
            const std::vector<Line>& apart = {}) {
    Case made{.name = std::move(name), .slots = {}, .op = parse(op), .tolerance = tolerance};
    for (const Line& line : before) made.before.push_back(parse(line));
    for (const Line& line : apart) made.apart.push_back(parse(line));
    std::vector<OpLine*> lines = {&made.op};
    for (OpLine& line : made.before) lines.push_back(&line);
    for (OpLine& line : made.apart) lines.push_back(&line);
    std::set<TensorId> used;
    for (const OpLine* line : lines)
      for (const auto* ids : {&line->reads, &line->writes}) used.insert(ids->begin(), ids->end());
    for (const TensorId id : used) made.slots.push_back(tensors_[id.index()].second);
    for (OpLine* line : lines)
      for (auto* ids : {&line->reads, &line->writes})
        for (TensorId& id : *ids) id = static_cast<int>(std::distance(used.begin(), used.find(id)));
    return out_.emplace_back(std::move(made));
  }

 private:
  // Returns the op with indices into tensors_.
  OpLine parse(const Line& line) const {
    std::istringstream words(line.text);
    std::string word;
    words >> word;
    OpLine op{op_def(word).name.data(), {}, {}, line.attrs};
    for (auto* ids = &op.reads; words >> word;) {
      if (word == ">") {
        ids = &op.writes;
        continue;
      }
      size_t at = 0;
      while (at < tensors_.size() && tensors_[at].first != word) ++at;
      PRUN_CHECK(at < tensors_.size(), line.text);
      ids->push_back(static_cast<int>(at));
    }
    return op;
  }

  std::vector<Case>& out_;
  std::vector<std::pair<std::string, Slot>> tensors_;
};

}  // namespace prun
