// The request of `prun generate`.
#pragma once
#include <cstdint>
#include <string>

#include "compile/generation.h"
#include "exec/generation_ops.h"

namespace prun {

struct GenerationSettings {
  std::string checkpoint, prompt, tokenizer;
  bool has_prompt = false;
  int tokens = 0;             // 0: --tokens is not given
  GenerationOptions options;  // the prompt's ids are set once the tokenizer is known

  Generation generation() const { return {static_cast<int64_t>(options.prompt.size()), tokens}; }
};

// `plan`: the operand, a plan or a folder of weights that describes its model. Throws usage_error.
void check_generation_options(const GenerationSettings& settings, const std::string& plan);

}  // namespace prun
