// The meaning of each exit code, in a line: for `prun man` and the table of README.md
// (tests/unit/command_line_test.py).
#pragma once
#include <utility>
#include <vector>

#include "base/error.h"

namespace prun {

inline const std::vector<std::pair<int, const char*>>& exit_codes() {
  static const std::vector<std::pair<int, const char*>> codes = {
      {0, "all well"},
      {1,
       "a requested check failed: bench, conform, doctor, ckpt verify and diff, --prove; a run: its output was "
       "lost (a full disk)"},
      {2, "usage: option, file, transport, device (no driver, too few GPUs)"},
      {3, "the plan is wrong, or does not fit the mesh"},
      {10, "a rank crashed, or its GPU failed"},
      {11, "hang: a collective waited longer than --timeout"},
      {12, "ranks called different collectives"},
      {13, "a rank or node did not join, or did not authenticate"},
      {14, "a transport or port could not be set up, or lacks a feature that the plan needs"},
      {15, "a checkpoint could not be written"},
      {16, "a checkpoint is damaged, or of another model"},
      {17, "a link is down, its data corrupt, or ranks no longer hold the same"},
      {18, "out of memory at run time; a plan that does not fit before launch is 3"},
      {19, "the script ran too long or took too much memory"},
      {20, "a NaN or an infinity (--check-finite, --non-finite)"},
      {21, "the process that feeds batches (prun.data.feed) died, failed or did not come"},
      {75, "stopped by SIGTERM or Ctrl-C, after a checkpoint: --resume auto goes on"},
  };
  return codes;
}

}  // namespace prun
