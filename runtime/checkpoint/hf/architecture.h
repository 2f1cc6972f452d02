// Architectures of Hugging Face's transformers that prun has, too: their config.json as a model's arguments and back,
// and which of their tensors is which part of ours. A new one is a file of its own and a line in architecture.cc.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "ir/model_description.h"
#include "ir/types.h"

namespace prun::checkpoint {

// One tensor of theirs, as a box of one of ours.
struct HfTensor {
  std::string theirs, ours;
  Shape whole;             // of ours
  Shape offset, shape;     // of the box
  std::vector<int> order;  // their dims, outermost first, as dims of ours; those left out have length 1
};

struct HfArchitecture {
  std::string theirs, type;  // "LlamaForCausalLM", and the model_type "llama"
  std::string ours;          // the model of prun.models
  std::string prefix;        // of their names, which files of the bare model lack
  // Throws usage_error for what prun's model cannot be.
  ModelDescription (*model)(const nlohmann::ordered_json& config);
  nlohmann::ordered_json (*config)(const Attrs& arguments);
  std::vector<HfTensor> (*tensors)(const Attrs& settled);
  // Arguments with what 0 stands for filled in, without those that weights do not depend on.
  Attrs (*settled)(const Attrs& arguments);
  std::vector<std::string> ignored;  // ends of names of theirs that are no weights
};

const std::vector<HfArchitecture>& hf_architectures();
// Of a config.json. Throws checkpoint_invalid, with those that there are.
const HfArchitecture& hf_architecture_of(const nlohmann::ordered_json& config, const std::string& path);
// Of prun.models.NAME; null: it has none.
const HfArchitecture* hf_architecture_for(const std::string& model);

HfArchitecture hf_gpt2();
HfArchitecture hf_llama();
HfArchitecture hf_mixtral();

// What the architectures' files share.
HfTensor hf_whole(std::string theirs, std::string ours, const Shape& shape);        // the same tensor
HfTensor hf_turned(std::string theirs, std::string ours, int64_t in, int64_t out);  // theirs is [out, in]
// Columns [begin, begin + count) of ours [in, out]; theirs is [count, in].
HfTensor hf_columns(std::string theirs, std::string ours, int64_t in, int64_t out, int64_t begin, int64_t count);
// A member of the config, which must be there; or the usual value.
int64_t hf_integer(const nlohmann::ordered_json& config, const char* name);
int64_t hf_integer(const nlohmann::ordered_json& config, const char* name, int64_t usual);
double hf_number(const nlohmann::ordered_json& config, const char* name, double usual);
bool hf_flag(const nlohmann::ordered_json& config, const char* name, bool usual);
std::string hf_text(const nlohmann::ordered_json& config, const char* name, const std::string& usual);

}  // namespace prun::checkpoint
