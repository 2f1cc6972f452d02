// Verbs of `prun ckpt` and their common functions. Each verb returns the exit code and throws Error.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/index.h"
#include "checkpoint/weights.h"

namespace prun {

struct CkptOptions {
  std::vector<std::string> operands;  // the verb and its folders
  bool json = false;
  std::string out, format;
  std::string dtype, tokenizer, description, base;  // arguments of an export
  bool merge = false, ema = false;
  int ranks = 0;
  int file_mib = 5000;  // maximum size of an exported file
};

std::vector<std::string> ckpt_verbs();
int ckpt_list(const CkptOptions& options, const std::string& folder);
int ckpt_export(const CkptOptions& options);
int ckpt_import(const CkptOptions& options);
int ckpt_reshard(const CkptOptions& options);
int ckpt_show_hf(const CkptOptions& options, const std::string& folder);  // prun ckpt show HF-FOLDER

int64_t ckpt_bytes(const checkpoint::Index& index);  // bytes of all its tensors
// Returns the keys of index.json except `tensors`, plus the ones that --json adds.
nlohmann::ordered_json ckpt_summary(const std::string& folder, const checkpoint::Index& index);
int64_t weight_bytes(const checkpoint::Weights& weights);

}  // namespace prun
