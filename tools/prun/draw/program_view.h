// Facts about a program for drawing: names of ops and lifetimes of memory.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "draw/timeline.h"
#include "ir/program.h"

namespace prun::draw {

std::string op_name(const Op& op);  // "linear block0.qkv"

// Returns the role of the memory that an op writes, or reads if it writes none.
std::string_view role_of_result(const Program& program, const Op& op);

// Throws usage_error if the ops of the timeline are not the job's. Sets the lanes' classes of ranks.
void match(Timeline& timeline, const Job& job);

// Returns the live memory over the timeline's times. Call after match().
std::vector<MemoryStrip> memory_of(const Timeline& timeline, const Job& job);

}  // namespace prun::draw
