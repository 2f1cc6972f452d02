// One checked collective call: its result, the guards around its buffers, and its unchanged input.
#pragma once
#include <string>
#include <vector>

#include "tests/conformance/reference.h"
#include "tests/conformance/suite.h"

namespace prun::testing {

struct Case {
  CollCall call;  // run_case fills in the pointers
  Pattern pattern = Pattern::exact;
  bool in_place = false;
  bool in_arena = false;   // the transport's memory, else ordinary memory
  int64_t misaligned = 0;  // elements by which the buffers are off their natural alignment
  double tolerance = 0;
};

// Returns the initial values for `op`. They contain NaNs for minima and maxima.
inline Pattern pattern_for(RedOp op) { return op == RedOp::min || op == RedOp::max ? Pattern::nans : Pattern::exact; }
std::string describe_case(const Case& c, int size);
bool has_in_place(CollKind kind);
// Runs it on this rank; all ranks run the same case. Returns "" or the error.
std::string run_case(Rank& rank, Communicator& communicator, Case c);

}  // namespace prun::testing
