#include "checkpoint/lineage.h"

#include <nlohmann/json.hpp>

#include "base/json_whole.h"

namespace prun::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

std::string text_of(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? "" : found->get<std::string>();
}

}  // namespace

Json lineage_json(const Lineage& lineage) {
  const ParentCheckpoint& parent = lineage.parent;
  return {{"run", text_or_null(lineage.run)},
          {"branch", lineage.known() ? Json(lineage.branch) : Json()},
          {"parent", !lineage.has_parent() ? Json()
                                           : Json{{"checkpoint", parent.checkpoint},
                                                  {"run", text_or_null(parent.run)},
                                                  {"step", parent.step},
                                                  {"id", parent.id}}}};
}

Lineage read_lineage(const Json& json) {
  Lineage lineage;
  lineage.run = text_of(json, "run");
  if (const auto branch = json.find("branch"); branch != json.end() && !branch->is_null())
    lineage.branch = json_whole(*branch);
  const auto parent = json.find("parent");
  if (parent == json.end() || parent->is_null()) return lineage;
  lineage.parent = {parent->at("checkpoint").get<std::string>(), text_of(*parent, "run"),
                    json_whole(parent->at("step")), parent->at("id").get<std::string>()};
  return lineage;
}

}  // namespace prun::checkpoint
