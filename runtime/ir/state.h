// Training state that persists between steps, as logical tensors: each parameter and each moment of the optimizer, with
// the part that a rank holds. Checkpoints are written and read through it, for any mesh and strategy.
#pragma once
#include <string>
#include <vector>

#include "ir/ids.h"
#include "ir/types.h"

namespace prun {

struct Job;
struct Program;

inline constexpr const char* kOptimizerState = "optimizer.";  // prefix of the names of moments

// Returns the elements of a dim, or of a block of it, that each of `ranks` stores: equal runs, padded to `grain`.
int64_t run_of(int64_t extent, int64_t ranks, int64_t grain);

// One logical tensor in one class of ranks. A rank holds a run of the flattened local part: all of it, or, if the
// unit's flat vector is sharded, the elements in the rank's shard.
struct StateTensor {
  std::string name;        // "block0.qkv.weight", "optimizer.adamw.m.block0.qkv.weight"
  TensorId tensor;         // flat: the unit's vector, or the rank's shard of it
  TensorId staged;         // the same in host memory, for a checkpoint; -1 = none
  int64_t begin = 0;       // first element of the local part in the unit's vector
  Shape shape;             // shape of the logical tensor
  std::string split_axis;  // each of its ranks has a part of `split_dim`; "" = none; two axes: ir/split_axes.h
  int split_dim = 0;
  std::vector<int64_t> blocks;  // extents that `split_dim` consists of, each split separately; empty = not even padded
  int64_t grain = 1;            // a rank stores run_of(block, ranks, grain) of each block
  std::string shard_axis;       // axis that shards the unit's vector; "" = whole
  std::vector<std::string> replicated;  // axes over which ranks hold equal values
  std::vector<std::string> drift;       // axes over which each rank has trained its own values
  bool copy = false;                    // tied tensor that another pipeline stage saves
  bool frozen = false;                  // no step changes it
  bool updated = false;                 // a buffer that each step updates
  double lr_factor = 1;                 // the plan's settings of the parameter's updates, which verify compares
  double weight_decay = 0;
};

// Returns whether the base of the program's adapters holds the tensor, so that checkpoints omit it.
bool is_of_base(const Program& program, const StateTensor& state);

// A box of the logical tensor, and the location of its elements.
struct Box {
  Shape offset, shape;  // in the logical tensor
  int64_t first = 0;    // element of StateTensor::tensor where the box begins
  Shape strides;        // in elements, by dim
  int64_t elements() const { return element_count(shape); }
};

// Return the boxes that `rank` holds, or saves; they do not overlap. Ranks that hold the same divide the saving evenly.
// Their number is at most (2 x dims - 1) x blocks.
std::vector<Box> held_boxes(const Program& program, const StateTensor& state, int rank);
std::vector<Box> saved_boxes(const Program& program, const StateTensor& state, int rank);

// Returns the number of elements of the local part, which is the same on every rank.
int64_t local_count(const Program& program, const StateTensor& state);

// Returns the tensor's shape in a checkpoint: values that drift between ranks are stacked along an additional first
// dim.
Shape saved_shape(const Program& program, const StateTensor& state);
// Returns a box that `rank` holds as a box of the saved tensor.
Box in_saved(const Program& program, const StateTensor& state, int rank, Box box);

// Returns elements begin, ..., end - 1 of a tensor in row-major order as boxes, with only offsets and shapes set.
std::vector<Box> boxes_of_run(const Shape& shape, int64_t begin, int64_t end);

// Returns the number of elements of all logical parameters, each counted once; 0 = no parameters.
int64_t parameter_count(const Job& job);

}  // namespace prun
