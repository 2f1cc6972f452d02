// The weights of a model from files of any layout: our checkpoints, folders of Hugging Face. Each tensor has prun's
// name and shape; each piece records its file, its offset and the order of its dims.
//
// Surprising fact: no file is mapped. Elements are read on demand, directly to their destination or through a buffer of
// a few MiB. A model larger than memory can therefore be transposed (linear layers of PyTorch are [out, in], ours are
// [in, out]), and a file that is truncated while it is read raises an error instead of a signal.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ir/model_description.h"
#include "ir/state.h"
#include "ir/types.h"

namespace prun::checkpoint {

class DataFile;

using Advance = std::function<void(int64_t bytes, int64_t of)>;  // reports progress

// A tensor of a file, as a box of one of ours.
struct WeightPiece {
  std::shared_ptr<const DataFile> file;
  int64_t at = 0;  // byte offset of its data in the file
  Dtype dtype = Dtype::f32;
  Shape offset, shape;     // box of our tensor
  std::vector<int> order;  // the file's dims, outermost first, as dims of ours; omitted dims have length 1
};

class Weights;

// An adapter of a linear layer's weight: reads return the weight plus scale·A·B.
struct WeightAdapter {
  std::shared_ptr<const Weights> weights;  // which holds A [in, rank] and B [rank, out]
  std::string a, b;
  double scale = 1;
};

struct Weight {
  Dtype dtype = Dtype::f32;
  Shape shape;
  std::vector<WeightPiece> pieces;
  // > 1: ranks trained values of their own. The pieces have one more dim, which counts them, and reads return the mean.
  int64_t copies = 1;
  bool linear = false;    // the weight [in, out] of a linear layer, if the files record it
  bool of_torch = false;  // in PyTorch's layout: [out, in] if it belongs to a linear layer (linear_weights.h)
  std::optional<WeightAdapter> adapter;  // merged into it; nullopt = none
};

class Weights {
 public:
  ModelDescription model;  // name "" = the files do not record it
  std::string folder;
  bool checkpoint = false;  // one of ours, whose index has the SHA-256 of every piece
  std::string origin;       // for messages: "a checkpoint", "a Hugging Face folder (LlamaForCausalLM)"
  std::map<std::string, Weight> tensors;

  // Reads the elements of the box, converted to the float type `dtype`, to the addresses that its strides give; these
  // may be the strides of a transposed tensor. Throws checkpoint_invalid if the pieces do not cover the box, if a file
  // is truncated, or if f16 cannot hold a number.
  void read(const std::string& name, const Box& box, Dtype dtype, std::byte* tensor) const;
};

// A part of a checkpoint:
//   parameters  those of one model: the mean, if ranks trained their own
//   averages    likewise, but running averages (an optimizer's `ema`) replace the parameters that have one
//   state       parameters and optimizer state of each rank
enum class Take : uint8_t { parameters, averages, state };
inline Take parameters_or_averages(bool averages) { return averages ? Take::averages : Take::parameters; }

// Opens the weights of a checkpoint (or of the newest one in a folder) without the optimizer state, of a Hugging Face
// folder, of a folder of safetensors, or of one such file. Throws checkpoint_invalid.
// Adapters are merged into their base (checkpoint/base.h), which is at `base`, if given, and compared if `verified`.
Weights open_weights(const std::string& path, const std::string& base = "", bool verified = true,
                     Take take = Take::parameters);
// Opens one checkpoint. Throws checkpoint_invalid, also for averages that it lacks.
Weights open_checkpoint(const std::string& folder, Take take);

// Describes the first argument in which two models differ although their shapes agree, "heads is 4 there and 2 here";
// "" = none. Models without a name belong to their plan, so only their shapes are compared.
std::string differing_model(const ModelDescription& there, const ModelDescription& here);
// Describes the first tensor that one side lacks or that has another shape, "w is [8] there and [9] here"; "" = none.
// `partial`: each side may lack tensors of the other.
std::string differing_tensor(const Weights& there, const std::map<std::string, Shape>& here, bool partial = false);

// Returns the line of a plan for this model, "prun.models.llama { vocab = 32000, ... }".
std::string model_text(const ModelDescription& model);

// Elements of a box of one tensor in the order of the destination file: as they are stored, or transposed in a window
// of some MiB. `order`: dims of the tensor, outermost first, in the order of the file.
class Window {
 public:
  Window(const Weights& weights, std::string name, Shape offset, Shape shape, std::vector<int> order, Dtype dtype);
  // Reads the elements from `first` on, in the file's order. Sequential reads are the fastest.
  void read(std::byte* to, int64_t first, int64_t count);

 private:
  void fill(int64_t row);
  void read_straight(std::byte* to, int64_t first, int64_t count) const;

  const Weights& weights_;
  std::string name_;
  Shape offset_, shape_;
  std::vector<int> order_;
  Dtype dtype_;
  bool straight_ = true;            // the source files have the same order
  int64_t rows_ = 1, row_ = 1;      // rows of the box; elements of a row
  int64_t begin_ = 0, filled_ = 0;  // rows in the buffer
  std::vector<std::byte> buffer_;
};

}  // namespace prun::checkpoint
