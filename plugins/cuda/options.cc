// One row per key.
#include "options.h"

#include <cstddef>

#include "prun/device.h"
#include "prun/sdk/options.h"

namespace prun::cuda {

Options parse_options(const char* text) {
  Options o;
  const sdk::Option rows[] = {{"attention_workspace", &o.attention_workspace, 0, uint64_t{1} << 36, "bytes"},
                              {"autotune", &o.autotune},
                              {"cudnn", &o.cudnn},
                              {"deterministic", &o.deterministic},
                              {"tf32", &o.tf32}};
  sdk::parse_options("cuda", text, rows);
  return o;
}

// A core that is older than the field passes a smaller op.
Options options_of(const prun_op& op) {
  constexpr size_t kEnd = offsetof(prun_op, options) + sizeof op.options;
  return parse_options(op.size >= kEnd ? op.options : nullptr);
}

}  // namespace prun::cuda
