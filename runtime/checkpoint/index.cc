#include "checkpoint/index.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_whole.h"
#include "checkpoint/folder.h"
#include "checkpoint/sha256.h"

namespace prun::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

Json tensors_json(const std::map<std::string, SavedTensor>& tensors) {
  Json all = Json::object();
  for (const auto& [name, tensor] : tensors) {
    Json pieces = Json::array();
    for (const SavedPiece& piece : tensor.pieces)
      pieces.push_back(
          {{"file", piece.file}, {"offset", piece.offset}, {"shape", piece.shape}, {"sha256", piece.sha256}});
    all[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"pieces", std::move(pieces)}};
    if (!tensor.drift.empty()) all[name]["drift"] = tensor.drift;
  }
  return all;
}

std::map<std::string, SavedTensor> read_tensors(const Json& all) {
  std::map<std::string, SavedTensor> tensors;
  for (const auto& [name, entry] : all.items()) {
    SavedTensor tensor{
        entry.at("dtype").get<std::string>(), json_wholes(entry.at("shape")), {}, entry.value("drift", "")};
    for (const Json& piece : entry.at("pieces"))
      tensor.pieces.push_back({piece.at("file").get<std::string>(), json_wholes(piece.at("offset")),
                               json_wholes(piece.at("shape")), piece.at("sha256").get<std::string>()});
    tensors.emplace(name, std::move(tensor));
  }
  return tensors;
}

Json attr_json(const Attr& attr) {
  if (const double* number = std::get_if<double>(&attr); number != nullptr && !std::isfinite(*number)) return "inf";
  return std::visit([](const auto& value) { return Json(value); }, attr);
}

Attr read_attr(const Json& json) {
  if (json.is_string() && json.get<std::string>() == "inf") return std::numeric_limits<double>::infinity();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  return json.get<std::vector<double>>();
}

Json model_json(const ModelDescription& model) {
  Json arguments = Json::object();
  for (const auto& [name, value] : model.arguments.values()) arguments[name] = attr_json(value);
  return {{"name", model.name}, {"arguments", std::move(arguments)}};
}

// Checkpoints of before have none.
ModelDescription read_model(const Json& json) {
  ModelDescription model;
  if (!json.is_object()) return model;
  model.name = json.at("name").get<std::string>();
  for (const auto& [name, value] : json.at("arguments").items()) model.arguments.set(name, read_attr(value));
  return model;
}

constexpr int64_t kMostSamples = int64_t{1} << 53;  // a bound below which sums do not overflow

// Format 1 counted batches, all of which had one size.
LeftOut read_left_out(const Json& json, const Index& index) {
  LeftOut left_out;
  if (json.contains("left_out_samples")) left_out.runs = json_wholes(json["left_out_samples"]);
  if (!json.contains("left_out_batches") || index.step <= 0) return left_out;
  left_out.runs = json_wholes(json["left_out_batches"]);
  const int64_t batch = index.data.samples / index.step;
  for (int64_t& at : left_out.runs)
    if (__builtin_mul_overflow(at, batch, &at)) at = -1;  // not valid
  return left_out;
}

Error invalid(const std::string& path, const std::string& what) {
  return Error(Exit::checkpoint_invalid, fmt::format("{}: {}", path, what));
}

DataCursor read_data(const Json& json, const std::string& path) {
  DataCursor data{json.at("kind").get<std::string>(),
                  json.at("path").get<std::string>(),
                  json_whole(json.at("file_bytes")),
                  json_whole(json.at("samples")),
                  json.contains("tokens") ? json_whole(json["tokens"]) : -1,
                  {}};
  if (json.contains("identity")) data.identity = read_identity(json["identity"]);
  bool damaged = data.samples < 0 || data.samples > kMostSamples || data.tokens < -1;
  for (const DataContent& content : data.identity.contents) damaged = damaged || content.elements < 0;
  if (damaged) throw invalid(path, "the index is damaged (data)");
  return data;
}

}  // namespace

std::string index_text(const Index& index) {
  Json json = {{"format", "prun checkpoint"},
               {"version", kFormat},
               {"step", index.step},
               {"steps", index.steps},
               {"seed", index.seed},
               {"ranks", index.ranks},
               {"mesh", index.mesh},
               {"plan", index.plan},
               {"program", index.program},
               {"data",
                {{"kind", index.data.kind},
                 {"path", index.data.path},
                 {"file_bytes", index.data.file_bytes},
                 {"samples", index.data.samples},
                 {"tokens", index.data.tokens}}},
               {"skipped_steps", index.skipped},
               {"left_out_samples", index.left_out.runs},
               {"learning_rate", index.rate},
               {"model", model_json(index.model)},
               {"kernels", index.kernels},
               {"kernel_choice", index.choice},
               {"arithmetic", index.arithmetic}};
  json.update(lineage_json(index.lineage));
  if (index.data.identity.known()) json["data"]["identity"] = identity_json(index.data.identity);
  if (index.algorithms) json["algorithms"] = *index.algorithms;
  json["tensors"] = tensors_json(index.tensors);
  return json.dump(1) + "\n";
}

std::string index_id(const std::string& text) {
  Sha256 sum;
  sum.add(text.data(), text.size());
  return sum.hex();
}

Index read_index(const std::string& folder) {
  const std::string path = folder + "/index.json", text = read_file(path);
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || json.value("format", Json()) != "prun checkpoint")
    throw invalid(path, "this is not the index of a checkpoint");
  try {
    const int64_t version = json.contains("version") ? json_whole(json["version"]) : 0;
    if (version > kFormat)
      throw invalid(path, fmt::format("format {} is of a newer prun; this one reads up to {}", version, kFormat));
    Index index;
    index.id = index_id(text);
    index.lineage = read_lineage(json);
    index.step = json_whole(json.at("step"));
    index.steps = json_whole(json.at("steps"));
    index.seed = json.at("seed").get_ref<const uint64_t&>();
    index.ranks = json_whole(json.at("ranks"));
    index.mesh = json.at("mesh").get<std::string>();
    index.plan = json.at("plan").get<std::string>();
    index.program = json.at("program").get<std::string>();
    index.data = read_data(json.at("data"), path);
    index.skipped = json.contains("skipped_steps") ? json_whole(json["skipped_steps"]) : 0;
    index.left_out = read_left_out(json, index);
    if (!index.left_out.valid()) throw invalid(path, "the index is damaged (left_out_samples)");
    index.rate = json.at("learning_rate").get<std::string>();
    index.model = read_model(json.value("model", Json()));
    index.kernels = json.value("kernels", "");
    index.choice = json.value("kernel_choice", "");
    index.arithmetic = json.contains("arithmetic") ? json_whole(json["arithmetic"]) : 0;
    if (json.contains("algorithms")) index.algorithms = json["algorithms"].get<std::string>();
    index.tensors = read_tensors(json.at("tensors"));
    for (const auto& [name, tensor] : index.tensors)
      if (!tensor.drift.empty() && tensor.shape.empty())
        throw invalid(path, fmt::format("the index is damaged ({} is of each rank, and has no dim for them)", name));
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
    all.pieces.insert(all.pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
  }
}

}  // namespace prun::checkpoint
