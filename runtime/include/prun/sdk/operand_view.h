// Views through which pointwise and matmul read an operand: a permutation, a part or a repetition of a stored tensor
// without a copy. The attribute `views` has an entry for each operand that is not read as it is stored:
//
//   "x1 0 2 1:16+8; x2 -:3 1"    an item for each stored dim: the op's dim, then `:start+size` if only a part is read
//
// `-:3`: the op lacks the dim, only element 3 is read. An op's dim that no stored dim becomes repeats the operand.
// The number after those of the operands is the result: matmul writes a permutation, and with the attribute `whole`
// both write a part of a tensor of that shape. `continues`: the last read is that tensor with the parts of earlier ops,
// in the same memory. `continued`: later ops write other parts.
#pragma once
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace prun::sdk {

struct ViewedDim {
  int to = -1;        // the op's dim; -1: only element `start` is read
  int64_t start = 0;  // first element
  int64_t size = 0;   // elements; 0 = all
  bool operator==(const ViewedDim&) const = default;
};

struct OperandView {
  int operand = 0;
  std::vector<ViewedDim> dims;  // by stored dim
  bool operator==(const OperandView&) const = default;
};

// The elements that a view reads: sizes and strides by the op's dims, both 1 and 0 where it repeats.
struct ViewedElements {
  int64_t offset = 0;
  std::vector<int64_t> sizes, strides;
};

inline std::string operand_views_text(const std::vector<OperandView>& views) {
  std::string text;
  for (const OperandView& view : views) {
    text += (text.empty() ? "x" : "; x") + std::to_string(view.operand);
    for (const ViewedDim& dim : view.dims) {
      text += dim.to < 0 ? " -" : " " + std::to_string(dim.to);
      if (dim.to < 0 || dim.size != 0) text += ":" + std::to_string(dim.start);
      if (dim.to >= 0 && dim.size != 0) text += "+" + std::to_string(dim.size);
    }
  }
  return text;
}

// Returns nullopt if the text is not a list of views.
inline std::optional<std::vector<OperandView>> parse_operand_views(std::string_view text) {
  std::vector<OperandView> views;
  const auto number = [](std::string_view& from, auto& to) {
    const auto read = std::from_chars(from.data(), from.data() + from.size(), to);
    if (read.ec != std::errc() || to < 0) return false;
    from.remove_prefix(static_cast<size_t>(read.ptr - from.data()));
    return true;
  };
  const auto take = [](std::string_view& from, char letter) {
    if (!from.starts_with(letter)) return false;
    from.remove_prefix(1);
    return true;
  };
  while (!text.empty()) {
    std::string_view rest = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(text.size(), rest.size() + 1));
    OperandView view;
    take(rest, ' ');
    if (!take(rest, 'x') || !number(rest, view.operand)) return std::nullopt;
    while (take(rest, ' ')) {
      ViewedDim dim;
      const bool fixed = take(rest, '-');
      if (!fixed && !number(rest, dim.to)) return std::nullopt;
      if (take(rest, ':')) {
        if (!number(rest, dim.start)) return std::nullopt;
        if (!fixed && (!take(rest, '+') || !number(rest, dim.size) || dim.size == 0)) return std::nullopt;
      } else if (fixed) {
        return std::nullopt;
      }
      view.dims.push_back(dim);
    }
    if (!rest.empty()) return std::nullopt;
    views.push_back(std::move(view));
  }
  return views;
}

// Returns the view of an operand; null if it is read as it is stored.
inline const OperandView* view_of_operand(const std::vector<OperandView>& views, int operand) {
  const auto found =
      std::find_if(views.begin(), views.end(), [&](const auto& view) { return view.operand == operand; });
  return found == views.end() ? nullptr : &*found;
}

