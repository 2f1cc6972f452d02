#include "checkpoint/hf/architecture.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/error.h"
#include "base/json_whole.h"
#include "base/text.h"

namespace prun::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

template <class T>
T member(const Json& config, const char* name, const T& usual) {
  if (!config.contains(name) || config.at(name).is_null()) return usual;
  try {
    if constexpr (std::is_same_v<T, int64_t>) return json_whole(config.at(name));
    return config.at(name).get<T>();
  } catch (const Json::exception&) {
    throw Error(Exit::checkpoint_invalid, fmt::format("'{}' is {}", name, config.at(name).dump()));
  }
}

}  // namespace

const std::vector<HfArchitecture>& hf_architectures() {
  static const std::vector<HfArchitecture> all = {hf_gpt2(), hf_llama(), hf_mixtral()};
  return all;
}

const HfArchitecture& hf_architecture_of(const Json& config, const std::string& path) {
  const Json named = config.value("architectures", Json());
  const std::string name =
      named.is_array() && !named.empty() && named[0].is_string() ? named[0].get<std::string>() : "";
  const std::string type = hf_text(config, "model_type", "");
  std::vector<std::string> names;
  for (const HfArchitecture& one : hf_architectures()) {
    // A bare model, such as LlamaModel, lacks only the head, so its model_type identifies it.
    if (name.empty() ? one.type == type : one.theirs == name) return one;
    names.push_back(one.theirs);
  }
  throw Error(Exit::checkpoint_invalid, fmt::format("{}: prun has no architecture {}; it has {}", path,
                                                    !name.empty()   ? name
                                                    : !type.empty() ? "of model_type " + type
                                                                    : "without a name",
                                                    join(names, ", ")));
}

const HfArchitecture* hf_architecture_for(const std::string& model) {
  for (const HfArchitecture& one : hf_architectures())
    if (one.ours == model) return &one;
  return nullptr;
}

HfTensor hf_whole(std::string theirs, std::string ours, const Shape& shape) {
  HfTensor tensor{std::move(theirs), std::move(ours), shape, Shape(shape.size(), 0), shape, {}};
  for (size_t d = 0; d < shape.size(); ++d) tensor.order.push_back(d);
  return tensor;
}

HfTensor hf_transposed(std::string theirs, std::string ours, int64_t in, int64_t out) {
  return {std::move(theirs), std::move(ours), {in, out}, {0, 0}, {in, out}, {1, 0}};
}

HfTensor hf_columns(std::string theirs, std::string ours, int64_t in, int64_t out, int64_t begin, int64_t count) {
  return {std::move(theirs), std::move(ours), {in, out}, {0, begin}, {in, count}, {1, 0}};
}

void hf_read(const Json& config, std::span<const HfMember> members, Attrs& to) {
  for (const HfMember& one : members)
    to.set(one.ours, one.usual ? hf_integer(config, one.theirs, *one.usual) : hf_integer(config, one.theirs));
}

Json hf_written(const Attrs& settled, std::span<const HfMember> members) {
  Json config = Json::object();
  for (const HfMember& one : members) config[one.theirs] = settled.integer(one.ours);
  return config;
}

int64_t hf_integer(const Json& config, const char* name) {
  const int64_t value = member<int64_t>(config, name, 0);
  if (value < 1)
    throw Error(Exit::checkpoint_invalid,
                fmt::format("'{}' {}", name, config.contains(name) ? "is " + config.at(name).dump() : "is missing"));
  return value;
}

int64_t hf_integer(const Json& config, const char* name, int64_t usual) { return member(config, name, usual); }
double hf_number(const Json& config, const char* name, double usual) { return member(config, name, usual); }
bool hf_flag(const Json& config, const char* name, bool usual) { return member(config, name, usual); }
std::string hf_text(const Json& config, const char* name, const std::string& usual) {
  return member(config, name, usual);
}

}  // namespace prun::checkpoint
