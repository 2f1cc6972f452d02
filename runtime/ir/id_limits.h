// How large the ids may be that a model looks up: rows of a table, logits of a row. The graph says it, so that data is
// held against it before anything starts.
#pragma once
#include <string>
#include <vector>

#include "ir/graph.h"

namespace prun {

struct IdLimit {
  std::string input;  // "tokens", "targets", "y"
  int64_t size = 0;   // ids are below it
  std::string table;  // "the table 'token.weight' has 256 rows"
  Site site;          // of the op that looks them up
};

// One for each op that looks an input's ids up.
std::vector<IdLimit> id_limits(const Graph& graph);

}  // namespace prun
