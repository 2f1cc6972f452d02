// The law of a repeat: the period before the listed one and the period behind it are the listed one, so much earlier
// and so much later. What holds of those three then holds of all that run between them.
#pragma once
#include <optional>
#include <string>

#include "ir/program.h"
#include "ir/walk.h"

namespace prun {

struct NotRecurring {
  OpRef op;
  std::string what;  // "reads another tensor than a period before"
};

// The first op that breaks it; nullopt: the body recurs as its repeat says, or has none. Spans and ids of the repeat
// are in their ranges (repeat_in_range).
std::optional<NotRecurring> not_recurring(const Program& program, const Body& body);

// "" when every number of the repeat names something that is there.
std::string repeat_out_of_range(const Program& program, const Body& body);

}  // namespace prun
