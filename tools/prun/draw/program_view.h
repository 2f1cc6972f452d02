// What drawing takes of a program beyond its ops' times: their names, and what memory lives when.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "draw/timeline.h"
#include "ir/program.h"

namespace prun::draw {

std::string op_name(const Op& op);  // "linear block0.qkv"

// The role of the memory that an op writes, or where it writes none, reads.
std::string_view role_of_result(const Program& program, const Op& op);

// Throws usage_error where the ops of the timeline are not those of the job. Tells lanes their classes.
void match(Timeline& timeline, const Job& job);

// What lives when, in the timeline's own times. match() has been called.
std::vector<MemoryStrip> memory_of(const Timeline& timeline, const Job& job);

}  // namespace prun::draw
