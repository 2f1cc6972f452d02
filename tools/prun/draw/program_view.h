// What drawing needs of a program beyond its ops' times: names of ops, what they read and write, buffers and roles. It
// is read from the JSON of `prun dump --json`, which a plan's own program is turned into, too.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "draw/timeline.h"
#include "ir/program.h"

namespace prun::draw {

struct ViewedBuffer {
  std::string role;
  int64_t bytes = 0;
  bool persistent = false, on_host = false;
  // Parameters gathered at the end of a step for the next one: others have their memory in between.
  bool gathered_ahead() const { return persistent && role == "gathered"; }
};

struct ViewedOp {
  std::string name;
  std::vector<int> buffers;  // that it reads or writes
  std::vector<int> written;
};

struct ViewedStream {
  std::string name;
  std::vector<ViewedOp> ops;
};

struct ViewedProgram {
  std::vector<ViewedBuffer> buffers;
  std::vector<ViewedStream> streams;  // of the step
};

struct ProgramView {
  std::string plan, mesh;
  std::vector<int> class_of_rank;
  std::vector<ViewedProgram> classes;
};

// Throws usage_error where the JSON is no program, naming `source`.
ProgramView view_of(const nlohmann::ordered_json& json, const std::string& source);

// The role of the memory that an op writes, or where it writes none, reads.
std::string_view role_of_result(const Program& program, const Op& op);

// Throws usage_error where the ops of the timeline are not those of the program. Tells lanes their classes.
void match(Timeline& timeline, const ProgramView& view);

// What lives when, in the timeline's own times. match() has been called.
std::vector<MemoryStrip> memory_of(const Timeline& timeline, const ProgramView& view);

}  // namespace prun::draw
