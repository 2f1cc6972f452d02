// What training keeps from step to step, as logical tensors: each parameter and each moment of the optimizer, with the
// part of it that a rank holds. Checkpoints are written and read by it, whatever the mesh and the strategy.
#pragma once
#include <string>
#include <vector>

#include "ir/ids.h"
#include "ir/types.h"

namespace prun {

struct Job;
struct Program;

inline constexpr const char* kOptimizerState = "optimizer.";  // begins the names of moments

// Elements of a dim, or of a block of it, that each of `ranks` stores: equal runs, padded to a multiple of `grain`.
int64_t run_of(int64_t extent, int64_t ranks, int64_t grain);

// One logical tensor in one class of ranks. A rank holds a run of the flattened local part: all of it, or where the
// unit's flat vector is sharded the elements that lie in the rank's shard.
struct StateTensor {
  std::string name;        // "block0.qkv.weight", "optimizer.adamw.m.block0.qkv.weight"
  TensorId tensor;         // flat: the unit's vector, or the rank's shard of it
  TensorId staged;         // the same in the host's memory, for a checkpoint; -1: none
  int64_t begin = 0;       // element of the unit's vector at which the local part begins
  Shape shape;             // of the logical tensor
  std::string split_axis;  // each rank of it has a part of `split_dim`; "": none
  int split_dim = 0;
  std::vector<int64_t> blocks;  // extents that `split_dim` consists of; each is split by itself; empty: not even padded
  int64_t grain = 1;            // a rank stores run_of(block, ranks, grain) of each block
  std::string shard_axis;       // the unit's vector is sharded over it; "": whole
  std::vector<std::string> replicated;  // over these axes ranks hold the same
  std::vector<std::string> drift;       // over these each rank has trained values of its own
  bool copy = false;                    // of a tied tensor, which another stage of the pipeline saves
};

// A box of the logical tensor, and where its elements are.
struct Box {
  Shape offset, shape;  // of the logical tensor
  int64_t first = 0;    // element of StateTensor::tensor where the box begins
  Shape strides;        // elements, by dim
  int64_t elements() const { return element_count(shape); }
};

// The boxes that `rank` holds; they do not overlap. With `share`, what it saves of them: ranks that hold the same
// divide it evenly. At most (2 x dims - 1) x blocks.
std::vector<Box> held_boxes(const Program& program, const StateTensor& state, int rank);
std::vector<Box> saved_boxes(const Program& program, const StateTensor& state, int rank);

// What a checkpoint holds of the tensor: where ranks have trained values of their own, all of them, counted by one more
// dim before the others.
Shape saved_shape(const Program& program, const StateTensor& state);
// A box that `rank` holds, as a box of that.
Box in_saved(const Program& program, const StateTensor& state, int rank, Box box);

// Elements begin, ..., end - 1 of a tensor in row-major order, as boxes; only their offsets and shapes are set.
std::vector<Box> boxes_of_run(const Shape& shape, int64_t begin, int64_t end);

// Elements of all logical parameters of the model, each once; 0: it trains none.
int64_t parameter_count(const Job& job);

}  // namespace prun
