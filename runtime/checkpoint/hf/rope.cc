// transformers 5 has rope_parameters; earlier versions have rope_theta and rope_scaling. Exports have all three.
#include "checkpoint/hf/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/hf/config.h"

namespace prun::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

// Our names of the scaling's numbers, and theirs.
constexpr std::pair<const char*, const char*> kScaling[] = {
    {"rope_factor", "factor"}, {"low_freq_factor", "low_freq_factor"}, {"high_freq_factor", "high_freq_factor"}};

double required(const Json& rope, const char* where, const char* name) {
  if (!rope.contains(name) || rope.at(name).is_null()) throw usage_error(fmt::format("{} has no '{}'", where, name));
  return hf_number(rope, name, 0);
}

void read_scaling(const Json& rope, const char* where, const std::string& type, const Rotary& known, Attrs& to) {
  if (std::ranges::find(known.scalings, type) == known.scalings.end()) {
    std::string names = "default";
    for (size_t i = 0; i < known.scalings.size(); ++i)
      names += (i + 1 == known.scalings.size() ? " and " : ", ") + known.scalings[i];
    throw usage_error(fmt::format("the rotary angles are scaled ({} '{}'), and prun has {}", where, type, names));
  }
  to.set("rope_type", type);
  to.set("rope_factor", required(rope, where, "factor"));
  if (type == "linear") return;
  for (const char* name : {"low_freq_factor", "high_freq_factor"}) to.set(name, required(rope, where, name));
  to.set("original_context", static_cast<int64_t>(required(rope, where, "original_max_position_embeddings")));
}

void require_whole_heads(const Json& rope) {
  if (const double part = hf_number(rope, "partial_rotary_factor", 1); part != 1)
    throw usage_error(fmt::format("partial_rotary_factor is {}: prun rotates whole heads", part));
}

}  // namespace

void read_rope(const Json& config, const Rotary& known, Attrs& to) {
  double theta = hf_number(config, "rope_theta", known.base);
  to.set("rope_type", "default");
  require_whole_heads(config);
  for (const char* where : {"rope_parameters", "rope_scaling"}) {
    if (!config.contains(where) || !config.at(where).is_object()) continue;
    const Json& rope = config.at(where);
    require_whole_heads(rope);
    theta = hf_number(rope, "rope_theta", theta);
    const std::string type = hf_text(rope, "rope_type", hf_text(rope, "type", "default"));
    if (type != "default") read_scaling(rope, where, type, known, to);
  }
  to.set("base", theta);
}

void settle_rope(const Attrs& given, const Rotary& known, Attrs& of) {
  of.set("base", given.number("base", known.base));
  const std::string type = given.text("rope_type", "default");
  of.set("rope_type", type);
  if (type == "default") return;
  of.set("rope_factor", given.number("rope_factor", 1));
  if (type == "linear") return;
  of.set("low_freq_factor", given.number("low_freq_factor", 1));
  of.set("high_freq_factor", given.number("high_freq_factor", 4));
  of.set("original_context", given.integer("original_context", 8192));
}

Json rope_config(const Attrs& of) {
  const std::string type = of.text("rope_type");
  Json parameters = {{"rope_theta", of.number("base")}, {"rope_type", type}};
  if (type == "default") return {{"rope_theta", of.number("base")}, {"rope_parameters", parameters}};
  for (const auto& [ours, theirs] : kScaling)
    if (of.has(ours)) parameters[theirs] = of.number(ours);
  if (type == "llama3") parameters["original_max_position_embeddings"] = of.integer("original_context");
  return {{"rope_theta", of.number("base")}, {"rope_parameters", parameters}, {"rope_scaling", parameters}};
}

bool is_rope_option(const std::string& name) {
  return name == "base" || name == "rope_type" || name == "original_context" ||
         std::ranges::any_of(kScaling, [&](const auto& one) { return name == one.first; });
}

}  // namespace prun::checkpoint
