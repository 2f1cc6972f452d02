#include "fuzz/target.h"

#include "base/error.h"

namespace prun::fuzz {
namespace {

const Target kTargets[] = {
    {"frames", read_frames},
    {"hello", read_hello},
    {"program", read_program},
    {"plan", read_plan_document},
    {"safetensors", read_safetensors},
    {"index", read_index},
    {"manifest", read_manifest},
    {"tokens", read_token_file},
    {"arrays", read_array_file},
    {"plugin", read_plugin_manifest},
    {"tokenizer", read_tokenizer_json},
    {"cluster", read_cluster_file},
    {"lua", run_lua_plan},
};

}  // namespace

const Target* find_target(std::string_view name) {
  for (const Target& target : kTargets)
    if (name == target.name) return &target;
  return nullptr;
}

std::string target_names() {
  std::string names;
  for (const Target& target : kTargets) names += (names.empty() ? "" : " ") + std::string(target.name);
  return names;
}

void run_target(const Target& target, std::string_view input) {
  try {
    target.read(input);
  } catch (const Error&) {
  }
}

}  // namespace prun::fuzz
