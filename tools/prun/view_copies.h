// The views of a plan that copy: those that no op reads with strides (compile/elide_views.cc).
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "ir/program.h"

namespace prun {

// Returns a line per source line and kind of view, the most bytes first; "" if no view copies.
std::string view_copies(const Job& job);
nlohmann::json view_copies_json(const Job& job);

}  // namespace prun
