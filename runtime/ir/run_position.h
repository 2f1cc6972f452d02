// The position of a training after some steps, over all of its runs. A checkpoint stores it, and the resumed run begins
// there.
#pragma once
#include <cstdint>

#include "base/named_field.h"
#include "ir/left_out.h"

namespace prun {

struct RunPosition {
  int64_t step = 0;           // steps done; also the first step of a run that begins here
  int64_t skipped_steps = 0;  // steps that updated nothing because their gradients were not finite
  // Samples of the current data and tokens of all data consumed so far, over all ranks. Batch sizes may have changed,
  // so that these are not multiples of `step`. tokens -1 = unknown (checkpoints in format 1).
  int64_t samples = 0, tokens = 0;
  LeftOut left_out;      // samples that all steps skip
  int64_t restarts = 0;  // restarts of all runs so far; 0 in checkpoints without this field

  template <class Fields>
  void each_field(Fields&& fields) {
    fields(field("step", step), field("skipped_steps", skipped_steps), field("samples", samples),
           optional_field("tokens", tokens, -1), field("left_out_samples", left_out.runs),
           optional_field("restarts", restarts));
  }
};

}  // namespace prun
