// Descriptions of architectures: YAML files of names and options, lua/prun/architectures/*.yaml or a user's own. One
// maps keys of config.json to options of a model, and tensors of the folder (theirs) to those of the plan (ours).
//
// Surprising fact: sizes may be omitted. They are then those of the tensors that a checkpoint or a file has.
#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ir/attrs.h"
#include "ir/types.h"

namespace prun::checkpoint {

// A formula (formula.h) and its place; text "" = omitted.
struct Formula {
  std::string text;
  Site site;
  bool given() const { return !text.empty(); }
};

// A number, true or false (1 or 0), a quoted text, or a formula.
struct DescribedValue {
  std::optional<Formula> formula;
  Attr constant = int64_t{0};
  bool flag = false;  // true or false
};

// An option of our model and its key in config.json.
struct DescribedOption {
  std::string ours, key;
  std::string list;  // another key: a list with a number per layer, which is 0 in each n-th layer; n is the option
  std::optional<DescribedValue> usual;                // if config.json lacks the key; none: it must have it
  std::optional<DescribedValue> is;                   // the value for this architecture; it has no key
  std::vector<std::pair<std::string, Attr>> allowed;  // their texts and our values; empty = numbers
  Site site;
};

// A key of config.json whose value prun's model fixes.
struct Requirement {  // NOLINT(bugprone-exception-escape): a move of ordered_json does not throw
  std::string key;
  std::vector<nlohmann::ordered_json> allowed;  // the first one is written
  Formula at_least;                             // instead of `allowed`; null and 0 are allowed, too
  nlohmann::ordered_json usual;                 // if config.json lacks the key
  std::string when;                             // a key: the rule holds if it is true; "" = always
  std::string because;                          // the message; {value} and {model} are replaced
};

// How a tensor of theirs is stored: like ours; or transposed, the weight [out, in] of a linear layer; or as some
// columns of ours.
enum class Layout { rows, out_in, in_out };

// Rows of theirs (columns with Layout::in_out) as a part of a tensor of ours; count omitted = all.
struct DescribedPart {
  std::string ours;
  Formula begin, count;
};

// Tensors that belong together. Linear layers stand for a weight and a bias.
struct DescribedTensor {
  bool linear = false;
  Layout layout = Layout::rows;
  std::vector<std::string> theirs;  // {layer} and {expert} are replaced
  std::vector<DescribedPart> ours;  // one, or theirs is one; a linear layer has no counts
  Formula in;                       // of a linear layer
  std::vector<Formula> out;         // of a linear layer: a size per name of the longer list
  std::vector<Formula> shape;       // of ours, if it is no linear layer
  std::vector<Formula> reshaped;    // of theirs, if its dims are others
  Formula bias, when, experts;
  bool copy = false;  // a second name of a tensor: only PyTorch's state dicts have it
  Site site;
};

struct Rotary {
  double base = 10000;
  std::vector<std::string> scalings = {"linear", "llama3"};
};

struct Description {
  std::string path;                                              // of the file
  std::string like;                                              // the description that it changes; "" = none
  std::string architecture, model_type;                          // "LlamaForCausalLM", "llama"
  std::string model;                                             // of prun.models; "" = a plan's own
  std::string prefix;                                            // of their names; files of the bare model lack it
  std::vector<DescribedOption> options;                          //
  std::vector<std::pair<std::string, DescribedValue>> defaults;  // of options of ours that are 0 or not recorded
  std::vector<std::pair<std::string, DescribedValue>> sizes;
  std::vector<std::string> free;  // options of ours that do not change what a model computes
  std::vector<Requirement> require;
  // Written as it is, except {formula: TEXT} and, for options that are no whole numbers, {number: NAME}.
  nlohmann::ordered_json config = nlohmann::ordered_json::object();
  std::optional<Rotary> rope;
  std::string their_layers, our_layers;  // prefixes of names in `layers`
  std::vector<DescribedTensor> tensors, layers;
  std::vector<std::string> ignore;     // suffixes of tensors that are not weights
  std::vector<std::string> constants;  // tensors of ours that theirs lack, because their program computes them
};

// Reads a description. Throws checkpoint_invalid with file and line. `folder`: of the descriptions that `like` names.
Description read_description(const std::string& path, const std::string& folder);

}  // namespace prun::checkpoint
