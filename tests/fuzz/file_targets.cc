// Fuzz targets for files: programs, plans, checkpoints, data, manifests of plugins, tokenizers.
#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "checkpoint/index.h"
#include "checkpoint/safetensors.h"
#include "comm/transport/plugin.h"
#include "data/data_files.h"
#include "fuzz/input_file.h"
#include "fuzz/target.h"
#include "ir/plan_reader.h"
#include "ir/program.h"
#include "script/script.h"
#include "simulate/cluster.h"
#include "tokenizer/tokenizer.h"

namespace prun::fuzz {

void read_program(std::string_view input) { parse_job(input); }

void read_plan_document(std::string_view input) { prun::read_plan(input); }

void read_safetensors(std::string_view input) {
  const InputFile file(input);
  const checkpoint::SafetensorsFile found(file.path());
  for (const auto& [name, tensor] : found.tensors()) {
    if (tensor.at < 0 || tensor.bytes < 0 || tensor.at + tensor.bytes > std::ssize(input)) std::abort();
    try {
      checkpoint::stored_dtype("file", name, tensor);
    } catch (const Error&) {
    }
  }
}

void read_index(std::string_view input) {
  write_input("index.json", input);
  const checkpoint::Index index = checkpoint::read_index(input_folder());
  checkpoint::index_text(index);
}

void read_manifest(std::string_view input) { checkpoint::parse_manifest(std::string(input), "manifest"); }

void read_token_file(std::string_view input) {
  parse_token_header(input.substr(0, static_cast<size_t>(kTokenHeaderBytes)));
}

void read_array_file(std::string_view input) {
  const ArrayHeader header = parse_array_header(input.substr(0, static_cast<size_t>(kArrayHeaderMost)));
  if (header.skip_bytes < 0) std::abort();
}

void read_plugin_manifest(std::string_view input) {
  write_input("mine.so", "");
  write_input("mine.plugin", input);
  find_plugins({input_folder()});
}

void read_tokenizer_json(std::string_view input) {
  const InputFile file(input);
  const std::unique_ptr<Tokenizer> tokenizer = read_tokenizer(file.path());
  const std::string text = "The sea, 1234 waves\nand a storm: \xc3\xa9\xf0\x9f\x8c\x8a";
  std::string back;
  for (const int32_t id : tokenizer->encode(text)) {
    if (id < 0 || id >= tokenizer->size()) std::abort();
    back += tokenizer->piece(id);
  }
  for (const int32_t id : tokenizer->ends()) tokenizer->piece(id);
}

void read_cluster_file(std::string_view input) {
  const InputFile file(input);
  simulate::read_cluster(file.path());
}

// Runs in the script child; a crash of the child becomes an Error.
void run_lua_plan(std::string_view input) {
  write_input("plan.lua", input);
  ScriptOptions options;
  options.plan_path = input_folder() + "/plan.lua";
  options.lua_dir = PRUN_LUA_DIR;
  options.world = 2;
  options.cpu_seconds = 2;
  options.memory_bytes = int64_t{64} << 20;
  try {
    prun::read_plan(run_script(options).plan_cbor);
  } catch (const Error& error) {
    if (error.message().find("this is a bug of prun") != std::string::npos) std::abort();
  }
}

}  // namespace prun::fuzz
