// The order in which the compute stream runs the calls: all forward, then all backward in reverse.
#include "compile/draft.h"

namespace prun {

void schedule(Draft& draft) {
  int calls = static_cast<int>(draft.graph.calls.size());
  for (int call = 0; call < calls; ++call) draft.turns.push_back({Phase::forward, call});
  for (int call = calls - 1; call >= 0; --call) draft.turns.push_back({Phase::backward, call});
}

}  // namespace prun
