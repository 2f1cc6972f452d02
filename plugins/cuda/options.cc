// One row per key; all of them are switches.
#include "options.h"

#include "prun/sdk/options.h"

namespace prun::cuda {

Options parse_options(const char* text) {
  Options o;
  const sdk::Option rows[] = {
      {"autotune", &o.autotune}, {"cudnn", &o.cudnn}, {"deterministic", &o.deterministic}, {"tf32", &o.tf32}};
  sdk::parse_options("cuda", text, rows);
  return o;
}

}  // namespace prun::cuda
