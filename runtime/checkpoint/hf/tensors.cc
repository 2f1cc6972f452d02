#include "checkpoint/hf/tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "checkpoint/hf/config.h"

namespace prun::checkpoint {
namespace {

constexpr int64_t kMostRepeated = 100000;  // layers, and experts of one, so that a damaged config is rejected early

std::string replaced(std::string text, const std::string& mark, int64_t number) {
  for (size_t at = 0; (at = text.find(mark, at)) != std::string::npos;)
    text.replace(at, mark.size(), fmt::format("{}", number));
  return text;
}

std::vector<int> in_order(size_t dims) {
  std::vector<int> order(dims);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

class Expansion {
 public:
  Expansion(const Description& description, const Attrs& settled, const ShapeOf& ours, const ShapeOf& theirs)
      : description_(description), settled_(settled), ours_(ours), theirs_(theirs) {}

  std::vector<HfTensor> run() {
    for (const DescribedTensor& one : description_.tensors) add(one, "", "");
    const int64_t layers = layer_count();
    if (layers > kMostRepeated)
      throw Error(Exit::checkpoint_invalid, fmt::format("{} layers are more than {}", layers, kMostRepeated));
    for (int64_t i = 0; i < layers; ++i)
      for (const DescribedTensor& one : description_.layers)
        add(one, replaced(description_.their_layers, "{layer}", i), replaced(description_.our_layers, "{layer}", i));
    join_parts();
    return std::move(all_);
  }

 private:
  [[noreturn]] static void fail(const DescribedTensor& of, const std::string& what) {
    throw Error(Exit::checkpoint_invalid, what, of.site);
  }

  int64_t number(const Formula& formula) const { return value_of(description_, formula, settled_); }
  bool holds(const Formula& condition) const { return number(condition) != 0; }

  std::optional<Shape> our_shape(const std::string& name) const { return ours_ ? ours_(name) : std::nullopt; }
  std::optional<Shape> their_shape(const std::string& name) const {
    if (!theirs_) return std::nullopt;
    std::optional<Shape> found = theirs_(name);
    if (found || description_.prefix.empty() || !name.starts_with(description_.prefix)) return found;
    return theirs_(name.substr(description_.prefix.size()));
  }

  // The option, or as many as there are tensors.
  int64_t layer_count() const {
    if (description_.layers.empty()) return 0;
    if (settled_.has("layers")) return settled_.integer("layers");
    const DescribedTensor& first = description_.layers.front();
    const std::string end = first.linear ? ".weight" : "";
    int64_t count = 0;
    while (our_shape(replaced(description_.our_layers, "{layer}", count) + first.ours.front().ours + end) ||
           their_shape(replaced(description_.their_layers, "{layer}", count) + first.theirs.front() + end))
      ++count;
    return count;
  }

  void add(const DescribedTensor& of, const std::string& their, const std::string& our) {
    if (of.when.given() && !holds(of.when)) return;
    if (of.copy && theirs_ && !their_shape(their + of.theirs.front())) return;  // files may omit it
    if (!of.linear) return add_tensor(of, their + of.theirs.front(), our);
    if (!of.experts.given()) return add_linear(of, their, our, -1, 1);
    const int64_t experts = number(of.experts);
    if (experts > kMostRepeated) fail(of, fmt::format("{} experts are more than {}", experts, kMostRepeated));
    for (int64_t e = 0; e < experts; ++e) add_linear(of, their, our, e, experts);
  }

  // Returns the shape of our tensor; its rows may be too few if only a part of it is theirs.
  Shape shape_of(const DescribedTensor& of, const std::string& their, const std::string& our) const {
    Shape shape;
    for (const Formula& one : of.shape) shape.push_back(number(one));
    if (!of.shape.empty()) return shape;
    if (const std::optional<Shape> found = our_shape(our)) return *found;
    const std::optional<Shape> found = their_shape(their);
    if (!found) fail(of, fmt::format("there is no tensor {}", ours_ ? our : their));
    shape = *found;
    if (of.layout == Layout::out_in && shape.size() > 1) std::swap(shape.back(), shape[shape.size() - 2]);
    return shape;
  }

  void add_tensor(const DescribedTensor& of, const std::string& their, const std::string& our) {
    HfTensor made{their, {}, {}, of.copy, of.site};
    int64_t rows = 0;
    for (const DescribedPart& one : of.ours) {
      HfPart part{our + one.ours, shape_of(of, their, our + one.ours), {}, {}, {}};
      part.shape = part.whole;
      part.offset = Shape(part.whole.size(), 0);
      part.order = in_order(part.whole.size());
      const bool of_experts = of.layout == Layout::out_in && part.whole.size() == 3;
      if (of.layout != Layout::rows && part.whole.size() != 2 && !of_experts)
        fail(of, fmt::format("{} is {}; only a matrix has a layout", part.ours, shape_text(part.whole)));
      if (of.layout == Layout::out_in) std::swap(part.order.back(), part.order[part.order.size() - 2]);
      const size_t dim = of.layout == Layout::rows ? 0 : part.whole.size() - 1;
      if (one.count.given()) {
        if (part.shape.empty()) fail(of, fmt::format("{} has no rows", part.ours));
        part.offset[dim] = number(one.begin);
        part.shape[dim] = number(one.count);
      }
      rows += part.shape.empty() ? 0 : part.shape[dim];
      made.shape.clear();
      for (const int d : part.order) made.shape.push_back(part.shape[d]);
      made.parts.push_back(std::move(part));
    }
    if (!made.shape.empty() && of.layout != Layout::in_out) made.shape[0] = rows;
    if (made.shape.size() == 3 && of.layout == Layout::out_in) by_expert(made, rows);
    if (!of.reshaped.empty()) {
      const int64_t elements = element_count(made.shape);
      made.shape.clear();
      for (const Formula& one : of.reshaped) made.shape.push_back(number(one));
      if (element_count(made.shape) != elements)
        fail(of, fmt::format("{} reshaped to {} should have {} elements", their, shape_text(made.shape), elements));
    }
    all_.push_back(std::move(made));
  }

  // Divides parts that are stacked in each expert's matrix: theirs is [experts, rows, in], gate and up for example.
  static void by_expert(HfTensor& made, int64_t rows) {
    std::vector<HfPart> parts;
    const int64_t experts = made.parts.front().shape[0];
    for (int64_t e = 0; e < experts; ++e)
      for (HfPart part : made.parts) {
        part.offset[0] = e;
        part.shape[0] = 1;
        parts.push_back(std::move(part));
      }
    made.parts = std::move(parts);
    made.shape = {experts, rows, made.shape[2]};
  }

  // Returns [in, out] of a matrix of ours or, if `transposed`, of theirs that is [out, in].
  std::optional<Shape> matrix(std::optional<Shape> found, bool transposed) const {
    if (!found || found->size() != 2) return std::nullopt;
    if (transposed) std::swap((*found)[0], (*found)[1]);
    return found;
  }

  // Returns the sizes of a layer's outputs, and sets the size of its inputs: those of the description, otherwise those
  // of existing weights.
  Shape outputs(const DescribedTensor& of, const std::vector<std::string>& theirs, const std::vector<std::string>& ours,
                int64_t& in) const {
    const bool transposed = of.layout == Layout::out_in;
    const auto known = [&](size_t k) {
      const size_t most = std::max(theirs.size(), ours.size());
      std::optional<Shape> found = ours.size() == most ? matrix(our_shape(ours[k]), false) : std::nullopt;
      return found || theirs.size() < most ? found : matrix(their_shape(theirs[k]), transposed);
    };
    std::optional<Shape> first = matrix(our_shape(ours[0]), false);
    if (!first) first = matrix(their_shape(theirs[0]), transposed);
    if (!first && !of.in.given()) fail(of, fmt::format("there is no matrix {}", ours_ ? ours[0] : theirs[0]));
    in = of.in.given() ? number(of.in) : (*first)[0];
    Shape out;
    for (const Formula& one : of.out) out.push_back(number(one));
    for (size_t k = 0; of.out.empty() && k < std::max(theirs.size(), ours.size()); ++k) {
      const std::optional<Shape> found = known(k);
      if (!found) fail(of, fmt::format("{} needs out: the sizes of its layers", theirs[0]));
      out.push_back((*found)[1]);
    }
    return out;
  }

  void add_linear(const DescribedTensor& of, const std::string& their, const std::string& our, int64_t expert,
                  int64_t experts) {
    std::vector<std::string> theirs, ours;
    for (const std::string& one : of.theirs) theirs.push_back(replaced(their + one, "{expert}", expert));
    for (const DescribedPart& one : of.ours) ours.push_back(our + one.ours);
    std::vector<std::string> their_weights, our_weights;
    for (const std::string& one : theirs) their_weights.push_back(one + ".weight");
    for (const std::string& one : ours) our_weights.push_back(one + ".weight");
    int64_t in = 0;
    const Shape out = outputs(of, their_weights, our_weights, in);
    const auto weight = [&](const std::string& name, int64_t total, int64_t begin, int64_t count) {
      HfPart part{name,
                  {in, total},
                  {0, begin},
                  {in, count},
                  of.layout == Layout::in_out ? std::vector<int>{0, 1} : std::vector<int>{1, 0}};
      if (expert < 0) return part;
      part.whole.insert(part.whole.begin(), experts);
      part.offset.insert(part.offset.begin(), expert);
      part.shape.insert(part.shape.begin(), 1);
      for (int& d : part.order) ++d;
      return part;
    };
    const auto shape = [&](int64_t rows) { return of.layout == Layout::in_out ? Shape{in, rows} : Shape{rows, in}; };
    add_stacked(of, their_weights, our_weights, out, weight, shape);
    if (!of.bias.given() || !holds(of.bias)) return;
    for (auto* names : {&theirs, &ours})
      for (std::string& one : *names) one += ".bias";
    add_stacked(
        of, theirs, ours, out,
        [](const std::string& name, int64_t total, int64_t begin, int64_t count) {
          return HfPart{name, {total}, {begin}, {count}, {0}};
        },
        [](int64_t rows) { return Shape{rows}; });
  }

  // Adds tensors of theirs whose rows are outputs of ours. `part(name, total, begin, count)`, `shape(rows)`.
  template <class PartOf, class ShapeOfRows>
  void add_stacked(const DescribedTensor& of, const std::vector<std::string>& theirs,
                   const std::vector<std::string>& ours, const Shape& out, const PartOf& part,
                   const ShapeOfRows& shape) {
    const int64_t total = std::accumulate(out.begin(), out.end(), int64_t{0});
    if (theirs.size() > 1) {
      int64_t begin = 0;
      for (size_t k = 0; k < theirs.size(); begin += out[k++])
        all_.push_back({theirs[k], shape(out[k]), {part(ours[0], total, begin, out[k])}, false, of.site});
      return;
    }
    HfTensor made{theirs[0], shape(total), {}, false, of.site};
    if (ours.size() == 1) {
      made.parts.push_back(part(ours[0], total, 0, total));
    } else {
      for (size_t k = 0; k < ours.size(); ++k) made.parts.push_back(part(ours[k], out[k], 0, out[k]));
    }
    all_.push_back(std::move(made));
  }

  // A tensor that is a part of ours may not know the size of ours: it is the end of the last part.
  void join_parts() {
    std::map<std::string, Shape> whole;
    for (const HfTensor& tensor : all_)
      for (const HfPart& part : tensor.parts) {
        Shape& ends = whole.try_emplace(part.ours, part.shape.size(), 0).first->second;
        for (size_t d = 0; d < std::min(ends.size(), part.shape.size()); ++d)
          ends[d] = std::max(ends[d], part.offset[d] + part.shape[d]);
      }
    for (HfTensor& tensor : all_)
      for (HfPart& part : tensor.parts) part.whole = whole.at(part.ours);
  }

  const Description& description_;
  const Attrs& settled_;
  const ShapeOf &ours_, &theirs_;
  std::vector<HfTensor> all_;
};

}  // namespace

std::vector<HfTensor> described_tensors(const Description& description, const Attrs& settled, const ShapeOf& ours,
                                        const ShapeOf& theirs) {
  return Expansion(description, settled, ours, theirs).run();
}

}  // namespace prun::checkpoint
