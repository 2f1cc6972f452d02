#include "checkpoint/data_identity.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json_whole.h"

namespace prun::checkpoint {
namespace {

constexpr int64_t kSampledBytes = 256 << 10, kMostSampled = 64;

}  // namespace

nlohmann::ordered_json identity_json(const DataIdentity& identity) {
  nlohmann::ordered_json contents = nlohmann::ordered_json::array();
  for (const DataContent& content : identity.contents)
    contents.push_back({{"name", content.name},
                        {"element", content.element},
                        {"elements", content.elements},
                        {"blocks", content.blocks}});
  return {{"kind", identity.kind},   {"order", identity.order}, {"context", identity.context},
          {"first", identity.first}, {"count", identity.count}, {"contents", std::move(contents)}};
}

DataIdentity read_identity(const nlohmann::ordered_json& json) {
  DataIdentity identity{json.at("kind").get<std::string>(), json.at("order").get<std::string>(),
                        json_whole(json.at("context")),     json_whole(json.at("first")),
                        json_whole(json.at("count")),       {}};
  for (const auto& content : json.at("contents"))
    identity.contents.push_back({content.at("name").get<std::string>(), content.at("element").get<std::string>(),
                                 json_whole(content.at("elements")),
                                 content.at("blocks").get<std::vector<std::string>>()});
  return identity;
}

std::vector<DataBlock> blocks_of(int64_t elements, int64_t width) {
  const int64_t one = kSampledBytes / width;
  std::vector<DataBlock> blocks;
  if (elements <= one * kMostSampled) {
    for (int64_t at = 0; at < elements; at += one) blocks.push_back({at, std::min(at + one, elements)});
    return blocks;
  }
  const int64_t last = elements - one, gap = last / (kMostSampled - 1), rest = last % (kMostSampled - 1);
  for (int64_t k = 0; k < kMostSampled; ++k) {
    const int64_t at = gap * k + rest * k / (kMostSampled - 1);
    blocks.push_back({at, at + one});
  }
  return blocks;
}

}  // namespace prun::checkpoint
