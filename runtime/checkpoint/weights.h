// The weights of a model from files of any layout: our checkpoints, folders of Hugging Face. Each tensor has prun's
// name and shape; its pieces say where in which file they are, and which of their dims are which of ours.
//
// Surprising fact: nothing is mapped. Elements are read as they are needed, straight to their place or through a buffer
// of a few MiB, so that a model larger than memory can be turned around (Linear layers of PyTorch are [out, in], ours
// [in, out]), and a file that is cut while it is read is an error and no signal.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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
  int64_t at = 0;  // byte of the file where its data begin
  Dtype dtype = Dtype::f32;
  Shape offset, shape;     // of our tensor
  std::vector<int> order;  // the file's dims, outermost first, as dims of ours; those that are left out have length 1
};

struct Weight {
  Dtype dtype = Dtype::f32;
  Shape shape;
  std::vector<WeightPiece> pieces;
  int64_t copies = 1;  // more: the pieces have one more dim, which counts the ranks' own values, and their mean is read
};

class Weights {
 public:
  ModelDescription model;  // its name is "" where the files do not say
  std::string folder;
  bool checkpoint = false;  // of ours: an index has the SHA-256 of every piece
  std::string origin;       // for messages: "a checkpoint", "a Hugging Face folder (LlamaForCausalLM)"
  std::map<std::string, Weight> tensors;

  // Elements of the box, as they are stored or as another float, `dtype`, to where its strides say; these may be those
  // of a transposed tensor. Throws checkpoint_invalid where the pieces do not cover the box, a file ends too early, or
  // f16 cannot hold a number.
  void read(const std::string& name, const Box& box, Dtype dtype, std::byte* tensor) const;
};

// Weights of a checkpoint (or the newest in a folder of them), without the optimizer's state, of a Hugging Face folder,
// or of a folder of sharded safetensors. Throws checkpoint_invalid.
Weights open_weights(const std::string& path);
// Of one checkpoint: with what the optimizer keeps, and all that ranks have trained by themselves; or the parameters of
// one model, where they have the mean.
Weights open_checkpoint(const std::string& folder, bool optimizer);

// In what the same weights compute something else, "heads is 4 there and 2 here"; "": in nothing that is known. Models
// without a name are a plan's own, of which only shapes are known.
std::string differing_model(const ModelDescription& there, const ModelDescription& here);
// The first tensor that one of both sides lacks, or that has another shape: "w is [8] there and [9] here"; "": none.
std::string differing_tensor(const Weights& there, const std::map<std::string, Shape>& here);

// Returns the line of a plan for this model, "prun.models.llama { vocab = 32000, ... }".
std::string model_text(const ModelDescription& model);

// The elements of a box of one tensor in the order that a file stores them: as they are stored, or transposed in a
// window of some MiB. `order`: dims of the tensor, outermost first, in the order of the file.
class Window {
 public:
  Window(const Weights& weights, std::string name, Shape offset, Shape shape, std::vector<int> order, Dtype dtype);
  // Elements first, .. of the box in the file's order. Fastest where `first` only grows.
  void read(std::byte* to, int64_t first, int64_t count);

 private:
  void fill(int64_t row);
  void read_straight(std::byte* to, int64_t first, int64_t count) const;

  const Weights& weights_;
  std::string name_;
  Shape offset_, shape_;
  std::vector<int> order_;
  Dtype dtype_;
  bool straight_ = true;            // the files have the elements in this order, too
  int64_t rows_ = 1, row_ = 1;      // of the box; elements of one
  int64_t begin_ = 0, filled_ = 0;  // rows in the buffer
  std::vector<std::byte> buffer_;
};

}  // namespace prun::checkpoint
