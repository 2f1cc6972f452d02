#include "checkpoint/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/field_json.h"
#include "base/sha256.h"
#include "base/text.h"
#include "checkpoint/folder.h"

namespace prun::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

Json tensors_json(const std::map<std::string, SavedTensor>& tensors) {
  Json all = Json::object();
  for (const auto& [name, tensor] : tensors) all[name] = fields_json(tensor);
  return all;
}

std::map<std::string, SavedTensor> read_tensors(const Json& all) {
  std::map<std::string, SavedTensor> tensors;
  for (const auto& [name, entry] : all.items()) read_fields(entry, tensors[name]);
  return tensors;
}

// Format 1 counted batches, all of one size.
std::vector<int64_t> samples_of_batches(const Json& json, int64_t samples) {
  const int64_t step = json_whole(json.at("step"));
  if (step <= 0) return {};
  std::vector<int64_t> runs = json_wholes(json.at("left_out_batches"));
  for (int64_t& at : runs)
    if (__builtin_mul_overflow(at, samples / step, &at)) at = -1;  // marks the value as invalid
  return runs;
}

std::string mesh_of_before(const std::string& mesh) {
  if (mesh.empty() || mesh == "one rank") return "1 rank";
  return mesh.find('=') != std::string::npos ? join(split(mesh, ' '), " x ") : mesh;
}

// Converts an index of format 1 or 2 to format 3. README.md lists the differences.
void upgrade(Json& json) {
  Json& data = json.at("data");
  const int64_t samples = json_whole(data.at("samples"));
  const int64_t tokens = data.contains("tokens") ? json_whole(data["tokens"]) : -1;
  json["samples"] = samples;
  json["tokens"] = tokens == -1 ? Json() : Json(tokens);
  if (json.contains("left_out_batches")) json["left_out_samples"] = samples_of_batches(json, samples);
  json["implementation"] = json.value("kernels", "");
  json["kernels"] = json.value("kernel_choice", "");
  const std::pair<const char*, Json> later[] = {
      {"left_out_samples", Json::array()}, {"skipped_steps", 0}, {"arithmetic", 0}};
  for (const auto& [key, value] : later)
    if (!json.contains(key)) json[key] = value;
  json["mesh"] = mesh_of_before(json.at("mesh").get<std::string>());
  if (!json.value("model", Json()).is_object()) json["model"] = {{"name", ""}, {"arguments", Json::object()}};
}

// Throws for values outside the ranges that readers of the index rely on.
void require_valid(const Index& index, const std::string& path) {
  constexpr int64_t kMost = int64_t{1} << 53;  // a bound below which sums do not overflow
  const RunPosition& at = index.position;
  const auto in_range = [](int64_t value, int64_t least) { return value >= least && value <= kMost; };
  const auto& contents = index.data.identity.contents;
  if (!in_range(at.samples, 0) || !in_range(at.tokens, -1) ||
      std::ranges::any_of(contents, [](const DataContent& content) { return content.elements < 0; }))
    throw invalid(path, "the index is damaged (data)");
  if (!at.left_out.valid()) throw invalid(path, "the index is damaged (left_out_samples)");
  for (const auto& [name, tensor] : index.tensors)
    if (!tensor.drift.empty() && tensor.shape.empty())
      throw invalid(path, fmt::format("the index is damaged ({} is of each rank, and has no dim for them)", name));
}

}  // namespace

std::string index_text(const Index& index) {
  Json json = {{"format", "prun checkpoint"}, {"version", kFormat}};
  json.update(fields_json(index));
  json["tensors"] = tensors_json(index.tensors);
  return json.dump(1) + "\n";
}

std::string index_id(const std::string& text) { return hex(sha256(text)); }

Index read_index(const std::string& folder) {
  const std::string path = folder + "/index.json", text = read_file(path);
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("format", Json()) != "prun checkpoint")
    throw invalid(path, "this is not the index of a checkpoint");
  try {
    const int64_t version = json.contains("version") ? json_whole(json["version"]) : 0;
    if (version > kFormat)
      throw invalid(path,
                    fmt::format("format {} was written by a newer prun; this one reads up to {}", version, kFormat));
    if (version < 3) upgrade(json);
    Index index;
    index.id = index_id(text);
    read_fields(json, index);
    index.tensors = read_tensors(json.at("tensors"));
    require_valid(index, path);
    return index;
  } catch (const Json::exception& error) {
    throw invalid(path, fmt::format("the index is damaged ({})", error.what()));
  }
}

std::string manifest_text(const std::map<std::string, SavedTensor>& tensors) { return tensors_json(tensors).dump(); }

std::map<std::string, SavedTensor> parse_manifest(const std::string& text, const std::string& path) {
  try {
    return read_tensors(Json::parse(text));
  } catch (const Json::exception& error) {
    throw invalid(path, error.what());
  }
}

void add_manifest(Index& index, const std::map<std::string, SavedTensor>& tensors) {
  for (const auto& [name, tensor] : tensors) {
    SavedTensor& all = index.tensors[name];
    all.dtype = tensor.dtype;
    all.shape = tensor.shape;
    all.drift = tensor.drift;
    all.linear = tensor.linear;
    all.pieces.insert(all.pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
  }
}

}  // namespace prun::checkpoint
