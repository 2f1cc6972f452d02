// A fuzz target: a reader of untrusted bytes. It may reject them with an Error; anything else (a crash, a sanitizer
// report, another exception, excessive time or memory) is a finding.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace prun::fuzz {

struct Target {
  const char* name;  // corpus/NAME: initial inputs; found/NAME: former findings
  void (*read)(std::string_view input);
};
const Target* find_target(std::string_view name);  // null: unknown name
std::string target_names();                        // for example "frames, hello, .."

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

// Runs one input; an Error is an expected result.
void run_target(const Target& target, std::string_view input);

}  // namespace prun::fuzz
