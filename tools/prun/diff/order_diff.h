// In what the order of ops of two plans differs, stream by stream, in words.
#pragma once
#include <string>
#include <vector>

#include "diff/plan_facts.h"

namespace prun {

struct OrderDiff {
  std::string stream;
  int only_first = 0, only_second = 0;  // ops that the other has not
  int moved = 0;                        // that both have, elsewhere in the order
  int other_waits = 0;                  // in the same place, that wait for other ops
  std::vector<std::string> examples;    // at most three
  bool same() const { return only_first + only_second + moved + other_waits == 0; }
};

std::vector<OrderDiff> order_diffs(const PlanFacts& first, const PlanFacts& second);

}  // namespace prun
