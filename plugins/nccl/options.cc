// One row per option: its variable and its range.
#include "options.h"

#include <prun/sdk/options.h>

namespace prun::nccl {

Options parse_options(const char* text) {
  Options o;
  const sdk::Option rows[] = {
      {"abort_ms", &o.abort_ms, 100, 600000},
      {"check", &o.check},
      {"cta_policy", &o.cta_policy, "default, efficiency or zero", {"default", "efficiency", "zero"}},
      {"cudart", &o.cudart, "a file"},
      {"device", &o.device, 0, 1023},
      {"library", &o.library, "a file"},
      {"max_ctas", &o.max_ctas, 1, 64},
      {"min_ctas", &o.min_ctas, 1, 64},
      {"register", &o.register_buffers},
      {"share", &o.share},
      {"split_share", &o.split_share},
  };
  sdk::parse_options("nccl", text, rows);
  if (o.max_ctas != 0 && o.min_ctas > o.max_ctas)
    throw sdk::Failure(PRUN_EINVAL, -1, "nccl options min_ctas=", o.min_ctas, " and max_ctas=", o.max_ctas,
                       ": the first is larger");
  return o;
}

}  // namespace prun::nccl
