// prun dump --json: the ranks' programs, for scripts.
#pragma once
#include <nlohmann/json_fwd.hpp>

#include "ir/program.h"

namespace prun {

nlohmann::ordered_json job_json(const Job& job);

}  // namespace prun