// Returns the elements of a tensor of shape `stored` that an op of `rank` dims reads; nullopt if the view does not fit.
inline std::optional<ViewedElements> viewed_elements(const OperandView& view, std::span<const int64_t> stored,
                                                     size_t rank) {
  ViewedElements elements{0, std::vector<int64_t>(rank, 1), std::vector<int64_t>(rank, 0)};
  if (view.dims.size() != stored.size()) return std::nullopt;
  std::vector<bool> has(rank, false);
  int64_t stride = 1;
  for (size_t d = stored.size(); d-- > 0; stride *= stored[d]) {
    const ViewedDim& dim = view.dims[d];
    const int64_t size = dim.to < 0 ? 1 : dim.size == 0 ? stored[d] : dim.size;
    if (dim.start < 0 || dim.start > stored[d] - size) return std::nullopt;
    elements.offset += dim.start * stride;
    if (dim.to < 0) continue;
    const auto to = static_cast<size_t>(dim.to);
    if (to >= rank || has[to]) return std::nullopt;
    has[to] = true;
    elements.sizes[to] = size;
    elements.strides[to] = size == 1 ? 0 : stride;
  }
  return elements;
}

// The matrices of one operand of matmul: the first one's offset, and strides in elements.
struct StridedMatrices {
  int64_t offset = 0;
  int64_t rows = 1, columns = 1;
  bool transposed = false;              // stored as [columns, rows]
  int64_t row = 1;                      // stride of stored rows
  std::vector<int64_t> sizes, strides;  // of the leading dims
  bool is_dense() const { return row == (transposed ? rows : columns); }
  // Returns the offset of the matrix at index `at` of leading dims of sizes `all`.
  int64_t offset_of(std::span<const int64_t> all, int64_t at) const {
    int64_t from = offset;
    for (size_t d = strides.size(); d-- > 0; at /= all[d]) from += at % all[d] * strides[d];
    return from;
  }
};

// Returns nullopt if the view does not fit, or if neither rows nor columns are contiguous. `view`: null = as stored.
inline std::optional<StridedMatrices> strided_matrices(const OperandView* view, std::span<const int64_t> stored,
                                                       size_t rank) {
  OperandView plain;
  for (size_t d = 0; d < stored.size(); ++d) plain.dims.push_back({static_cast<int>(d)});
  const auto elements = viewed_elements(view == nullptr ? plain : *view, stored, rank);
  if (!elements || rank < 2) return std::nullopt;
  StridedMatrices m;
  m.offset = elements->offset;
  m.rows = elements->sizes[rank - 2], m.columns = elements->sizes[rank - 1];
  const int64_t row = elements->strides[rank - 2], column = elements->strides[rank - 1];
  m.transposed = m.columns != 1 && column != 1;
  if (m.transposed && m.rows != 1 && row != 1) return std::nullopt;
  m.row = m.transposed ? column : m.rows == 1 ? m.columns : row;
  m.sizes.assign(elements->sizes.begin(), elements->sizes.end() - 2);
  m.strides.assign(elements->strides.begin(), elements->strides.end() - 2);
  return m;
}

// The three operands of a matmul whose attribute `views` is `text`; nullopt if the views do not fit.
struct StridedMatmul {
  StridedMatrices a, b, y;
  std::vector<int64_t> leading;  // sizes of y's leading dims
};
inline std::optional<StridedMatmul> strided_matmul(std::string_view text, std::span<const int64_t> a,
                                                   std::span<const int64_t> b, std::span<const int64_t> y) {
  const auto views = parse_operand_views(text);
  if (!views) return std::nullopt;
  auto in_a = strided_matrices(view_of_operand(*views, 0), a, y.size()),
       in_b = strided_matrices(view_of_operand(*views, 1), b, y.size()),
       in_y = strided_matrices(view_of_operand(*views, 2), y, y.size());
  if (!in_a || !in_b || !in_y || in_y->transposed) return std::nullopt;
  StridedMatmul m{*std::move(in_a), *std::move(in_b), *std::move(in_y), {}};
  m.leading = m.y.sizes;
  return m;
}

}  // namespace prun::sdk
