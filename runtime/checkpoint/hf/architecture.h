// Architectures that Hugging Face's transformers and prun share: translates config.json to a model's arguments and
// back, and maps their tensors to boxes of ours. A new one is a file of its own and a line in architecture.cc.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/model_description.h"
#include "ir/types.h"

namespace prun::checkpoint {

// A Hugging Face tensor as a box of one of our tensors.
struct HfTensor {
  std::string theirs, ours;
  Shape whole;             // shape of our tensor
  Shape offset, shape;     // position of the box in it
  std::vector<int> order;  // their dims, outermost first, as dims of ours; omitted dims have length 1
};

struct HfArchitecture {
  std::string theirs, type;  // "LlamaForCausalLM", and the model_type "llama"
  std::string ours;          // the model of prun.models
  std::string prefix;        // prefix of their names; files of the bare model lack it
  // Throws usage_error for a config that prun's model cannot express.
  ModelDescription (*model)(const nlohmann::ordered_json& config);
  nlohmann::ordered_json (*config)(const Attrs& arguments);
  std::vector<HfTensor> (*tensors)(const Attrs& settled);
  // Returns the arguments that weights depend on, with defaults in place of 0.
  Attrs (*settled)(const Attrs& arguments);
  std::vector<std::string> ignored;  // suffixes of their tensors that are not weights
};

const std::vector<HfArchitecture>& hf_architectures();
// Returns the architecture of a config.json. Throws checkpoint_invalid with the list of known ones if it is unknown.
const HfArchitecture& hf_architecture_of(const nlohmann::ordered_json& config, const std::string& path);
// Returns the architecture of prun.models.NAME, or null.
const HfArchitecture* hf_architecture_for(const std::string& model);

HfArchitecture hf_gpt2();
HfArchitecture hf_llama();
HfArchitecture hf_mixtral();

// Shared by the architectures' files.
HfTensor hf_whole(std::string theirs, std::string ours, const Shape& shape);            // the same tensor
HfTensor hf_transposed(std::string theirs, std::string ours, int64_t in, int64_t out);  // theirs is [out, in]
// Columns [begin, begin + count) of ours [in, out]; theirs is [count, in].
HfTensor hf_columns(std::string theirs, std::string ours, int64_t in, int64_t out, int64_t begin, int64_t count);
// An integer argument of ours and its name in config.json. `usual`: its value if the config lacks it; nullopt: the
// config must have it.
struct HfMember {
  const char *ours, *theirs;
  std::optional<int64_t> usual = {};
};
void hf_read(const nlohmann::ordered_json& config, std::span<const HfMember> members, Attrs& to);
nlohmann::ordered_json hf_written(const Attrs& settled, std::span<const HfMember> members);
// Return a member of the config: a required one, or `usual` if it is missing.
int64_t hf_integer(const nlohmann::ordered_json& config, const char* name);
int64_t hf_integer(const nlohmann::ordered_json& config, const char* name, int64_t usual);
double hf_number(const nlohmann::ordered_json& config, const char* name, double usual);
bool hf_flag(const nlohmann::ordered_json& config, const char* name, bool usual);
std::string hf_text(const nlohmann::ordered_json& config, const char* name, const std::string& usual);

}  // namespace prun::checkpoint
