// The invariant of a repeat: the periods before and after the listed one equal it, shifted by one period. Properties of
// these three then hold for all periods between them.
#pragma once
#include <optional>
#include <string>

#include "ir/program.h"
#include "ir/walk.h"

namespace prun {

struct NotRecurring {
  OpRef op;
  std::string what;  // "reads something else than a period before"
};

// Returns the first op that violates the repeat; nullopt = the body recurs, or has no repeat. Requires that
// repeat_out_of_range returns "".
std::optional<NotRecurring> not_recurring(const Program& program, const Body& body);

// Returns "" if every number of the repeat is in range, otherwise the kind of the first that is not.
std::string repeat_out_of_range(const Program& program, const Body& body);

}  // namespace prun
