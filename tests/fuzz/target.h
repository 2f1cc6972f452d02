// A fuzz target: what reads bytes that others wrote. It may refuse them with an Error; whatever else happens (a crash,
// a sanitizer's finding, another exception, more time or memory than the input is worth) is a finding.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace prun::fuzz {

struct Target {
  const char* name;  // corpus/NAME has its first inputs, found/NAME those that once were findings
  void (*read)(std::string_view input);
};
const Target* find_target(std::string_view name);  // null: there is none
std::string target_names();                        // "frames, hello, .."

void read_frames(std::string_view input);
void read_hello(std::string_view input);
void read_program(std::string_view input);
void read_plan_document(std::string_view input);
void read_safetensors(std::string_view input);
void read_index(std::string_view input);
void read_manifest(std::string_view input);
void read_token_file(std::string_view input);
void read_array_file(std::string_view input);
void read_plugin_manifest(std::string_view input);
void read_tokenizer_json(std::string_view input);
void read_cluster_file(std::string_view input);
void run_lua_plan(std::string_view input);

// One input: Errors are what is meant.
void run_target(const Target& target, std::string_view input);

}  // namespace prun::fuzz
