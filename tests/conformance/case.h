// One collective call, checked: its result, the guards around its buffers, and that its input is what it was.
#pragma once
#include <string>
#include <vector>

#include "tests/conformance/reference.h"
#include "tests/conformance/suite.h"

namespace prun::testing {

struct Case {
  CollCall call;  // pointers are filled in
  Pattern pattern = Pattern::exact;
  bool in_place = false;
  bool in_arena = false;   // of the transport, else ordinary memory
  int64_t misaligned = 0;  // elements that the buffers are off their natural place
  double tolerance = 0;
};

// Returns the initial values for `op`. They contain NaNs for minima and maxima.
inline Pattern pattern_for(RedOp op) { return op == RedOp::min || op == RedOp::max ? Pattern::nans : Pattern::exact; }
std::string describe_case(const Case& c, int size);
bool has_in_place(CollKind kind);
// Runs it on this rank (the others run the same). "" or what is wrong.
std::string run_case(Rank& rank, Communicator& communicator, Case c);

}  // namespace prun::testing
