#include "ir/state.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>

#include "ir/program.h"
#include "ir/split_axes.h"

namespace prun {
namespace {

struct Run {
  int64_t begin = 0, end = 0;  // elements of the flattened local part
};

Shape strides_of(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// Decomposes a run of row-major elements into boxes: a head and a tail per dim but the last, and the middle.
void boxes_of_run(const Shape& shape, size_t dim, Shape offset, Run run, std::vector<Box>& boxes) {
  if (run.begin >= run.end) return;
  const auto add = [&](int64_t first, int64_t count) {
    Box box{offset, Shape(shape.size(), 1), 0, {}};
    if (dim < shape.size()) {
      box.offset[dim] = first;
      box.shape[dim] = count;
      for (size_t d = dim + 1; d < shape.size(); ++d) box.shape[d] = shape[d];
    }
    boxes.push_back(std::move(box));
  };
  const int64_t row = dim < shape.size() ? element_count(Shape(shape.begin() + dim + 1, shape.end())) : 1;
  int64_t first = run.begin / row, last = run.end / row;
  const auto inside = [&](int64_t index, Run part) {
    Shape at = offset;
    at[dim] = index;
    boxes_of_run(shape, dim + 1, std::move(at), part, boxes);
  };
  if (first == last && row > 1) return inside(first, {run.begin % row, run.end % row});
  if (run.begin % row != 0) {
    inside(first, {run.begin % row, row});
    ++first;
  }
  if (first < last) add(first, last - first);
  if (run.end % row != 0) inside(last, {0, run.end % row});
}

// A part of the local tensor in one block: positions along the split dim, local and in the whole.
struct Cut {
  int64_t local = 0, whole = 0, count = 0;
};

struct LocalPart {
  Shape shape;
  std::vector<Cut> cuts;  // a single one over everything if nothing is split
  Run run;                // part of the flattened local part that the rank holds
  int64_t first = 0;      // element of the rank's tensor where the run begins
  int64_t rows = 0;       // index in the whole of the part's first row
};

// Returns the extents of `split_dim` in an equal part of dim 0.
std::vector<int64_t> blocks_of_part(const StateTensor& state, int64_t parts) {
  std::vector<int64_t> blocks = state.blocks;
  if (state.split_dim == 0)
    for (int64_t& extent : blocks) extent /= parts;
  return blocks;
}

LocalPart local_part(const Program& program, const StateTensor& state, int rank) {
  LocalPart part;
  part.shape = state.shape;
  const SplitAxes axes(state.split_axis);
  const int64_t parts = axes.part.empty() ? 1 : program.mesh.size(axes.part);
  if (parts > 1) {
    part.shape[0] /= parts;
    part.rows = part.shape[0] * program.mesh.index(axes.part, rank);
  }
  if (!state.blocks.empty()) {
    const bool split = !state.split_axis.empty();
    const int64_t of = split ? program.mesh.size(axes.split) : 1,
                  index = split ? program.mesh.index(axes.split, rank) : 0;
    int64_t local = 0, whole = 0;
    for (const int64_t extent : blocks_of_part(state, parts)) {
      const int64_t room = run_of(extent, of, state.grain), begin = room * index;
      part.cuts.push_back({local, whole + begin, std::clamp<int64_t>(extent - begin, 0, room)});
      local += room;
      whole += extent;
    }
    part.shape[state.split_dim] = local;
  }
  part.run = {0, element_count(part.shape)};
  part.first = state.begin;
  if (!state.shard_axis.empty()) {
    const int64_t shard = program.tensors[state.tensor].count();
    const int64_t from = shard * program.mesh.index(state.shard_axis, rank) - state.begin;
    part.run = {std::clamp<int64_t>(from, 0, part.run.end), std::clamp<int64_t>(from + shard, 0, part.run.end)};
    part.first = part.run.begin - from;
  }
  return part;
}

// Returns the box of the local part within one cut, in coordinates of the whole; empty if the two are disjoint.
Box within(const Box& box, const StateTensor& state, const LocalPart& part, const Cut& cut) {
  Box part_of_box = box;
  const int d = state.split_dim;
  const int64_t begin = std::max(box.offset[d], cut.local),
                end = std::min(box.offset[d] + box.shape[d], cut.local + cut.count);
  part_of_box.shape[d] = std::max<int64_t>(0, end - begin);
  const Shape strides = strides_of(part.shape);
  part_of_box.first += (begin - box.offset[d]) * strides[d];
  part_of_box.offset[d] = begin - cut.local + cut.whole;
  return part_of_box;
}

struct Place {
  int64_t index = 0, of = 1;
};

// Returns the rank's number among the ranks that differ only along the axes; the first axis varies slowest.
Place place_among(const Program& program, const std::vector<std::string>& axes, int rank) {
  Place place;
  for (const std::string& axis : axes) {
    place.index = place.index * program.mesh.size(axis) + program.mesh.index(axis, rank);
    place.of *= program.mesh.size(axis);
  }
  return place;
}

std::vector<Box> boxes_of(const StateTensor& state, const LocalPart& part, Run run) {
  std::vector<Box> boxes, found;
  if (part.shape.empty()) {
    if (run.begin < run.end) found.push_back({{}, {}, part.first, {}});
    return found;
  }
  boxes_of_run(part.shape, 0, Shape(part.shape.size(), 0), run, boxes);
  const Shape strides = strides_of(part.shape);
  for (Box& box : boxes) {
    box.strides = strides;
    box.first = part.first - part.run.begin;
    for (size_t d = 0; d < strides.size(); ++d) box.first += box.offset[d] * strides[d];
    if (part.cuts.empty()) found.push_back(box);
    for (const Cut& cut : part.cuts)
      if (Box part_of_box = within(box, state, part, cut); part_of_box.elements() > 0)
        found.push_back(std::move(part_of_box));
  }
  for (Box& box : found) box.offset[0] += part.rows;
  return found;
}

}  // namespace

bool is_of_base(const Program& program, const StateTensor& state) {
  return state.frozen && program.adapters.has_base();
}

int64_t local_count(const Program& program, const StateTensor& state) {
  if (state.blocks.empty()) return element_count(state.shape);
  const SplitAxes axes(state.split_axis);
  const int64_t of = axes.split.empty() ? 1 : program.mesh.size(axes.split);
  const int64_t parts = axes.part.empty() ? 1 : program.mesh.size(axes.part);
  Shape shape = state.shape;
  shape[0] /= parts;
  shape[state.split_dim] = 0;
  for (const int64_t extent : blocks_of_part(state, parts)) shape[state.split_dim] += run_of(extent, of, state.grain);
  return element_count(shape);
}

int64_t run_of(int64_t extent, int64_t ranks, int64_t grain) { return round_up((extent + ranks - 1) / ranks, grain); }

std::vector<Box> held_boxes(const Program& program, const StateTensor& state, int rank) {
  const LocalPart part = local_part(program, state, rank);
  return boxes_of(state, part, part.run);
}

std::vector<Box> saved_boxes(const Program& program, const StateTensor& state, int rank) {
  if (state.copy) return {};
  const LocalPart part = local_part(program, state, rank);
  const auto [index, holders] = place_among(program, state.replicated, rank);
  const auto of = holders;  // clang 14 gives lambdas no structured bindings
  // Uses whole rows if there are enough of them, so that most tensors remain one box in one file.
  const int64_t count = part.run.end - part.run.begin;
  const int64_t row =
      part.shape.empty() ? 1 : std::max<int64_t>(1, element_count(part.shape) / std::max<int64_t>(1, part.shape[0]));
  const int64_t grain = count / row >= of ? row : 1, rows = (count + grain - 1) / grain;
  const auto at = [&](int64_t i) { return part.run.begin + std::min(count, rows * i / of * grain); };
  return boxes_of(state, part, {at(index), at(index + 1)});
}

Shape saved_shape(const Program& program, const StateTensor& state) {
  Shape shape = state.shape;
  if (!state.drift.empty()) shape.insert(shape.begin(), place_among(program, state.drift, 0).of);
  return shape;
}

Box in_saved(const Program& program, const StateTensor& state, int rank, Box box) {
  if (state.drift.empty()) return box;
  box.offset.insert(box.offset.begin(), place_among(program, state.drift, rank).index);
  box.shape.insert(box.shape.begin(), 1);
  box.strides.insert(box.strides.begin(), 0);
  return box;
}

std::vector<Box> boxes_of_run(const Shape& shape, int64_t begin, int64_t end) {
  std::vector<Box> boxes;
  boxes_of_run(shape, 0, Shape(shape.size(), 0), {begin, end}, boxes);
  return boxes;
}

int64_t parameter_count(const Job& job) {
  std::unordered_map<std::string_view, int64_t> parameters;
  for (const Program& program : job.classes)
    for (const StateTensor& state : program.state)
      if (!state.copy && !state.name.starts_with(kOptimizerState) &&
          program.buffers[program.tensors[state.tensor].buffer].role != Role::buffer)
        parameters[state.name] = element_count(state.shape);
  int64_t count = 0;
  for (const auto& [name, elements] : parameters) count += elements;
  return count;
}

}  // namespace prun
