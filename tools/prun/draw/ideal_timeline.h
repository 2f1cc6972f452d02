// A step of a job as its schedule has it, without a machine: a microbatch's forward on a rank takes 1, its backward 2,
// and what ranks send takes parts of that by its bytes. Deterministic, so that pictures of plans can be compared.
//
// Surprising fact: ops begin as soon as their edges and partners allow, on every stream at once; nothing slows compute
// down while ranks communicate.
#pragma once
#include "draw/timeline.h"
#include "ir/program.h"

namespace prun::draw {

inline constexpr double kIdealUnitNs = 1e6;  // what a forward takes

// Of one rank of each class, where ranks of a class move in step, else of all.
Timeline ideal_timeline(const Job& job);

}  // namespace prun::draw
