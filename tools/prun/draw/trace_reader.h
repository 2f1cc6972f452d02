// Reads a trace of `prun --trace` (Chrome JSON; trace.cc writes it) into a timeline, event by event: a trace may be far
// larger than what is kept of it.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "draw/timeline.h"

namespace prun::draw {

struct ReadJson {
  std::optional<Timeline> timeline;               // the file is a trace
  std::shared_ptr<nlohmann::ordered_json> other;  // it is not
};

// `first`, `last`: steps to keep, from 0. Throws usage_error: the file cannot be read, is damaged, or is a trace
// without ops.
ReadJson read_json_file(const std::string& path, int first, int last);

}  // namespace prun::draw
